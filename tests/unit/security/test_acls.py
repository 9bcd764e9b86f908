"""Access rules against Kafka's semantics (StandardAuthorizerTest, AclAuthorizerTest)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.security.acls import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    AclBinding,
    AclFilter,
    AclTable,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tidegate.security.identity import NAME_LENGTH_MAX

ALICE = "User:alice"
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


def rule(
    operation: Operation,
    name: str = "orders",
    *,
    deny: bool = False,
    prefixed: bool = False,
    principal: str = ALICE,
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> AclBinding:
    """A rule with defaults for all that a case does not vary."""
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    permission = Permission.DENY if deny else Permission.ALLOW
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def allowed(
    rules: list[AclBinding],
    operation: Operation,
    name: str = "orders",
    *,
    host: str = "10.0.0.7",
    default: bool = False,
) -> bool:
    """Alice's right on a topic."""
    return AclTable(rules).decide(ALICE, host, operation, TOPIC, name, allowed_without_rules=default).allowed


@pytest.mark.parametrize(
    ("rules", "operation", "name", "expected"),
    [
        ([], Operation.READ, "orders", False),
        ([rule(Operation.READ)], Operation.READ, "orders", True),
        ([rule(Operation.READ)], Operation.WRITE, "orders", False),
        ([rule(Operation.READ)], Operation.READ, "orders2", False),
        ([rule(Operation.ALL)], Operation.ALTER_CONFIGS, "orders", True),
        ([rule(Operation.READ, "*")], Operation.READ, "anything", True),
        ([rule(Operation.READ, "ord", prefixed=True)], Operation.READ, "orders", True),
        ([rule(Operation.READ, "ord", prefixed=True)], Operation.READ, "or", False),
        ([rule(Operation.READ, principal="User:*")], Operation.READ, "orders", True),
        ([rule(Operation.READ, principal="User:bob")], Operation.READ, "orders", False),
        ([rule(Operation.READ), rule(Operation.READ, deny=True)], Operation.READ, "orders", False),
        ([rule(Operation.READ), rule(Operation.ALL, "*", deny=True)], Operation.READ, "orders", False),
        (
            [rule(Operation.ALL, "*"), rule(Operation.READ, "ord", prefixed=True, deny=True)],
            Operation.READ,
            "ord",
            False,
        ),
        ([rule(Operation.ALL), rule(Operation.WRITE, deny=True)], Operation.READ, "orders", True),
    ],
)
def test_decide_literal_prefixed_wildcard_and_deny(
    rules: list[AclBinding], operation: Operation, name: str, expected: bool
) -> None:
    assert allowed(rules, operation, name) is expected


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_decide_allow_implies_describe_and_deny_does_not(operation: Operation) -> None:
    assert allowed([rule(operation)], Operation.DESCRIBE)
    assert allowed([rule(Operation.DESCRIBE), rule(operation, deny=True)], Operation.DESCRIBE)
    assert not allowed([rule(operation), rule(Operation.DESCRIBE, deny=True)], Operation.DESCRIBE)


def test_decide_alter_configs_implies_describe_configs_only() -> None:
    assert allowed([rule(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS)
    assert not allowed([rule(Operation.ALTER_CONFIGS)], Operation.DESCRIBE)


@pytest.mark.parametrize(
    ("rule_host", "host", "expected"),
    [
        ("*", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.8", "10.0.0.7", False),
        ("10.0.0.0/8", "10.9.9.9", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("2001:db8::/32", "2001:db8::1", True),
        ("2001:db8::/32", "10.0.0.1", False),
        ("10.0.0.0/8", "", False),
    ],
)
def test_decide_host_is_an_address_or_a_range(rule_host: str, host: str, expected: bool) -> None:
    assert allowed([rule(Operation.READ, host=rule_host)], Operation.READ, host=host) is expected


def test_decide_without_rules_of_the_resource_takes_the_default() -> None:
    assert allowed([], Operation.READ, default=True)
    assert allowed([rule(Operation.READ, "other", principal="User:bob")], Operation.READ, default=True)
    assert not allowed([rule(Operation.READ, principal="User:bob")], Operation.READ, default=True)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], False),
        ([rule(Operation.WRITE)], True),
        ([rule(Operation.READ)], False),
        ([rule(Operation.WRITE), rule(Operation.WRITE, "*", deny=True)], False),
        ([rule(Operation.WRITE), rule(Operation.WRITE, "other", deny=True)], True),
        ([rule(Operation.WRITE, "ord", prefixed=True), rule(Operation.WRITE, "o", prefixed=True, deny=True)], False),
        ([rule(Operation.WRITE, "ord", prefixed=True), rule(Operation.WRITE, "orders", deny=True)], True),
    ],
)
def test_any_resource_some_topic_may_be_written(rules: list[AclBinding], expected: bool) -> None:
    assert AclTable(rules).any_resource(ALICE, "10.0.0.7", Operation.WRITE, TOPIC) is expected


