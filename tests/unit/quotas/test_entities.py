"""Kafka's rules for quotas: which entity applies, which are valid, which a filter selects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvalidRequest, UnsupportedVersion
from tidegate.quotas.entities import Entity, Filter, Quota, canonical_address
from tidegate.quotas.table import QuotaTable

USER_CLIENT = [
    {"user": "alice", "client-id": "app"},
    {"user": "alice", "client-id": None},
    {"user": "alice"},
    {"user": None, "client-id": "app"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "app"},
    {"client-id": None},
]
"""Kafka's order of precedence (ClientQuotaManager)."""
SHARED_BY = ["both", "both", "user", "both", "both", "user", "client", "client"]
BUCKETS = {"both": "user=alice&client-id=app", "user": "user=alice", "client": "client-id=app"}


def table(*quotas: tuple[str, Quota, dict[str, Any], float]) -> QuotaTable:
    stored = {
        f"{org}/{quota}/{Entity.of(names).text()}".encode(): repr(value).encode() for org, quota, names, value in quotas
    }
    return QuotaTable.of_stored(stored)


@pytest.mark.parametrize("level", range(len(USER_CLIENT)))
def test_precedence_most_specific_entity_applies(level: int) -> None:
    """With every entity below a level set, the level's own value applies, to the bucket that Kafka would use."""
    rows = [("default", Quota.FETCH, names, float(i + 1)) for i, names in enumerate(USER_CLIENT)][level:]

    limits = table(*rows).of_client("default", "alice", "app", Quota.FETCH)

    assert limits == [(f"default/consumer_byte_rate/{BUCKETS[SHARED_BY[level]]}", level + 1.0)]


def test_precedence_is_by_quota() -> None:
    """A more specific entity without a value for this quota does not hide a less specific one that has it."""
    rows = table(
        ("default", Quota.PRODUCE, {"user": "alice", "client-id": "app"}, 1.0),
        ("default", Quota.FETCH, {"client-id": None}, 2.0),
    )

    assert rows.of_client("default", "alice", "app", Quota.FETCH) == [("default/consumer_byte_rate/client-id=app", 2.0)]
    assert rows.of_client("default", "bob", "app", Quota.PRODUCE) == []


def test_org_limit_is_on_top_of_the_clients() -> None:
    rows = table(
        ("acme", Quota.PRODUCE, {"user": None}, 1.0),
        ("default", Quota.PRODUCE, {"org": None}, 5.0),
        ("default", Quota.PRODUCE, {"org": "umbrella"}, 7.0),
    )

    assert rows.of_client("acme", "alice", "app", Quota.PRODUCE) == [
        ("acme/producer_byte_rate/user=alice", 1.0),
        ("default/producer_byte_rate/org=acme", 5.0),
    ]
    assert rows.of_client("umbrella", "bob", "app", Quota.PRODUCE) == [("default/producer_byte_rate/org=umbrella", 7.0)]


def test_org_limit_of_another_org_has_no_effect() -> None:
    """What `acme` stored under `org` is no limit of anybody."""
    rows = table(("acme", Quota.PRODUCE, {"org": "umbrella"}, 1.0))

    assert rows.of_client("umbrella", "bob", "app", Quota.PRODUCE) == []


def test_address_has_its_own_bucket_under_the_default() -> None:
    rows = table(
        ("default", Quota.CONNECTION, {"ip": None}, 3.0), ("default", Quota.CONNECTION, {"ip": "10.0.0.9"}, 9.0)
    )

    assert rows.of_address("10.0.0.1") == [("default/connection_creation_rate/ip=10.0.0.1", 3.0)]
    assert rows.of_address("10.0.0.9") == [("default/connection_creation_rate/ip=10.0.0.9", 9.0)]
    assert canonical_address("::ffff:10.0.0.9") == "10.0.0.9"


@given(name=st.text(min_size=1))
def test_entity_text_is_reversible(name: str) -> None:
    """Any name: a user may be called `<default>`, or have the signs of the text's own grammar."""
    entity = Entity.of({"user": name, "client-id": None})
    try:
        name.encode()
    except UnicodeEncodeError:
        return

    assert Entity.of_text(entity.text()) == entity


@pytest.mark.parametrize(
    ("names", "key", "value"),
    [
        ({}, "producer_byte_rate", 1.0),
        ({"group": "g"}, "producer_byte_rate", 1.0),
        ({"user": ""}, "producer_byte_rate", 1.0),
        ({"ip": "10.0.0.1", "user": "alice"}, "connection_creation_rate", 1.0),
        ({"org": "acme", "user": "alice"}, "producer_byte_rate", 1.0),
        ({"ip": "10.0.0"}, "connection_creation_rate", 1.0),
        ({"ip": "10.0.0.1"}, "producer_byte_rate", 1.0),
        ({"user": "alice"}, "connection_creation_rate", 1.0),
        ({"user": "alice"}, "leader.replication.throttled.rate", 1.0),
        ({"user": "alice"}, "producer_byte_rate", 0.0),
        ({"user": "alice"}, "producer_byte_rate", -1.0),
        ({"user": "alice"}, "producer_byte_rate", 1.5),
        ({"user": "alice"}, "producer_byte_rate", 1e19),
        ({"user": "alice"}, "producer_byte_rate", float("nan")),
        ({"user": "alice"}, "request_percentage", float("inf")),
        ({"ip": None}, "connection_creation_rate", 2.0**31),
    ],
)
def test_invalid_quota_is_refused(names: dict[str, str | None], key: str, value: float) -> None:
    with pytest.raises(InvalidRequest):
        Entity.of(names).checked().check_quota(key, value)


def test_fractional_rates_are_valid_where_kafka_has_doubles() -> None:
    alice = Entity.of({"user": "alice"}).checked()

    assert alice.check_quota("request_percentage", 0.5) is Quota.REQUEST
    assert alice.check_quota("controller_mutation_rate", 0.1) is Quota.MUTATION


ALL = [*USER_CLIENT, {"ip": "10.0.0.1"}, {"ip": None}]


@pytest.mark.parametrize(
    ("components", "strict", "selected"),
    [
        ([], False, ALL),
        ([], True, []),
        ([("user", 0, "alice")], False, USER_CLIENT[:3]),
        ([("user", 0, "alice")], True, [{"user": "alice"}]),
        ([("user", 1, None)], True, [{"user": None}]),
        ([("user", 2, None)], True, [{"user": "alice"}, {"user": None}]),
        ([("user", 2, None), ("client-id", 1, None)], True, [USER_CLIENT[1], USER_CLIENT[4]]),
        ([("ip", 2, None)], False, [{"ip": "10.0.0.1"}, {"ip": None}]),
    ],
)
def test_filter_selects_as_kafka(components: Any, strict: bool, selected: list[dict[str, Any]]) -> None:
    found = Filter(components, strict)

    assert [names for names in ALL if found.selects(Entity.of(names))] == selected


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("", 0, "x")], InvalidRequest),
        ([("user", 0, "x"), ("user", 1, None)], InvalidRequest),
        ([("group", 0, "x")], UnsupportedVersion),
        ([("user", 0, None)], InvalidRequest),
        ([("user", 1, "x")], InvalidRequest),
        ([("user", 2, "x")], InvalidRequest),
        ([("user", 3, None)], InvalidRequest),
        ([("ip", 2, None), ("user", 2, None)], InvalidRequest),
    ],
)
def test_filter_malformed_is_refused(components: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Filter(components, False)
