"""Names of keys are told apart as `store/keys.py` makes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tidegate.admin.redis_keys import KINDS, classify
from tidegate.store.keys import ClusterKeys, GroupKeys, LogKeys, ShardKeys

CHANNELS = {"topic_changes", "wake"}
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
    ):
        for one in dataclasses.fields(keys):  # type: ignore[arg-type]
            if one.name not in but | CHANNELS:
                yield getattr(keys, one.name)
    yield cluster.topic("acme", "orders.eu")
    yield cluster.figures(4)
    yield cluster.proof_at(17)
    yield cluster.probe_at(17)


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
def test_of_what_a_key_is(name: str, kind: str, parts: list[tuple[str, str]]) -> None:
    found = classify(name, "t:g")

    assert found is not None
    assert found.kind.name == kind
    assert [(what, value) for what, value in found.of() if what != "shard"] == [
        (what, value) for what, value in parts if what != "shard"
    ]


@pytest.mark.parametrize("name", ["other:{cluster}:info", "t:g:{cluster}:nothing", "t:g", "t:g:{co:1}:group:acme:g:x"])
def test_what_is_not_ours(name: str) -> None:
    assert classify(name, "t:g") is None