@pytest.mark.parametrize(
    ("binding", "reason"),
    [
        (rule(Operation.READ), None),
        (rule(Operation.CREATE, CLUSTER_NAME, kind=CLUSTER), None),
        (rule(Operation.CREATE, "other", kind=CLUSTER), "the only cluster resource"),
        (rule(Operation.CLUSTER_ACTION), "no operation CLUSTER_ACTION"),
        (rule(Operation.WRITE, kind=GROUP), "no operation WRITE"),
        (rule(Operation.READ, ""), "empty"),
        (rule(Operation.READ, principal="alice"), "not <type>:<name>"),
        (rule(Operation.READ, host="example.org"), "neither"),
        (rule(Operation.ANY), "no operation ANY"),
        (rule(Operation.READ, "o" * NAME_LENGTH_MAX, principal="User:" + "a" * NAME_LENGTH_MAX), None),
        (rule(Operation.READ, "o" * (NAME_LENGTH_MAX + 1)), "longer than 1024 characters"),
        (rule(Operation.READ, principal="User:" + "a" * (NAME_LENGTH_MAX + 1)), "longer than 1024 characters"),
        (rule(Operation.READ, principal="T" * (NAME_LENGTH_MAX + 1) + ":alice"), "longer than 1024 characters"),
        (rule(Operation.READ, host="fe80::1%" + "z" * NAME_LENGTH_MAX), "longer than 1024 characters"),
    ],
)
def test_reason_not_creatable(binding: AclBinding, reason: str | None) -> None:
    found = binding.reason_not_creatable()

    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        (None, PatternType.ANY, {"orders", "ord", "*"}),
        ("orders", PatternType.LITERAL, {"orders"}),
        ("orders", PatternType.PREFIXED, set()),
        ("orders", PatternType.ANY, {"orders"}),
        ("orders", PatternType.MATCH, {"orders", "ord", "*"}),
        ("other", PatternType.MATCH, {"*"}),
    ],
)
def test_filter_patterns(name: str | None, pattern: PatternType, expected: set[str]) -> None:
    rules = [rule(Operation.READ), rule(Operation.READ, "ord", prefixed=True), rule(Operation.READ, "*")]
    selector = AclFilter(ResourceType.ANY, name, pattern, None, None, Operation.ANY, Permission.ANY)

    assert {one.name for one in rules if selector.matches(one)} == expected


_TEXT = st.text(min_size=1, max_size=12)


@given(
    st.sampled_from([(kind, operation) for kind, operations in OPERATIONS_OF.items() for operation in operations]),
    _TEXT,
    st.booleans(),
    _TEXT,
    st.sampled_from(["*", "10.0.0.0/8", "::1"]),
)
def test_field_reads_back_any_names(
    kind: tuple[ResourceType, Operation], name: str, prefixed: bool, user: str, host: str
) -> None:
    binding = rule(kind[1], name, prefixed=prefixed, principal=f"User:{user}", host=host, kind=kind[0])

    assert AclBinding.of_field(binding.field()) == binding


@pytest.mark.parametrize("host", ["fe80::1%a|b", "fe80::1%|"])
def test_reason_not_creatable_host_with_a_field_separator(host: str) -> None:
    """Such a stored rule could not be read, and with it none of the cluster."""
    with pytest.raises(ValueError, match="not part of an access rule"):
        AclBinding.of_field(rule(Operation.READ, host=host).field())

    assert rule(Operation.READ, host=host).reason_not_creatable() is not None
    assert rule(Operation.READ, host="fe80::1%eth0").reason_not_creatable() is None


@given(
    st.lists(st.sampled_from(["a", "ab", "abc", "b", "*"]), max_size=6), st.booleans(), st.sampled_from(["a", "abc"])
)
def test_decide_a_deny_that_covers_always_wins(names: list[str], prefixed: bool, asked: str) -> None:
    rules = [rule(Operation.READ, name, prefixed=prefixed and name != "*") for name in names]
    denied = [*rules, rule(Operation.READ, asked[0], prefixed=True, deny=True)]

    assert not allowed(denied, Operation.READ, asked)


class _Name(str):
    """A name that counts the prefixes taken of it."""

    prefixes = 0

    def __getitem__(self, key: Any) -> str:
        self.prefixes += 1
        return super().__getitem__(key)


def test_covering_takes_only_prefixes_of_lengths_that_rules_have() -> None:
    """A group id may have 32 kB: each prefix of it is a copy."""
    rules = [rule(Operation.READ, "x" * length, prefixed=True) for length in (1, 3, 3, 40_000)]
    name = _Name("x" * 32_000)

    assert [len(one.name) for one in AclTable(rules).covering(TOPIC, name)] == [1, 3]
    assert name.prefixes == 2
