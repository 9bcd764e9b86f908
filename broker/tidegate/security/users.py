"""Users with passwords, as SCRAM credentials in `{cluster}:users`; no password is stored.

PLAIN is checked against the same credentials. A record is read at each authentication, so a change has effect at once.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import structlog

from tidegate.cluster.identity import SALT_KEY
from tidegate.errors import CoordinatorNotAvailable, StoreUnavailable
from tidegate.security.errors import UnacceptableCredential
from tidegate.store.keys import ClusterKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

REPLACE_USER = Script("security/replace_user")

logger = structlog.get_logger()

SCRAM_MECHANISMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanism -> hash function."""
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's limits (`ScramMechanism.java`, `ScramCredentialUtils`)."""
PASSWORD_LENGTH_MAX: Final = 1_024
"""Characters. Preparing a megabyte takes seconds, and a password is checked before somebody is known."""
SALT_BYTES_MAX: Final = 1_024
"""Of a credential that a client computed: it is stored, and read and sent at each login."""
_SALT_BYTES: Final = 32
_REPLACE_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Credential:
    """What a server keeps of a password (RFC 5802)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @classmethod
    def of_password(cls, mechanism: str, password: str) -> Credential:
        """The credential of a password with a new salt; takes some ms. Raises UnacceptableCredential."""
        salt = secrets.token_bytes(_SALT_BYTES)
        salted = _salted(mechanism, password, salt, ITERATIONS_MIN)
        return cls.of_salted_password(mechanism, salt, salted, ITERATIONS_MIN)

    @classmethod
    def of_salted_password(cls, mechanism: str, salt: bytes, salted_password: bytes, iterations: int) -> Credential:
        """The credential of the salted password that AlterUserScramCredentials carries (KIP-554)."""
        name = SCRAM_MECHANISMS[mechanism]
        client_key = hmac.digest(salted_password, b"Client Key", name)
        server_key = hmac.digest(salted_password, b"Server Key", name)
        return cls(salt, hashlib.new(name, client_key).digest(), server_key, iterations)

    def accepts(self, mechanism: str, password: str) -> bool:
        """Whether the password is this one; takes some ms."""
        try:
            salted = _salted(mechanism, password, self.salt, self.iterations)
        except UnacceptableCredential:
            return False
        found = self.of_salted_password(mechanism, self.salt, salted, self.iterations)
        return hmac.compare_digest(found.stored_key, self.stored_key)


def _salted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """SaltedPassword of RFC 5802. Raises UnacceptableCredential for signs that SASLprep (RFC 4013) prohibits, and above
    PASSWORD_LENGTH_MAX."""
    if len(password) > PASSWORD_LENGTH_MAX:
        raise UnacceptableCredential(f"the password is longer than {PASSWORD_LENGTH_MAX} characters")
    from scramp.utils import ScramException, saslprep  # loads certificates' parsers: only those who need it wait

    try:
        prepared = saslprep(password)
    except ScramException as error:
        raise UnacceptableCredential(f"the password cannot be used: {error}") from None
    return hashlib.pbkdf2_hmac(SCRAM_MECHANISMS[mechanism], prepared.encode(), salt, iterations)


@dataclass(frozen=True, slots=True)
class User:
    """A user's record."""

    name: str
    org: str = "default"
    credentials: Mapping[str, Credential] = field(default_factory=dict)

    @classmethod
    def parse(cls, name: str, text: bytes | str) -> Self:
        """The record of a stored text. Raises ValueError."""
        stored = json.loads(text)
        credentials = {
            mechanism: Credential(
                base64.b64decode(one["salt"]),
                base64.b64decode(one["stored_key"]),
                base64.b64decode(one["server_key"]),
                one["iterations"],
            )
            for mechanism, one in stored.get("credentials", {}).items()
        }
        return cls(name, stored["org"], credentials)

    def text(self) -> str:
        """The record as it is stored."""
        credentials = {
            mechanism: {
                "salt": base64.b64encode(one.salt).decode(),
                "stored_key": base64.b64encode(one.stored_key).decode(),
                "server_key": base64.b64encode(one.server_key).decode(),
                "iterations": one.iterations,
            }
            for mechanism, one in sorted(self.credentials.items())
        }
        return json.dumps({"org": self.org, "credentials": credentials}, separators=(",", ":"))

    def accepts(self, password: str) -> bool:
        """Whether the password is the user's; takes some ms, as long for each user as for `NOBODY`."""
        checked = [
            self.credentials.get(mechanism, _NOBODYS).accepts(mechanism, password) for mechanism in SCRAM_MECHANISMS
        ]
        return any(checked)


