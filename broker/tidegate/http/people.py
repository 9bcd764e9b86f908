"""People who use the admin HTTP: users of the cluster, and those of an OpenID issuer, with a role each.

`admin_roles` gives roles to principals. A person of organisation `default` works on the whole cluster; one of another
organisation sees and changes its groups and topics only.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiohttp import web

from tidegate.errors import StoreUnavailable
from tidegate.http.secrets import Role, Secrets
from tidegate.security.identity import DEFAULT_ORG, Identity
from tidegate.security.users import NOBODY, Users
from tidegate.settings import Settings
from tidegate.startup import CannotStart

if TYPE_CHECKING:
    from tidegate.security.oauth import TokenValidator

ROLES: Final = {"viewer": Role.VIEWER, "operator": Role.OPERATOR, "admin": Role.ADMIN}
EVERYBODY: Final = "User:*"
"""In `admin_roles`: the role of everybody who is authenticated and not named."""

OF_ORG: Final = re.compile(
    r"/api/v1/((groups|topics|transactions|quotas)(/.*)?|openapi\.json)"
    r"|/console/(|group(/.*)?|reset(/apply)?|topics?|producers|login.*|logout|static/.*)"
    r"|/"
)
"""Paths whose data is of the organisation that the request names; others show the whole cluster."""
FOR_ADMINS: Final = (
    ("POST", re.compile(r"/drain|/api/v1/brokers/.*|/console/brokers/.*", re.DOTALL)),
    ("PATCH", re.compile(r"/api/v1/quotas")),
    ("DELETE", re.compile(r"/api/v1/topics/[^/]*")),
)
"""Method and path of what an operator may not do."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who is authenticated; `record` is a digest of the stored user, "" of an issuer's."""

    principal: str
    org: str
    role: Role
    record: str = ""


PERSON: Final = web.RequestKey("person", Person)
"""Set where a person is authenticated, not by a token or password of the settings."""


class People:
    """Roles by principal, and the two ways to prove who one is. Raises CannotStart."""

    def __init__(self, settings: Settings, secrets: Secrets, users: Users | None) -> None:
        self.roles = roles_of(settings.admin_roles)
        self._users = users
        self._tokens: TokenValidator | None = None
        if not self.roles:
            if settings.admin_oidc_issuer_url:
                raise CannotStart("TIDEGATE_ADMIN_OIDC_ISSUER_URL needs TIDEGATE_ADMIN_ROLES: nobody would have a role")
            return
        if not secrets.any:
            raise CannotStart(
                "TIDEGATE_ADMIN_ROLES needs a secret that brokers sign sessions with: one of "
                "TIDEGATE_ADMIN_OPERATOR_TOKEN, TIDEGATE_ADMIN_OPERATOR_PASSWORD, TIDEGATE_ADMIN_VIEWER_TOKEN and "
                "TIDEGATE_ADMIN_OIDC_CLIENT_SECRET, the same on all brokers"
            )
        if settings.sasl_oauthbearer_jwks_endpoint_url:
            from tidegate.security.oauth import TokenValidator  # loads `cryptography`: other brokers start sooner

            self._tokens = TokenValidator(settings)

    @property
    def may_change(self) -> bool:
        """Whether somebody may change something."""
        return any(role >= Role.OPERATOR for role in self.roles.values())

    def role_of(self, principal: str) -> Role:
        """The role of an authenticated principal."""
        return self.roles.get(principal, self.roles.get(EVERYBODY, Role.NOBODY))

    async def by_password(self, name: str, password: str) -> Person | None:
        """A user of the cluster; None for a wrong name or password, or without a role. Raises StoreUnavailable."""
        if not self.roles or self._users is None or not name:
            return None
        user = await self._users.get(name)
        if not await asyncio.to_thread((user or NOBODY).accepts, password) or user is None:
            return None
        return self._person(Identity(f"User:{name}", user.org), digest(user.text()))

    async def by_token(self, token: str) -> Person | None:
        """Whom an access token of the SASL mechanism OAUTHBEARER names; None if it is not valid."""
        if self._tokens is None:
            return None
        from tidegate.security.oauth import InvalidToken

        try:
            return self._person(await self._tokens.identity(token))
        except InvalidToken:
            return None

    def of_identity(self, identity: Identity) -> Person | None:
        """A person whom the OpenID issuer named; None without a role."""
        return self._person(identity)

    async def is_current(self, person: Person) -> bool:
        """Whether a session's person may continue: the role is the same, and the stored user has not been changed."""
        if self.role_of(person.principal) is not person.role:
            return False
        if not person.record or self._users is None:
            return True
        try:
            user = await self._users.get(person.principal.removeprefix("User:"))
        except StoreUnavailable:
            return True  # nothing can be read or changed meanwhile
        return user is not None and digest(user.text()) == person.record

    async def close(self) -> None:
        """Cancel a fetch of keys."""
        if self._tokens is not None:
            await self._tokens.close()

    def _person(self, identity: Identity, record: str = "") -> Person | None:
        role = self.role_of(identity.principal)
        return None if role is Role.NOBODY else Person(identity.principal, identity.org, role, record)


def roles_of(text: str) -> Mapping[str, Role]:
    """`User:alice=operator;User:*=viewer` as a table. Raises CannotStart."""
    found: dict[str, Role] = {}
    for part in filter(None, (one.strip() for one in text.split(";"))):
        principal, _, role = part.rpartition("=")
        if role not in ROLES or not principal.startswith("User:") or principal == "User:":
            raise CannotStart(f"TIDEGATE_ADMIN_ROLES: {part!r} is not User:<name>=viewer, operator or admin")
        found[principal] = ROLES[role]
    return found


def is_for_admins(method: str, path: str) -> bool:
    """Whether an operator may not do this."""
    return any(method == one and pattern.fullmatch(path) for one, pattern in FOR_ADMINS)


def is_bound(person: Person | None) -> bool:
    """Whether the person sees one organisation only."""
    return person is not None and person.org != DEFAULT_ORG


def digest(text: str) -> str:
    """Of a stored record."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
