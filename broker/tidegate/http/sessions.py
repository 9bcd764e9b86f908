"""Console sessions: signed cookies that any broker with the same secrets accepts, so no server stores them.

The signing key is derived from all secrets, so changing one ends every session. It is derived by scrypt, because a
password may be short and a cookie would permit an offline brute-force attack on it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import time
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidegate.http.people import Person
from tidegate.http.secrets import Role, Secrets, same

COOKIE: Final = "tidegate_session"
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "X-CSRF-Token"
SESSION_S: Final = 8 * 3600


@dataclass(frozen=True, slots=True)
class Session:
    """User name, role and expiry (s since 1970); `text` is the cookie; `person` unless a shared secret logged in."""

    name: str
    role: Role
    ends_s: int
    text: str
    person: Person | None = None


class Sessions:
    """Signs and verifies cookies. `cluster_id` separates clusters that have the same secrets."""

    def __init__(self, secrets: Secrets, cluster_id: str) -> None:
        self._secrets = secrets
        self._key = _key(secrets, cluster_id)

    def begin(self, name: str, role: Role, now_s: float | None = None) -> Session:
        """Create a session."""
        ends_s = int(time.time() if now_s is None else now_s) + SESSION_S
        return self._session(json.dumps([name, int(role), ends_s]).encode(), name, role, ends_s)

    def begin_for(self, person: Person, now_s: float | None = None) -> Session:
        """Create a session of a person."""
        ends_s = int(time.time() if now_s is None else now_s) + SESSION_S
        payload = json.dumps([person.principal, int(person.role), ends_s, person.org, person.record]).encode()
        return self._session(payload, person.principal, person.role, ends_s, person)

    def sign(self, purpose: str, payload: bytes) -> str:
        """A cookie of some other purpose."""
        encoded = base64.urlsafe_b64encode(payload).decode()
        return f"{encoded}.{self._mark(purpose, encoded)}"

    def signed(self, purpose: str, text: str) -> bytes | None:
        """What `sign` was given; None if the signature is invalid."""
        encoded, _, given = text.partition(".")
        return base64.urlsafe_b64decode(encoded) if same(given, self._mark(purpose, encoded)) else None

    def read(self, text: str, now_s: float | None = None) -> Session | None:
        """The session of a cookie; None if the signature is invalid, it has expired, or its role is not configured."""
        payload, _, given = text.partition(".")
        if not same(given, self._mark("cookie", payload)):
            return None
        try:
            name, role, ends_s, *more = json.loads(base64.urlsafe_b64decode(payload))
        except (ValueError, binascii.Error):
            return None
        if ends_s <= (time.time() if now_s is None else now_s):
            return None
        if more:
            return Session(name, Role(role), ends_s, text, Person(name, more[0], Role(role), more[1]))
        if role == Role.OPERATOR and not self._secrets.operators:
            return None
        return Session(name, Role(role), ends_s, text)

    def csrf_token(self, session: Session) -> str:
        """The CSRF token of a session: `csrf` in forms, X-CSRF-Token in other requests."""
        return self._mark("csrf", session.text)

    def csrf_fits(self, session: Session, given: str) -> bool:
        """Whether a token belongs to this session."""
        return same(given, self.csrf_token(session))

    def _session(self, payload: bytes, name: str, role: Role, ends_s: int, person: Person | None = None) -> Session:
        return Session(name, role, ends_s, self.sign("cookie", payload), person)

    def _mark(self, purpose: str, text: str) -> str:
        marked = f"{purpose} {text}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, marked, hashlib.sha256).hexdigest()


def _key(secrets: Secrets, cluster_id: str) -> bytes:
    parts = [secrets.operator_token, secrets.operator_password, secrets.viewer_token]
    if not secrets.any:
        return os.urandom(32)  # no secrets: nobody can log in
    people = [secrets.oidc_client_secret, secrets.roles] if secrets.roles else []  # new roles end sessions too
    joined = json.dumps([cluster_id, *parts, *people]).encode()
    return hashlib.scrypt(joined, salt=b"tidegate console session 1", n=1 << 14, r=8, p=1, dklen=32)


def put_cookie(answer: web.StreamResponse, session: Session, secure: bool) -> None:
    """Set the session cookie: HttpOnly, and sent with requests from the console's own pages only."""
    answer.set_cookie(
        COOKIE, session.text, max_age=SESSION_S, path="/", httponly=True, samesite="Strict", secure=secure
    )


def drop_cookie(answer: web.StreamResponse) -> None:
    """Delete the session cookie."""
    answer.del_cookie(COOKIE, path="/", httponly=True, samesite="Strict")
