"""Decides what a principal may do: super users, then the access rules of its organisation."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.security.acls import CLUSTER_NAME, OPERATIONS_OF, Decision, Operation, ResourceType
from tidegate.security.rules import AccessRules
from tidegate.settings import Settings
from tidegate.startup import CannotStart

REMEMBERED_MAX: Final = 50_000
"""Decisions that are remembered until the rules change; about 200 bytes each, without the name."""
REMEMBERED_NAME_MAX: Final = 249
"""Decisions on longer names are made each time: clients choose names of groups, which may have 32 kB."""


class Requester(NamedTuple):
    """Who asks, and from where. A tuple, which is hashed faster than a dataclass: once for each decision."""

    principal: str
    host: str
    org: str


class Authorizer:
    """Decisions, remembered until the rules change; for any thread. Raises CannotStart for malformed `super_users`."""

    def __init__(self, settings: Settings, rules: AccessRules) -> None:
        self.rules = rules
        self.super_users = frozenset(filter(None, (name.strip() for name in settings.super_users.split(";"))))
        for name in self.super_users:
            if ":" not in name:
                raise CannotStart(f"TIDEGATE_SUPER_USERS: {name!r} is not User:<name>")
        self._allowed_without_rules = settings.allow_everyone_if_no_acl_found
        self._remembered: dict[tuple[Requester, Operation, ResourceType, str], bool] = {}
        self._version = -1

    def is_super_user(self, principal: str) -> bool:
        """Whether no rule applies to this principal."""
        return principal in self.super_users

    def outranks(self, principal: str, other: str) -> bool:
        """Whether only the first is a super user: the other may not set its password."""
        return principal in self.super_users and other not in self.super_users

    def allows(
        self, requester: Requester, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Whether the operation is allowed."""
        if requester.principal in self.super_users:
            return True
        version = self.rules.version
        if self._version != version or len(self._remembered) >= REMEMBERED_MAX:
            self._remembered = {}
            self._version = version
        remembered, asked = self._remembered, (requester, operation, resource_type, name)
        allowed = remembered.get(asked)
        if allowed is None:
            allowed = self.decide(requester, operation, resource_type, name).allowed
            if len(name) <= REMEMBERED_NAME_MAX:
                remembered[asked] = allowed
        return allowed

    def decide(
        self, requester: Requester, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME
    ) -> Decision:
        """The decision, and the rule that made it; None for a super user or the default."""
        if requester.principal in self.super_users:
            return Decision(True)
        return self.rules.table(requester.org).decide(
            requester.principal,
            requester.host,
            operation,
            resource_type,
            name,
            allowed_without_rules=self._allowed_without_rules,
        )

    def allows_idempotent_write(self, requester: Requester) -> bool:
        """InitProducerId without transactions: IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679)."""
        return (
            self.allows(requester, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
            or self._allowed_without_rules
            or self.rules.table(requester.org).any_resource(
                requester.principal, requester.host, Operation.WRITE, ResourceType.TOPIC
            )
        )

    def operations(self, requester: Requester, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The allowed operations as a bit field (KIP-430)."""
        return sum(
            1 << operation
            for operation in OPERATIONS_OF[resource_type]
            if self.allows(requester, operation, resource_type, name)
        )


def may_describe(authorizer: Authorizer, org: str, principal: str, host: str, topic: str) -> bool:
    """Whether a client may describe a topic."""
    if authorizer.is_super_user(principal):
        return True
    return authorizer.allows(Requester(principal, host, org), Operation.DESCRIBE, ResourceType.TOPIC, topic)
