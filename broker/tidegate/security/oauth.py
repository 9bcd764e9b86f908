"""Validation of OAuth 2 access tokens (signed JWTs) by the keys of their issuer (KIP-768)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import jwt
import structlog

from tidegate.security.documents import read_document, read_document_file
from tidegate.security.identity import ORG_PATTERN, Identity
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.batching import SingleFlight
from tidegate.telemetry.rate_limited_log import RateLimitedLogger

logger = structlog.get_logger()

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric ones only: with a symmetric key every verifier could make tokens."""
SCOPE_CLAIMS: Final = ("scope", "scp")
"""Claims that list a token's scopes; the first that it has counts. RFC 9068, and Microsoft's and Okta's name."""
CLOCK_SKEW_S: Final = 30
"""Kafka's default of sasl.oauthbearer.clock.skew.seconds. A token, and the session that it began, end so much later."""
KEYS_MAX_AGE_S: Final = 3_600.0
"""Kafka's default of sasl.oauthbearer.jwks.endpoint.refresh.ms."""
UNKNOWN_KEY_PAUSE_S: Final = 10.0
"""Time between two fetches because of tokens with an unknown key: anybody can send such tokens."""
FETCH_TIMEOUT_S: Final = 10.0


class InvalidToken(Exception):
    """The token is refused; the message is for the log."""


class InsufficientScope(InvalidToken):
    """The token lacks a scope that `sasl_oauthbearer_required_scope` names; `scope` is all of them, as RFC 6749 writes
    scopes."""

    def __init__(self, required: Sequence[str]) -> None:
        super().__init__(f"the token lacks a scope of {sorted(required)}")
        self.scope = " ".join(required)


class TokenValidator:
    """Checks signature, issuer, audience and times of tokens. Raises CannotStart."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = settings.sasl_oauthbearer_jwks_endpoint_url or ""
        if not self._url.startswith(("https://", "http://", "file://")):
            raise CannotStart(
                "OAUTHBEARER needs TIDEGATE_SASL_OAUTHBEARER_JWKS_ENDPOINT_URL, an https, http or file address"
            )
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_s = -KEYS_MAX_AGE_S
        self._fetches = SingleFlight[str]()
        self._limited_log = RateLimitedLogger()

    async def close(self) -> None:
        """Cancel a fetch that is under way."""
        await self._fetches.close()

    async def identity(self, token: str) -> Identity:
        """The identity of a valid token. Raises InvalidToken, InsufficientScope."""
        settings = self._settings
        try:
            key = await self._key(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=_listed(settings.sasl_oauthbearer_expected_audience) or None,
                issuer=settings.sasl_oauthbearer_expected_issuer,
                leeway=CLOCK_SKEW_S,
                options={
                    "require": ["exp"],
                    "verify_aud": bool(settings.sasl_oauthbearer_expected_audience),
                    "verify_iss": settings.sasl_oauthbearer_expected_issuer is not None,
                },
            )
            identity = self._of_claims(claims)
        except (jwt.PyJWTError, InvalidToken, ValueError) as error:  # ValueError: a token that is not UTF-8
            self._limited_log.warn("oauth_token_refused", reason=str(error))
            if isinstance(error, InvalidToken):
                raise
            raise InvalidToken(str(error)) from None
        return identity

    def _of_claims(self, claims: dict[str, Any]) -> Identity:
        settings = self._settings
        name = claims.get(settings.sasl_oauthbearer_sub_claim_name)
        if not isinstance(name, str) or not name.strip():
            raise InvalidToken(f"the token has no claim {settings.sasl_oauthbearer_sub_claim_name}")
        required = _listed(settings.sasl_oauthbearer_required_scope)
        granted = next((claims[name] for name in SCOPE_CLAIMS if name in claims), None)
        scopes = granted.split() if isinstance(granted, str) else granted if isinstance(granted, list) else []
        if not all(scope in scopes for scope in required):
            raise InsufficientScope(required)
        org = "default"
        if settings.sasl_oauthbearer_org_claim_name:
            org = claims.get(settings.sasl_oauthbearer_org_claim_name, "")
            if not isinstance(org, str) or not ORG_PATTERN.fullmatch(org):
                raise InvalidToken(f"claim {settings.sasl_oauthbearer_org_claim_name} names no organisation")
        return Identity(f"User:{name}", org, float(claims["exp"]) + CLOCK_SKEW_S)

    async def _key(self, key_id: str | None) -> jwt.PyJWK:
        """The issuer's key of this id; unknown ids and old keys are fetched again. Raises InvalidToken."""
        age_s = time.monotonic() - self._fetched_s
        if age_s >= KEYS_MAX_AGE_S or (key_id not in self._keys and age_s >= UNKNOWN_KEY_PAUSE_S):
            await self._fetches.do("keys", self._fetch)
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        key = self._keys.get(key_id)
        if key is None:
            raise InvalidToken(f"no key {key_id!r} at {self._url}")
        return key

    async def _fetch(self) -> None:
        """Read the keys; after a failure the old ones stay until the next try."""
        self._fetched_s = time.monotonic() - KEYS_MAX_AGE_S + UNKNOWN_KEY_PAUSE_S
        try:
            listed = json.loads(await self._read())
            keys = jwt.PyJWKSet.from_dict(listed).keys
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, jwt.PyJWTError) as error:
            self._limited_log.warn("oauth_keys_not_fetched", url=self._url, reason=str(error) or type(error).__name__)
            return
        self._keys = {one.key_id: one for one in keys if one.public_key_use in (None, "sig")}
        self._fetched_s = time.monotonic()
        logger.info("oauth_keys_fetched", url=self._url, keys=len(self._keys))

    async def _read(self) -> bytes:
        if self._url.startswith("file://"):
            return await asyncio.to_thread(read_document_file, self._url.removeprefix("file://"))
        timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(self._url) as answer:
            answer.raise_for_status()
            return await read_document(answer)


def _listed(text: str | None) -> list[str]:
    return [one for one in (text or "").replace(",", " ").split() if one]
