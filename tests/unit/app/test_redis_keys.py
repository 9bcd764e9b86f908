"""Names of keys are classified as `store/keys.py` makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tidegate.cli.client.redis_keys import KINDS, classify
from tidegate.store.keys import ClusterKeys, GroupKeys, LogKeys, ShardKeys, TransactionKeys

CHANNELS = {
    "acl_changes", "available", "compaction_requests", "quota_changes", "resource_config_changes", "topic_changes",
    "user_changes", "wake",
}  # fmt: skip
TOPIC_ID = "0123456789abcdef0123456789abcdef"


def made() -> Iterator[str]:
    """Every key that the product makes."""
    cluster = ClusterKeys("t:g")
    group = GroupKeys.of("t:g", 50, "acme", "a:b/ c*")
    log = LogKeys.of("t:g", "acme", "orders.eu", 7, TOPIC_ID)
    for keys, but in (
        (cluster, {"prefix"}),
        (ShardKeys("t:g", 3), {"prefix", "shard"}),
        (group, {"org", "group_id", "ref", "shard_keys"}),
        (log, set[str]()),
        (TransactionKeys.of("t:g", 50, "acme", "T:1"), {"org", "transactional_id", "shard", "ref"}),
    ):
        for one in dataclasses.fields(keys):  # type: ignore[arg-type]
            if one.name not in but | CHANNELS:
                yield getattr(keys, one.name)
    yield LogKeys.of("t:g", "acme", "orders.eu", 7, TOPIC_ID, "record").log
    yield log.compacted(TOPIC_ID)
    yield from group.share(TOPIC_ID, 3)
    yield cluster.topic("acme", "orders.eu")
    yield cluster.figures(4)
    yield cluster.quota_bucket("acme/producer_byte_rate/user=a%3Ab")
    yield cluster.proof_at(17)
    yield cluster.probe_at(17)
    yield cluster.org_groups("acme")


def test_every_key_has_its_own_kind() -> None:
    found = [classify(name, "t:g") for name in made()]

    assert None not in found
    assert sorted(one.kind.name for one in found if one) == sorted(kind.name for kind in KINDS)


@pytest.mark.parametrize(
    ("name", "kind", "parts"),
    [
        (
            GroupKeys.of("t:g", 50, "acme", "a:b/ c*").offsets,
            "offsets",
            [("org", "acme"), ("group", "a:b/ c*"), ("shard", "25")],
        ),
        (
            LogKeys.of("t:g", "acme", "orders.eu", 7, TOPIC_ID).log,
            "log",
            [("org", "acme"), ("topic", "orders.eu"), ("partition", "7"), ("topic id", TOPIC_ID)],
        ),
        (GroupKeys.of("t:g", 50, "acme", "").group, "group", [("org", "acme"), ("group", ""), ("shard", "0")]),
    ],
    ids=["a group with a strange id", "a log", "the group without a name"],
)
def test_key_has_its_kind(name: str, kind: str, parts: list[tuple[str, str]]) -> None:
    found = classify(name, "t:g")

    assert found is not None
    assert found.kind.name == kind
    assert [(what, value) for what, value in found.of() if what != "shard"] == [
        (what, value) for what, value in parts if what != "shard"
    ]


@pytest.mark.parametrize("name", ["other:{cluster}:info", "t:g:{cluster}:nothing", "t:g", "t:g:{co:1}:group:acme:g:x"])
def test_key_of_another_program_is_unknown(name: str) -> None:
    assert classify(name, "t:g") is None
