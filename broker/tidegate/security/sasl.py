"""The server's side of SASL mechanisms: PLAIN (RFC 4616), SCRAM (RFC 5802), OAUTHBEARER (RFC 7628).

One object serves one exchange (`session.Authentication`). Imported only where a listener uses SASL.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Final

from scramp import ScramMechanism
from scramp.core import ScramException

from tidegate.errors import StoreUnavailable
from tidegate.security.errors import SaslAuthenticationFailed
from tidegate.security.identity import NAME_LENGTH_MAX, Identity
from tidegate.security.oauth import InsufficientScope, InvalidToken, TokenValidator
from tidegate.security.users import ITERATIONS_MIN, NOBODY, Credential, User, Users

_WRONG: Final = "Authentication failed: invalid credentials with SASL mechanism {}"
"""Kafka's text. The same for an unknown user and a wrong password."""
_OTHER_USER: Final = "Authentication failed: the client cannot act for another user"


class Plain:
    """One message: authorisation id, user name and password, separated by zero bytes."""

    def __init__(self, users: Users) -> None:
        self.identity: Identity | None = None
        self.is_refused = False
        self._users = users

    async def step(self, token: bytes) -> bytes:
        try:
            authorization_id, name, password = token.decode().split("\0")
        except ValueError:
            raise SaslAuthenticationFailed("Authentication failed: malformed PLAIN message") from None
        if not name or not password or len(name) > NAME_LENGTH_MAX:
            raise SaslAuthenticationFailed(_WRONG.format("PLAIN"))
        user = await _find(self._users, name) or NOBODY
        if not await asyncio.to_thread(user.accepts, password):
            raise SaslAuthenticationFailed(_WRONG.format("PLAIN"))
        if authorization_id not in ("", name):
            raise SaslAuthenticationFailed(_OTHER_USER)
        self.identity = Identity(f"User:{name}", user.org)
        return b""


class Scram:
    """Two messages of each side; the password is never sent."""

    def __init__(self, mechanism: str, users: Users) -> None:
        self.identity: Identity | None = None
        self.is_refused = False
        self._mechanism = mechanism
        self._users = users
        self._user: User | None = None
        self._credential: Credential | None = None
        self._server = ScramMechanism(mechanism).make_server(self._keys_of)

    async def step(self, token: bytes) -> bytes:
        try:
            message = token.decode()
            if self._credential is None:
                await self._find_credential(message)
                self._server.set_client_first(message)
                return str(self._server.get_server_first()).encode()
            self._server.set_client_final(message)
            answer = str(self._server.get_server_final()).encode()
        except (ScramException, UnicodeDecodeError):
            raise SaslAuthenticationFailed(_WRONG.format(self._mechanism)) from None
        if self._user is None:
            raise SaslAuthenticationFailed(_WRONG.format(self._mechanism))
        self.identity = Identity(f"User:{self._user.name}", self._user.org)
        return answer

    async def _find_credential(self, message: str) -> None:
        """Find the credential of the user whom the client's first message names; unknown users get a constant one.

        An exchange that ended early, or another salt each time, would show which users exist.
        """
        match = _CLIENT_FIRST.fullmatch(message)
        if match is None or len(match["name"]) > NAME_LENGTH_MAX:
            raise SaslAuthenticationFailed(_WRONG.format(self._mechanism))
        name = _decoded(match["name"])
        salt = await self._users.salt_of_unknown_user(self._mechanism, name)  # of each user, so that all take as long
        user = await _find(self._users, name)
        if user is not None and self._mechanism in user.credentials:
            self._user, self._credential = user, user.credentials[self._mechanism]
        else:
            self._credential = Credential(salt, bytes(32), bytes(32), ITERATIONS_MIN)

    def _keys_of(self, _: str) -> tuple[bytes, bytes, bytes, int]:
        found = self._credential
        if found is None:
            raise ScramException("no credential")
        return found.salt, found.stored_key, found.server_key, found.iterations


_CLIENT_FIRST: Final = re.compile(r"[nyp][^,]*,[^,]*,n=(?P<name>[^,]+),r=.*", re.DOTALL)


def _decoded(name: str) -> str:
    """A name of RFC 5801 and 5802, in which commas and equals signs are escaped."""
    return name.replace("=2C", ",").replace("=3D", "=")


class OAuthBearer:
    """One message with a token; after a refused one the client sends a byte, and is then refused (RFC 7628)."""

    def __init__(self, validator: TokenValidator) -> None:
        self.identity: Identity | None = None
        self.is_refused = False
        self._validator = validator

    async def step(self, token: bytes) -> bytes:
        if self.is_refused:
            raise SaslAuthenticationFailed(_WRONG.format("OAUTHBEARER"))
        match = _BEARER.fullmatch(token.decode("utf-8", "surrogateescape"))
        if match is None:
            raise SaslAuthenticationFailed("Authentication failed: malformed OAUTHBEARER message")
        try:
            identity = await self._validator.identity(match["token"])
        except InsufficientScope as error:
            self.is_refused = True
            return json.dumps({"status": "insufficient_scope", "scope": error.scope}, separators=(",", ":")).encode()
        except InvalidToken:
            self.is_refused = True
            return b'{"status":"invalid_token"}'
        authorization_id = match["authzid"]
        if authorization_id is not None and f"User:{_decoded(authorization_id)}" != identity.principal:
            raise SaslAuthenticationFailed(_OTHER_USER)
        self.identity = identity
        return b""


_PAIRS: Final = r"(?:(?!auth=)[A-Za-z]+=[^\x01]*\x01)*"
"""Without `auth`, so that a message matches in one way at most, found in linear time."""
_BEARER: Final = re.compile(
    r"[ny],(?:a=(?P<authzid>(?:[^\0,=]|=2C|=3D)+))?,\x01"
    rf"{_PAIRS}auth=(?i:bearer) +(?P<token>[\x21-\x7e]+)\x01{_PAIRS}\x01"
)


async def _find(users: Users, name: str) -> User | None:
    try:
        return await users.get(name)
    except ValueError:
        raise StoreUnavailable(f"the record of user {name!r} cannot be read") from None
