"""Rendezvous hashing: the same everywhere, even, and only what a broker had moves when it goes."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.cluster.placement import coordinator_of, leader_of

TOPIC = uuid.UUID(int=0x1234_5678_9ABC_DEF0_0FED_CBA9_8765_4321)
GOLDEN_LEADERS = [1, 3, 2, 1, 1, 2, 3, 1, 3, 3, 2, 1]
GOLDEN_COORDINATORS = [3, 1, 2, 3, 3, 2, 3, 2, 1, 2, 3, 3]

node_ids = st.sets(st.integers(0, 10_000), min_size=1, max_size=12)
topic_ids = st.uuids()


def brokers(*ids: int) -> list[BrokerInfo]:
    return [BrokerInfo(node_id, {"PLAINTEXT": ("h", 9092)}, None, "1", "serving") for node_id in ids]


def leaders(topic_id: uuid.UUID, count: int, *ids: int) -> list[int]:
    return [leader_of(topic_id, partition, brokers(*ids)).node_id for partition in range(count)]


def test_placement_never_changes_between_releases() -> None:
    """Brokers of two versions live side by side in a rolling upgrade."""
    assert leaders(TOPIC, 12, 1, 2, 3) == GOLDEN_LEADERS
    assert [coordinator_of(shard, brokers(1, 2, 3)).node_id for shard in range(12)] == GOLDEN_COORDINATORS


@given(topic_ids, node_ids, st.randoms())
def test_order_of_the_brokers_does_not_matter(topic_id: uuid.UUID, ids: set[int], random: object) -> None:
    shuffled = list(ids)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert leaders(topic_id, 8, *sorted(ids)) == leaders(topic_id, 8, *shuffled)


@given(topic_ids, node_ids, st.data())
def test_placement_removed_broker_moves_only_its_own(topic_id: uuid.UUID, ids: set[int], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(ids)))
    rest = ids - {gone} or {20_000}
    before, after = leaders(topic_id, 16, *ids), leaders(topic_id, 16, *rest)

    for one, other in zip(before, after, strict=True):
        if one == gone:
            assert other in rest
        elif len(ids) > 1:
            assert one == other


@pytest.mark.parametrize("count", [2, 3, 7])
def test_load_is_even(count: int) -> None:
    ids = range(1, count + 1)
    topics = [uuid.uuid5(TOPIC, str(n)) for n in range(200)]
    partitions = Counter(leader for topic in topics for leader in leaders(topic, 10, *ids))
    first = Counter(leaders(topic, 1, *ids)[0] for topic in topics)

    assert max(partitions.values()) < 1.15 * 2_000 / count
    assert max(first.values()) < 1.5 * 200 / count


def test_shards_are_even() -> None:
    spread = Counter(coordinator_of(shard, brokers(1, 2, 3)).node_id for shard in range(50))

    assert min(spread.values()) >= 10
