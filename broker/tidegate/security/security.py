"""What a broker needs to know clients and their rights, made from the settings."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.cluster.listeners import listeners_of
from tidegate.security.authorizer import Authorizer
from tidegate.security.identity import CertificateIdentities
from tidegate.security.rules import AccessRules
from tidegate.security.session import MakeAuthentication
from tidegate.security.users import Users
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.store import Store


class Security:
    """`authorizer` is None if access control lists are not enabled. Raises CannotStart."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.users = Users(store, store.cluster_keys)
        self.rules = AccessRules(store, settings)
        self.authorizer = Authorizer(settings, self.rules) if settings.acl_enabled else None
        self.certificates = CertificateIdentities(settings.ssl_principal_mapping_rules, settings.ssl_org_mapping_rules)
        self.mechanisms: Mapping[str, MakeAuthentication] = {}
        self._close_mechanisms = _nothing
        if any(listener.sasl for listener in listeners_of(settings)):
            from tidegate.security.mechanisms import Mechanisms  # loads `cryptography`: other brokers start sooner

            found = Mechanisms(settings, self.users)
            self.mechanisms, self._close_mechanisms = found, found.close
        if settings.super_users and self.authorizer is None:
            raise CannotStart("TIDEGATE_SUPER_USERS has no effect without TIDEGATE_ACL_ENABLED=true")

    async def start(self) -> None:
        """Load the access rules and follow their changes. Raises StoreUnavailable."""
        if self.authorizer is not None:
            await self.rules.start()

    async def close(self) -> None:
        """Stop following."""
        await self.rules.close()
        await self._close_mechanisms()


async def _nothing() -> None:
    """No mechanisms to close."""
