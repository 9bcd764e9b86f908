"""Documents of an issuer that arrive in several reads: they are read whole, up to a limit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from tidegate.http.oidc import LoginFailed, OpenIdLogin
from tidegate.security.documents import DOCUMENT_BYTES_MAX
from tidegate.security.oauth import InvalidToken, TokenValidator

MANY_READS = 900_000
"""Bytes: more than the receive buffers of a connection hold, so that no single read returns them."""
KEY = ed25519.Ed25519PrivateKey.generate()
JWK = OKPAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "k1", "use": "sig"}


class Issuer:
    """Serves its documents with a member that makes them `document_bytes` long."""

    def __init__(self) -> None:
        self.url = ""
        self.document_bytes = MANY_READS

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/keys", self._keys), web.get("/.well-known/openid-configuration", self._discover)])
        return app

    def _padded(self, document: dict[str, Any]) -> web.Response:
        length = self.document_bytes - len(json.dumps(document | {"padding": ""}))
        return web.json_response(document | {"padding": "x" * length})

    async def _keys(self, _: web.Request) -> web.Response:
        return self._padded({"keys": [JWK]})

    async def _discover(self, _: web.Request) -> web.Response:
        names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        return self._padded({"issuer": self.url, **{name: f"{self.url}/{name}" for name in names}})


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    served = Issuer()
    async with TestServer(served.application()) as server:
        served.url = str(server.make_url("")).rstrip("/")
        yield served


async def principal(issuer: Issuer) -> str:
    """Whom a good token names, checked with the issuer's keys."""
    settings: Any = SimpleNamespace(
        sasl_oauthbearer_jwks_endpoint_url=f"{issuer.url}/keys",
        sasl_oauthbearer_expected_issuer=None,
        sasl_oauthbearer_expected_audience=None,
        sasl_oauthbearer_required_scope=None,
        sasl_oauthbearer_sub_claim_name="sub",
        sasl_oauthbearer_org_claim_name=None,
    )
    token = jwt.encode({"sub": "alice", "exp": 4_000_000_000}, KEY, algorithm="EdDSA", headers={"kid": "k1"})
    validator = TokenValidator(settings)
    try:
        return (await validator.identity(token)).principal
    finally:
        await validator.close()


async def authorization_address(issuer: Issuer) -> str:
    """Where a browser is sent to log in."""
    settings: Any = SimpleNamespace(admin_oidc_client_id="console", admin_oidc_issuer_url=issuer.url)
    sessions: Any = SimpleNamespace(sign=lambda name, value: "signed")
    return (await OpenIdLogin(settings, None, sessions).begin("http://console/callback", "/")).url


@pytest.mark.parametrize("length", [MANY_READS, DOCUMENT_BYTES_MAX])
async def test_keys_of_many_reads_are_read_whole(issuer: Issuer, length: int) -> None:
    issuer.document_bytes = length

    assert await principal(issuer) == "User:alice"


@pytest.mark.parametrize("length", [MANY_READS, DOCUMENT_BYTES_MAX])
async def test_discovery_of_many_reads_is_read_whole(issuer: Issuer, length: int) -> None:
    issuer.document_bytes = length

    assert (await authorization_address(issuer)).startswith(f"{issuer.url}/authorization_endpoint?")


async def test_keys_above_the_limit_are_refused(issuer: Issuer, capsys: pytest.CaptureFixture[str]) -> None:
    issuer.document_bytes = DOCUMENT_BYTES_MAX + 1

    with pytest.raises(InvalidToken, match="no key 'k1'"):
        await principal(issuer)
    assert f"the document is longer than {DOCUMENT_BYTES_MAX} bytes" in capsys.readouterr().out


async def test_discovery_above_the_limit_is_refused(issuer: Issuer) -> None:
    issuer.document_bytes = DOCUMENT_BYTES_MAX + 1

    with pytest.raises(LoginFailed, match=f"longer than {DOCUMENT_BYTES_MAX} bytes"):
        await authorization_address(issuer)
