"""Access control lists with Kafka's semantics. Pure: no Redis, no sockets.

Source: StandardAuthorizerData.java, AclEntry.java, ResourcePattern.java (KIP-11, KIP-290, KIP-1276 for address ranges).
A matching DENY wins over every ALLOW. ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE; ALLOW of ALTER_CONFIGS
implies DESCRIBE_CONFIGS; a DENY implies nothing.
"""

from __future__ import annotations

import enum
import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tidegate.security.identity import NAME_LENGTH_MAX

WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a cluster resource."""
FIELD_SEPARATOR: Final = "|"


class ResourceType(enum.IntEnum):
    """Kafka's codes (`ResourceType.java`)."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """Kafka's codes (`PatternType.java`). ANY and MATCH occur in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    """Kafka's codes (`AclOperation.java`)."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    """Kafka's codes (`AclPermissionType.java`)."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""An operation -> the operations whose ALLOW grants it too."""

OPERATIONS_OF: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that each kind of resource has (`AclEntry.supportedOperations`)."""


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One rule: a principal from a host may (not) do an operation on the resources of a pattern."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def field(self) -> str:
        """The rule as the text of a hash field in Redis; the resource's name comes last, for it may have any sign."""
        words = (self.principal.replace("%", "%25").replace(FIELD_SEPARATOR, "%7C"), self.host)
        kinds = (self.permission.name, self.operation.name, self.resource_type.name, self.pattern_type.name)
        return FIELD_SEPARATOR.join((*words, *kinds, self.name))

    @classmethod
    def of_field(cls, text: str) -> AclBinding:
        """The reverse of `field`. Raises ValueError."""
        try:
            principal, host, permission, operation, kind, pattern, name = text.split(FIELD_SEPARATOR, 6)
            return cls(
                ResourceType[kind],
                name,
                PatternType[pattern],
                principal.replace("%7C", FIELD_SEPARATOR).replace("%25", "%"),
                host,
                Operation[operation],
                Permission[permission],
            )
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is not part of an access rule") from None

    def reason_not_creatable(self) -> str | None:
        """Why Kafka refuses to create this rule (INVALID_REQUEST), or None."""
        if self.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            return f"a rule's pattern is LITERAL or PREFIXED, not {self.pattern_type.name}"
        if self.resource_type not in OPERATIONS_OF:
            return f"a rule is about one kind of resource, not {self.resource_type.name}"
        if self.permission not in (Permission.ALLOW, Permission.DENY):
            return f"a rule's permission is ALLOW or DENY, not {self.permission.name}"
        if self.operation is not Operation.ALL and self.operation not in OPERATIONS_OF[self.resource_type]:
            return f"{self.resource_type.name} resources have no operation {self.operation.name}"
        if not self.name:
            return "the resource's name is empty"
        if self.resource_type is ResourceType.CLUSTER and self.name not in (CLUSTER_NAME, WILDCARD):
            return f"the only cluster resource is {CLUSTER_NAME!r}"
        kind, _, principal = self.principal.partition(":")
        if not kind or not principal:
            return f"principal {self.principal!r} is not <type>:<name>, such as User:alice"
        if any(len(one) > NAME_LENGTH_MAX for one in (self.name, kind, principal, self.host)):
            return f"the name of a resource, a principal or a host is longer than {NAME_LENGTH_MAX} characters"
        return _reason_of_host(self.host)


def _reason_of_host(host: str) -> str | None:
    """The zone of an address, as in fe80::1%eth0, may have any sign but FIELD_SEPARATOR, at which rules are read."""
    if host == WILDCARD:
        return None
    try:
        ipaddress.ip_network(host, strict=False)
    except ValueError:
        return f"host {host!r} is neither *, an address, nor a range of addresses"
    return f"host {host!r} has a {FIELD_SEPARATOR!r}" if FIELD_SEPARATOR in host else None


