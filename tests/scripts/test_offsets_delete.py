"""OffsetDelete, and the offsets of deleted topics (scenario 95)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import pytest
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

from tests.support.asking import ask_handler
from tests.support.clock import SteppedClock
from tests.support.handlers import FAR_MS, Broker, FakeCatalog, given_group, topic
from tidegate.apis.call import Client
from tidegate.apis.slices import PARTITIONS
from tidegate.errors import CoordinatorNotAvailable, GroupIdNotFound, InvalidGroupId, NonEmptyGroup, RequestTimedOut
from tidegate.groups import offsets, staged_offsets
from tidegate.groups.commits import Commit
from tidegate.groups.offsets import entry_json
from tidegate.groups.retention import forget_topic
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

NONE, UNKNOWN_PARTITION, SUBSCRIBED = 0, 3, 86
T1, T2 = topic("t1", number=1), topic("t2", number=2)


async def given_offsets(store: Store, keys: GroupKeys, *fields: str, topic_id: str = T1.topic_hex) -> None:
    """Committed offsets of some partitions."""
    for field in fields:
        await store.command("HSET", keys.offsets, field, entry_json(5, -1, topic_id, "") + ',"commit_time":1}')


async def left(store: Store, keys: GroupKeys) -> list[str]:
    """The fields that are left."""
    return sorted(field.decode() for field in await store.command("HKEYS", keys.offsets))


async def delete(broker: Broker, wanted: dict[str, list[int]], group_id: str = "orders") -> dict[str, int]:
    """OffsetDelete; field -> code."""
    response = await broker.ask(
        OffsetDeleteRequest(
            group_id=group_id,
            topics=tuple(
                OffsetDeleteRequestTopic(
                    name=name,
                    partitions=tuple(OffsetDeleteRequestPartition(partition_index=index) for index in indexes),
                )
                for name, indexes in wanted.items()
            ),
        )
    )
    assert response.error_code.value == NONE
    return {
        f"{one.name}:{partition.partition_index}": partition.error_code.value
        for one in response.topics
        for partition in one.partitions
    }


async def test_scenario_95_only_unsubscribed_topics_are_deleted(broker: Broker, store: Store, keys: GroupKeys) -> None:
    await given_group(store, keys, subscribed=["t1"])
    await given_offsets(store, keys, "t1:0", "t2:0", "t2:1")

    assert await delete(broker, {"t1": [0, 1], "t2": [0, 3], "nowhere": [0]}) == {
        "t1:0": SUBSCRIBED,
        "t1:1": SUBSCRIBED,
        "t2:0": NONE,
        "t2:3": NONE,
        "nowhere:0": UNKNOWN_PARTITION,
    }
    assert await left(store, keys) == ["t1:0", "t2:1"]


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
async def test_scenario_95_an_unknown_subscription_protects_every_topic(
    broker: Broker, store: Store, keys: GroupKeys, state: str
) -> None:
    await given_group(store, keys, state=state, subscribed=None)
    await given_offsets(store, keys, "t2:0")
    assert await delete(broker, {"t2": [0]}) == {"t2:0": SUBSCRIBED}

    await given_group(store, keys, state=state, subscribed=[], generation=2, subscribed_generation=1)
    assert await delete(broker, {"t2": [0]}) == {"t2:0": SUBSCRIBED}
    assert await left(store, keys) == ["t2:0"]


async def test_scenario_95_a_phase_after_empty_protects_nothing(broker: Broker, store: Store, keys: GroupKeys) -> None:
    await given_group(store, keys, state="PreparingRebalance", subscribed=[])
    await given_offsets(store, keys, "t1:0")
    assert await delete(broker, {"t1": [0]}) == {"t1:0": NONE}
    assert await left(store, keys) == []


async def test_scenario_95_groups_of_other_types_must_be_empty(broker: Broker, store: Store, keys: GroupKeys) -> None:
    await given_group(store, keys, protocol_type="connect", subscribed=None)
    await given_offsets(store, keys, "t1:0")
    with pytest.raises(NonEmptyGroup):
        await delete(broker, {"t1": [0]})
    with pytest.raises(NonEmptyGroup):
        await delete(broker, {"nowhere": [0]})
    assert await left(store, keys) == ["t1:0"]

    other = store.group_keys("default", "idle")
    await given_group(store, other, state="Empty", protocol_type="connect", members=(), subscribed=None)
    await given_offsets(store, other, "t1:0", "t1:1")
    assert await delete(broker, {"t1": [0]}, "idle") == {"t1:0": NONE}
    assert await left(store, other) == ["t1:1"]


async def test_topic_without_partitions_is_answered_only_if_unknown(
    broker: Broker, store: Store, keys: GroupKeys
) -> None:
    await given_group(store, keys)
    topics = tuple(OffsetDeleteRequestTopic(name=name, partitions=()) for name in ("t1", "nowhere"))

    response = await broker.ask(OffsetDeleteRequest(group_id="orders", topics=topics))

    assert [one.name for one in response.topics] == ["nowhere"]


@pytest.mark.parametrize("topics", [{"wide": 2_500}, {f"t{number}": 1 for number in range(1_200)}])
async def test_offsets_of_many_partitions_are_deleted_in_several_scripts(
    store: Store, keys: GroupKeys, topics: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(
        store, FakeCatalog(*(topic(name, count, number) for number, (name, count) in enumerate(topics.items())))
    )
    await given_group(store, keys, subscribed=[])
    await given_offsets(store, keys, *(f"{name}:{count - 1}" for name, count in topics.items()))
    deletions, delete_part = list[int](), offsets.delete

    async def counted(
        store: Store, keys: GroupKeys, broker: str, part: Mapping[str, Sequence[int]], *times: Any
    ) -> Any:
        deletions.append(sum(map(len, part.values())))
        return await delete_part(store, keys, broker, part, *times)

    monkeypatch.setattr(offsets, "delete", counted)
    codes = await delete(broker, {name: [*range(count)] for name, count in topics.items()})

    assert len(deletions) > 1 and max(deletions) <= PARTITIONS and sum(deletions) == sum(topics.values())
    assert codes == {f"{name}:{index}": NONE for name, count in topics.items() for index in range(count)}
    assert await left(store, keys) == []


async def test_request_to_delete_nothing_fails_as_the_group_does(broker: Broker, store: Store, keys: GroupKeys) -> None:
    with pytest.raises(GroupIdNotFound):
        await delete(broker, {})
    await given_group(store, keys)
    assert await delete(broker, {}) == {}


async def test_scenario_95_an_absent_group_and_an_empty_name(broker: Broker, store: Store, keys: GroupKeys) -> None:
    with pytest.raises(GroupIdNotFound):
        await delete(broker, {"t1": [0]})
    with pytest.raises(InvalidGroupId):
        await delete(broker, {"t1": [0]}, "")


async def test_delete_last_offset_keeps_group(broker: Broker, store: Store, keys: GroupKeys) -> None:
    await given_group(store, keys, state="Empty", protocol_type="", members=(), subscribed=None)
    await given_offsets(store, keys, "t1:0")

    for _ in range(2):
        assert await delete(broker, {"t1": [0]}) == {"t1:0": NONE}
        assert await left(store, keys) == []
    assert await store.command("EXISTS", keys.group) == 1


async def test_delete_offsets_expires_overdue_members_first(clock: SteppedClock, clock_store: Store) -> None:
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, protocol_type="connect", subscribed=None, deadline=clock.now_ms + 10_000)
    await given_offsets(clock_store, keys, "t1:0")
    with pytest.raises(NonEmptyGroup):
        await offsets.delete(clock_store, keys, "1", {"t1": [0]})
    await clock.advance(10_000)
    assert await offsets.delete(clock_store, keys, "1", {"t1": [0]}) == set()
    assert await left(clock_store, keys) == []


async def test_delete_offsets_lease_ended_refused(clock: SteppedClock, clock_store: Store) -> None:
    """As when the broker stood still with the script on its way: the group may have committed again."""
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, subscribed=[])
    await given_offsets(clock_store, keys, "t1:0")

    with pytest.raises(CoordinatorNotAvailable):
        await offsets.delete(clock_store, keys, "1", {"t1": [0]}, (clock.now_ms, 0))
    assert await left(clock_store, keys) == ["t1:0"]

    assert await offsets.delete(clock_store, keys, "1", {"t1": [0]}, (clock.now_ms + 1, 0)) == set()
    assert await left(clock_store, keys) == []


@pytest.mark.parametrize(
    ("committed_after_ms", "late_ms", "is_deleted"), [(1, 501, False), (1, 500, True), (0, 501, True)]
)
async def test_late_deletion_of_offsets_does_not_undo_a_newer_commit(
    clock: SteppedClock, clock_store: Store, committed_after_ms: int, late_ms: int, is_deleted: bool
) -> None:
    """The administrator repeated it through another broker, and the application started again."""
    keys = clock_store.group_keys("default", "orders")
    await given_group(clock_store, keys, subscribed=[])
    await given_offsets(clock_store, keys, "t1:0", "t2:0")
    arrived_ms = clock.now_ms
    newer = entry_json(5, -1, T1.topic_hex, "") + f',"commit_time":{arrived_ms + committed_after_ms}}}'
    await clock_store.command("HSET", keys.offsets, "t1:0", newer)
    await clock.advance(late_ms)

    asked = offsets.delete(clock_store, keys, "1", {"t2": [0], "t1": [0]}, (1 << 50, arrived_ms))
    if is_deleted:
        assert await asked == set()
    else:
        with pytest.raises(CoordinatorNotAvailable):
            await asked
    assert await left(clock_store, keys) == ([] if is_deleted else ["t1:0", "t2:0"])


async def test_late_deletion_of_offsets_does_not_drop_newer_staged_ones(
    clock: SteppedClock, clock_store: Store
) -> None:
    keys, arrived_ms = clock_store.group_keys("default", "orders"), clock.now_ms
    await given_group(clock_store, keys, subscribed=[])
    await clock.advance(501)
    entries = ["t1:0", entry_json(5, -1, T1.topic_hex, "")]
    await staged_offsets.stage(clock_store, keys, Commit(-1, "", None, entries), 9, -1)

    with pytest.raises(CoordinatorNotAvailable):
        await offsets.delete(clock_store, keys, "1", {"t1": [0]}, (1 << 50, arrived_ms))
    assert await clock_store.command("HKEYS", keys.staged) == [b"9:t1:0"]
    assert await offsets.delete(clock_store, keys, "1", {"t2": [0]}, (1 << 50, arrived_ms)) == set()


async def test_deletion_of_offsets_is_sent_with_its_times(
    broker: Broker, store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_group(store, keys, subscribed=[])
    sent, delete_part = [], offsets.delete
    broker.context.broker_lease.ends_ms = FAR_MS
    store.clock.observe(5_000, 0.0)
    arrived_ms = int((perf_counter() + store.clock.offset_s) * 1000)

    async def watched(store: Store, keys: GroupKeys, broker: str, part: Any, times_ms: tuple[int, int]) -> Any:
        sent.append(times_ms)
        return await delete_part(store, keys, broker, part)

    monkeypatch.setattr(offsets, "delete", watched)
    assert await delete(broker, {"t1": [0]}) == {"t1:0": NONE}
    [(ends_ms, sent_ms)] = sent
    assert ends_ms == FAR_MS and 0 <= sent_ms - arrived_ms < 60_000


async def test_deletion_of_offsets_in_parts_ends_when_its_client_has_left(
    store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, client = Broker(store, FakeCatalog(topic("wide", 2_500))), Client(1, "127.0.0.1", 50_000)
    await given_group(store, keys, subscribed=[])
    await given_offsets(store, keys, "wide:0", "wide:2499")
    delete_part = offsets.delete

    async def leaving(*args: Any) -> Any:
        client.end()
        return await delete_part(*args)

    monkeypatch.setattr(offsets, "delete", leaving)
    partitions = tuple(OffsetDeleteRequestPartition(partition_index=index) for index in range(2_500))
    wide = OffsetDeleteRequestTopic(name="wide", partitions=partitions)
    with pytest.raises(RequestTimedOut):
        await ask_handler(broker.context, OffsetDeleteRequest(group_id="orders", topics=(wide,)), client)
    assert await left(store, keys) == ["wide:2499"]


async def test_scenario_95_a_deleted_topics_offsets_vanish_in_all_groups(store: Store) -> None:
    stable, simple, foreign = (
        store.group_keys(org, name) for org, name in (("default", "a b/c"), ("default", "d"), ("other", "e"))
    )
    await given_group(store, stable, subscribed=["t1"])
    for keys in (simple, foreign):
        await given_group(store, keys, state="Empty", protocol_type="", members=(), subscribed=None)
    for keys in (stable, simple, foreign):
        await given_offsets(store, keys, "t1:0", "t1:599", "t1:600", "t2:0")
    await given_offsets(store, simple, "t1:1", topic_id="ff" * 16)

    assert await forget_topic(store, "default", "t1", 600, T1.topic_hex) == 4
    assert await forget_topic(store, "default", "t1", 600, T1.topic_hex) == 0
    assert await left(store, stable) == ["t1:600", "t2:0"]
    assert await left(store, simple) == ["t1:1", "t1:600", "t2:0"]
    assert await left(store, foreign) == ["t1:0", "t1:599", "t1:600", "t2:0"]

    assert await forget_topic(store, "default", "t1", 600) == 1
    assert await left(store, simple) == ["t1:600", "t2:0"]


async def test_deleted_topics_offsets_vanish_in_all_groups_but_a_faulty_one(store: Store) -> None:
    groups = [store.group_keys("default", name) for name in ("a", "b", "c")]
    for keys in groups:
        await given_group(store, keys, state="Empty", protocol_type="", members=(), subscribed=None)
        await given_offsets(store, keys, "t1:0")
    await store.command("SET", groups[1].offsets, "foreign")
    index = next(shard for shard in range(50) if shard not in {keys.shard_keys.shard for keys in groups})
    await store.command("SET", store.shard_keys(index).groups, "foreign")

    assert await forget_topic(store, "default", "t1", 1, T1.topic_hex) == 2
    assert [await left(store, keys) for keys in (groups[0], groups[2])] == [[], []]