_NOBODYS: Final = Credential(bytes(16), bytes(32), bytes(32), ITERATIONS_MIN)
"""Of no password."""
NOBODY: Final = User("")
"""Stands in for an unknown user, so that the time does not show which users exist."""


Change = Callable[[User | None], User | None]
"""The present record -> the new one; None is no record. Called again after a concurrent change."""


def _in_order(stored: Any) -> list[User]:
    """The users of a hash reply, of RESP2 (flat) or RESP3 (mapping), in order of name."""
    pairs = stored.items() if isinstance(stored, dict) else zip(stored[::2], stored[1::2], strict=True)
    return sorted((User.parse(name.decode(), text) for name, text in pairs), key=lambda user: user.name)


class Users:
    """The users of the cluster. Each method reads or writes Redis and raises StoreUnavailable."""

    def __init__(self, store: Store, keys: ClusterKeys) -> None:
        self._store = store
        self._keys = keys
        self._salt_key: bytes | None = None

    async def get(self, name: str) -> User | None:
        """A user's record, or None."""
        text = await self._store.command("HGET", self._keys.users, name)
        return None if text is None else User.parse(name, text)

    async def salt_of_unknown_user(self, mechanism: str, name: str) -> bytes:
        """A salt for a name without a credential: the same from every broker, and not to be computed by clients."""
        if self._salt_key is None:
            self._salt_key = await self._store.command("HGET", self._keys.info, SALT_KEY)
        if self._salt_key is None:
            raise StoreUnavailable(f"{self._keys.info} has no {SALT_KEY}: the cluster is not open")
        return hmac.digest(self._salt_key, f"{mechanism} {name}".encode(), "sha256")

    async def all(self) -> list[User]:
        """Every user, in order of name."""
        reply = await self._store.command("HGETALL", self._keys.users)
        return await asyncio.to_thread(_in_order, reply)  # 20,000 users take 0.5 s

    async def change(self, name: str, plan: Change) -> User | None:
        """Replace a record by `plan(record)`; returns the new one. Raises what `plan` raises."""
        for _ in range(_REPLACE_TRIES):
            stored = await self._store.command("HGET", self._keys.users, name)
            user = plan(None if stored is None else User.parse(name, stored))
            text = "" if user is None else user.text()
            (done,) = await self._store.run(
                REPLACE_USER, [self._keys.users], self._keys.user_changes, name, stored or "", text
            )
            if done:
                logger.info("user_deleted" if user is None else "user_changed", user=name)
                return user
        raise CoordinatorNotAvailable(f"user {name!r} is changed by many at once")

    async def set_password(self, name: str, password: str, org: str | None = None) -> User:
        """Create a user, or replace the password of one; `org` None keeps the organisation."""
        made = await asyncio.gather(
            *(asyncio.to_thread(Credential.of_password, mechanism, password) for mechanism in SCRAM_MECHANISMS)
        )
        credentials = dict(zip(SCRAM_MECHANISMS, made, strict=True))

        def plan(user: User | None) -> User:
            user = user or User(name)
            return replace(user, org=org or user.org, credentials=credentials)

        return await self.change(name, plan) or User(name)

    async def delete(self, name: str) -> bool:
        """Delete a user; False if there was none."""
        found = False

        def plan(user: User | None) -> None:
            nonlocal found
            found = user is not None

        await self.change(name, plan)
        return found
