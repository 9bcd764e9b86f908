"""Log-in at an OpenID issuer: authorisation-code flow with PKCE (OpenID Connect Core 1.0, RFC 7636).

Nothing is stored on the way: state, nonce and verifier are in a signed cookie for ten minutes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus, urlencode

import aiohttp
import structlog

from tidegate.http.sessions import Sessions
from tidegate.security.documents import read_document
from tidegate.security.identity import Identity
from tidegate.settings import Settings
from tidegate.startup import CannotStart

if TYPE_CHECKING:
    from tidegate.security.oauth import TokenValidator

logger = structlog.get_logger()

COOKIE: Final = "tidegate_login"
LOGIN_S: Final = 600
"""How long somebody may take to log in at the issuer."""
_SCOPE: Final = "openid profile email"
"""The standard scopes, for the claims that name people; an issuer ignores those that it does not know."""
_TIMEOUT_S: Final = 10.0
_DISCOVERY_MAX_AGE_S: Final = 3_600.0
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class LoginFailed(Exception):
    """The issuer's or the browser's answer is refused; the message is for the log."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A log-in that began: where the browser goes, and the cookie that it brings back."""

    url: str
    cookie: str


class OpenIdLogin:
    """One issuer. Raises CannotStart for settings that do not fit together."""

    def __init__(self, settings: Settings, client_secret: str | None, sessions: Sessions) -> None:
        if not settings.admin_oidc_client_id:
            raise CannotStart("TIDEGATE_ADMIN_OIDC_ISSUER_URL needs TIDEGATE_ADMIN_OIDC_CLIENT_ID")
        self._settings, self._client_secret, self._sessions = settings, client_secret, sessions
        self._issuer = str(settings.admin_oidc_issuer_url).rstrip("/")
        if not self._issuer.startswith(("https://", "http://")):
            raise CannotStart(f"TIDEGATE_ADMIN_OIDC_ISSUER_URL: {self._issuer!r} is not an https or http address")
        self._client_id: str = settings.admin_oidc_client_id
        self._found: dict[str, str] = {}
        self._found_s = -_DISCOVERY_MAX_AGE_S
        self._validator: TokenValidator | None = None

    async def close(self) -> None:
        """Cancel a fetch of keys."""
        if self._validator is not None:
            await self._validator.close()

    async def begin(self, redirect_uri: str, wanted: str) -> Begun:
        """Begin a log-in that ends at the console page `wanted`. Raises LoginFailed."""
        found = await self._discover()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": _SCOPE,
            "state": state,
            "nonce": nonce,
            "code_challenge": _unpadded(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        kept = json.dumps([state, nonce, verifier, wanted, int(time.time()) + LOGIN_S]).encode()
        separator = "&" if "?" in found["authorization_endpoint"] else "?"
        return Begun(
            f"{found['authorization_endpoint']}{separator}{urlencode(query)}", self._sessions.sign(COOKIE, kept)
        )

    async def end(self, cookie: str, state: str, code: str, redirect_uri: str) -> tuple[Identity, str]:
        """Who logged in, and the page that they wanted. Raises LoginFailed."""
        kept = self._sessions.signed(COOKIE, cookie)
        if kept is None:
            raise LoginFailed("the browser brought back no cookie of this cluster")
        expected, nonce, verifier, wanted, ends_s = json.loads(kept)
        if ends_s <= time.time():
            raise LoginFailed(f"the log-in took longer than {LOGIN_S} s")
        if not secrets.compare_digest(state.encode("utf-8", "surrogatepass"), expected.encode()):
            raise LoginFailed("the state is not that of this browser")
        token = await self._exchange(code, verifier, redirect_uri)
        return await self._identity(token, nonce), wanted

    async def _exchange(self, code: str, verifier: str, redirect_uri: str) -> str:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": verifier,
        }
        headers = {} if self._client_secret is None else {"Authorization": _basic(self._client_id, self._client_secret)}
        found = await self._discover()
        answer = await self._asked("POST", found["token_endpoint"], data=form, headers=headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise LoginFailed("the issuer gave no id_token: the scope must contain openid")
        return token

    async def _identity(self, token: str, nonce: str) -> Identity:
        from tidegate.security.oauth import InvalidToken

        try:
            identity = await (await self._tokens()).identity(token)
        except InvalidToken as error:
            raise LoginFailed(f"the id_token is refused: {error}") from None
        import jwt  # only brokers with an issuer need it

        claims = jwt.decode(token, options={"verify_signature": False})  # verified just above
        if claims.get("nonce") != nonce:
            raise LoginFailed("the id_token is of another log-in: its nonce differs")
        return identity

    async def _tokens(self) -> TokenValidator:
        """Checks signature, issuer, audience and times as of access tokens."""
        from tidegate.security.oauth import TokenValidator  # loads `cryptography`

        found = await self._discover()
        if self._validator is None:
            own = {
                "sasl_oauthbearer_jwks_endpoint_url": found["jwks_uri"],
                "sasl_oauthbearer_expected_audience": self._client_id,
                "sasl_oauthbearer_expected_issuer": found["issuer"],
                "sasl_oauthbearer_required_scope": "",
                "sasl_oauthbearer_sub_claim_name": self._settings.admin_oidc_user_claim_name,
                "sasl_oauthbearer_org_claim_name": self._settings.admin_oidc_org_claim_name,
            }
            self._validator = TokenValidator(self._settings.model_copy(update=own))
        return self._validator

    async def _discover(self) -> dict[str, str]:
        """The issuer's endpoints (OpenID Connect Discovery 1.0). Raises LoginFailed."""
        if time.monotonic() - self._found_s >= _DISCOVERY_MAX_AGE_S:
            found = await self._asked("GET", f"{self._issuer}/.well-known/openid-configuration")
            if str(found.get("issuer", "")).rstrip("/") != self._issuer:
                raise LoginFailed(f"{self._issuer} calls itself {found.get('issuer')!r}")
            if not all(isinstance(found.get(name), str) for name in _ENDPOINTS):
                raise LoginFailed(f"{self._issuer} names not all of {', '.join(_ENDPOINTS)}")
            self._found, self._found_s = found, time.monotonic()
        return self._found

    async def _asked(self, method: str, url: str, **values: Any) -> dict[str, Any]:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session,
                session.request(method, url, allow_redirects=False, **values) as answer,
            ):
                if answer.status != 200:
                    raise LoginFailed(f"{url} answers with status {answer.status}")
                found = json.loads(await read_document(answer))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise LoginFailed(f"{url}: {str(error) or type(error).__name__}") from None
        if not isinstance(found, dict):
            raise LoginFailed(f"{url} does not answer with a JSON object")
        return found


def _basic(client_id: str, client_secret: str) -> str:
    """Both are encoded as in a form first (RFC 6749, 2.3.1)."""
    pair = f"{quote_plus(client_id)}:{quote_plus(client_secret)}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _unpadded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