@dataclass(frozen=True, slots=True)
class AclFilter:
    """A filter over rules; None and ANY match everything (`AclBindingFilter.java`)."""

    resource_type: ResourceType
    name: str | None
    pattern_type: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, rule: AclBinding) -> bool:
        """Whether a rule is selected. MATCH selects every pattern that covers `name`."""
        return (
            self.resource_type in (ResourceType.ANY, rule.resource_type)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
            and self._matches_pattern(rule)
        )

    def _matches_pattern(self, rule: AclBinding) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, rule.pattern_type):
            return False
        if self.name is None or self.name == rule.name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if rule.pattern_type is PatternType.LITERAL:
            return rule.name == WILDCARD
        return self.name.startswith(rule.name)

    def reason_invalid(self) -> str | None:
        """Why Kafka refuses this filter (INVALID_REQUEST), or None."""
        unknown = (self.resource_type, self.pattern_type, self.operation, self.permission)
        return "the filter has an unknown element" if any(one == 0 for one in unknown) else None


@lru_cache(maxsize=4096)
def _network(host: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(host, strict=False)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def host_matches(rule_host: str, host: str) -> bool:
    """Whether a client's address is that of a rule: `*`, an address, or a range such as 10.0.0.0/8."""
    if rule_host in (WILDCARD, host):
        return True
    network = _network(rule_host)
    if network is None:
        return False
    try:
        return ipaddress.ip_address(host) in network
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an operation is allowed, and the rule that decided; None if none did (the default did)."""

    allowed: bool
    rule: AclBinding | None = None


class AclTable:
    """All rules of one organisation, indexed by kind of resource and name. Immutable."""

    def __init__(self, rules: Iterable[AclBinding] = ()) -> None:
        self.rules = tuple(sorted(set(rules)))
        self._literal: dict[tuple[ResourceType, str], list[AclBinding]] = defaultdict(list)
        self._prefixed: dict[ResourceType, dict[str, list[AclBinding]]] = defaultdict(dict)
        for rule in self.rules:
            if rule.pattern_type is PatternType.LITERAL:
                self._literal[rule.resource_type, rule.name].append(rule)
            else:
                self._prefixed[rule.resource_type].setdefault(rule.name, []).append(rule)
        self._prefix_lengths = {kind: sorted({len(name) for name in names}) for kind, names in self._prefixed.items()}

    def covering(self, resource_type: ResourceType, name: str) -> Iterator[AclBinding]:
        """The rules whose pattern covers a resource."""
        yield from self._literal.get((resource_type, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource_type, WILDCARD), ())
        prefixed = self._prefixed.get(resource_type)
        if prefixed:
            for length in self._prefix_lengths[resource_type]:
                if length > len(name):
                    break
                yield from prefixed.get(name[:length], ())

    def decide(
        self,
        principal: str,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        allowed_without_rules: bool,
    ) -> Decision:
        """Kafka's decision: a DENY first, then an ALLOW; without any rule on the resource the given default."""
        found: Decision | None = None
        has_rules = False
        implied = IMPLIED_BY.get(operation, frozenset())
        for rule in self.covering(resource_type, name):
            has_rules = True
            if rule.principal not in (principal, "User:*") or not host_matches(rule.host, host):
                continue
            if rule.permission is Permission.DENY:
                if rule.operation in (operation, Operation.ALL):
                    return Decision(False, rule)
            elif found is None and (rule.operation in (operation, Operation.ALL) or rule.operation in implied):
                found = Decision(True, rule)
        return found or Decision(allowed_without_rules and not has_rules)

    def any_resource(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether some resource of this kind may be used (`authorizeByResourceType`, KIP-679): for idempotent writes.

        An ALLOW counts unless a DENY of the same operation covers all that it covers.
        """
        mine = [
            rule
            for rule in self.rules
            if rule.resource_type is resource_type
            and rule.principal in (principal, "User:*")
            and host_matches(rule.host, host)
            and rule.operation in (operation, Operation.ALL)
        ]
        denied = [rule for rule in mine if rule.permission is Permission.DENY]
        return any(
            rule.permission is Permission.ALLOW and not any(_covers(deny, rule) for deny in denied) for rule in mine
        )


def _covers(wide: AclBinding, narrow: AclBinding) -> bool:
    """Whether the pattern of one rule covers every name of the other's."""
    if wide.pattern_type is PatternType.LITERAL:
        return wide.name == WILDCARD or (narrow.pattern_type is PatternType.LITERAL and wide.name == narrow.name)
    return narrow.name.startswith(wide.name) and not (
        narrow.pattern_type is PatternType.LITERAL and narrow.name == WILDCARD
    )
