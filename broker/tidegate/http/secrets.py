"""The secrets of the admin HTTP, and the role that each grants."""

from __future__ import annotations

import enum
import hmac
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr

from tidegate.settings import Settings

OPERATOR: Final = "operator"
VIEWER: Final = "viewer"
"""User names for HTTP basic authentication and the console."""
TO_SET: Final = "TIDEGATE_ADMIN_OPERATOR_TOKEN or TIDEGATE_ADMIN_OPERATOR_PASSWORD (or ..._FILE)"


class Role(enum.IntEnum):
    """Roles; each includes the permissions of the previous one."""

    NOBODY = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3
    """Of people only: also drains brokers, sets quotas and deletes topics."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The configured secrets; None where one is not set."""

    operator_token: str | None = None
    operator_password: str | None = None
    viewer_token: str | None = None
    oidc_client_secret: str | None = None
    roles: str = ""
    """`admin_roles`: with people nobody reads without a role."""

    @classmethod
    def read(cls, settings: Settings) -> Secrets:
        """The secrets of the settings."""
        return cls(
            operator_token=_secret(settings.admin_operator_token),
            operator_password=_secret(settings.admin_operator_password),
            viewer_token=_secret(settings.admin_viewer_token),
            oidc_client_secret=_secret(settings.admin_oidc_client_secret),
            roles=settings.admin_roles,
        )

    @property
    def any(self) -> bool:
        """Whether there is something to sign sessions with."""
        return any((self.operator_token, self.operator_password, self.viewer_token, self.oidc_client_secret))

    @property
    def operators(self) -> bool:
        """Whether an operator secret is set, without which nobody may change anything."""
        return self.operator_token is not None or self.operator_password is not None

    @property
    def anonymous(self) -> Role:
        """The role of a request without credentials."""
        return Role.VIEWER if self.viewer_token is None and not self.roles else Role.NOBODY

    def role_of_token(self, given: str) -> Role:
        """The role of a bearer token."""
        if _same(given, self.operator_token):
            return Role.OPERATOR
        return Role.VIEWER if _same(given, self.viewer_token) else Role.NOBODY

    def role_of_user(self, name: str, given: str) -> Role:
        """`operator` authenticates with the operators' password or token, `viewer` with the viewers' token."""
        if name == OPERATOR:
            fine = [_same(given, self.operator_password), _same(given, self.operator_token)]
            return Role.OPERATOR if any(fine) else Role.NOBODY
        return Role.VIEWER if name == VIEWER and _same(given, self.viewer_token) else Role.NOBODY


def same(given: str, secret: str) -> bool:
    """Compare in constant time. Header values may be invalid text."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())


def _same(given: str, secret: str | None) -> bool:
    return same(given, secret or "") and secret is not None


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
