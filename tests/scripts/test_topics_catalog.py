"""The catalogue on a real server: interrupted steps that others finish, races, notifications of changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import UUID

import pytest

from tidegate.errors import (
    InvalidPartitions,
    InvalidTopic,
    StoreUnavailable,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from tidegate.groups.retention import forget_topic
from tidegate.groups.share import offsets as share_offsets
from tidegate.log.partitions import create_partition, delete_partition
from tidegate.settings import Settings
from tidegate.store.keys import LogKeys
from tidegate.store.outcome import FaultyKeys
from tidegate.store.store import Store
from tidegate.topics.catalog import Catalog, PartitionStorage, Topic
from tidegate.topics.steps import new_topic_id

ORG = "default"
REAL = PartitionStorage(create_partition, delete_partition)


class CutStorage:
    """The real steps, until they have run `left` times: then the broker is as good as dead."""

    def __init__(self, left: int) -> None:
        self.left = left

    def storage(self) -> PartitionStorage:
        return PartitionStorage(self._cut(create_partition), self._cut(delete_partition))

    def _cut(self, step: Callable[[Store, LogKeys], Awaitable[None]]) -> Callable[[Store, LogKeys], Awaitable[None]]:
        async def run(store: Store, keys: LogKeys) -> None:
            if self.left == 0:
                raise StoreUnavailable("cut")
            self.left -= 1
            await step(store, keys)

        return run


@pytest.fixture
async def catalog(store: Store) -> AsyncIterator[Catalog]:
    opened = Catalog(store, store.settings, REAL)
    await opened.start()
    yield opened
    await opened.close()


@pytest.fixture
def removed() -> list[Topic]:
    """What `other` found removed."""
    return []


@pytest.fixture
async def other(
    catalog: Catalog, settings: Settings, removed: list[Topic], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Catalog]:
    """The catalogue of another broker, on links of its own, that polls often."""
    monkeypatch.setattr("tidegate.topics.catalog.POLL_MS", 40)
    store = Store(settings)
    await store.start()
    opened = Catalog(store, store.settings, REAL, on_removed=removed.append)
    await opened.start()
    yield opened
    await opened.close()
    await store.close()


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def streams(store: Store, topic: Topic) -> int:
    keys = [store.log_keys(ORG, topic.name, index, topic.topic_hex).log for index in range(topic.partition_count)]
    return sum([await store.command("EXISTS", key) for key in keys])


async def test_made_topic_is_ready_with_all_its_logs(store: Store, catalog: Catalog) -> None:
    topic = await catalog.create(ORG, "orders", 3, {"retention.ms": "1000"})

    assert catalog.get(ORG, "orders") is catalog.by_id(ORG, topic.topic_id) is topic
    assert (topic.partition_count, topic.state, topic.format) == (3, "ready", "batch")
    assert topic.config.retention_ms == 1000
    assert topic.config.max_message_bytes == 1_048_588
    assert await streams(store, topic) == 3


async def test_catalogue_is_text_for_people(store: Store, catalog: Catalog) -> None:
    topic = await catalog.create(ORG, "orders", 3, {"retention.ms": "1000"})

    assert (
        await store.command("HGET", "tidegate:{cluster}:topics", "default/orders")
        == (
            f'{{"id":"{topic.topic_hex}","partitions":3,"wanted":3,"format":"batch","state":"ready","config":1}}'
        ).encode()
    )
    assert await store.command("HGET", "tidegate:{cluster}:topic:default:orders", "retention.ms") == b"1000"


@pytest.fixture
async def deleting(store: Store) -> AsyncIterator[Catalog]:
    """A catalogue that removes the offsets of deleted topics from all groups, one of which has a foreign key."""

    async def forget(org: str, name: str, topic_id: UUID, partition_count: int) -> None:
        await forget_topic(store, org, name, partition_count, topic_id.hex)
        await share_offsets.forget_topic(store, org, topic_id, partition_count)

    for kind, group_id in (("classic", "broken"), ("share", "broken-share")):
        keys = store.group_keys(ORG, group_id)
        await store.command("HSET", keys.shard_keys.groups, keys.ref, f"{kind} Empty {kind}")
        await store.command("HSET", keys.group, "state", "Empty", "type", kind)
        for key in (keys.offsets, keys.shares):
            await store.command("SET", key, "foreign")
    opened = Catalog(store, store.settings, REAL, forget)
    await opened.refresh()
    yield opened
    await opened.close()


async def test_topic_is_deleted_and_created_again_beside_a_faulty_group(store: Store, deleting: Catalog) -> None:
    first = await deleting.create(ORG, "orders", 2)
    await deleting.delete(ORG, "orders")
    second = await deleting.create(ORG, "orders", 2)

    assert second.topic_id != first.topic_id
    assert [await streams(store, topic) for topic in (first, second)] == [0, 2]


async def test_left_over_faulty_topic_stops_no_other(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = Catalog(store, store.settings, CutStorage(0).storage())
    for name in ("a", "b"):
        with pytest.raises(StoreUnavailable):
            await dying.create(ORG, name, 1)

    async def make(store: Store, keys: LogKeys) -> None:
        if ":a:" in keys.log or "/a:" in keys.log:
            raise FaultyKeys("WRONGTYPE")
        await create_partition(store, keys)

    tidy = Catalog(store, store.settings, PartitionStorage(make, delete_partition))
    await tidy.refresh()
    for _ in range(2):
        await tidy.finish_left_over()

    assert [topic.name for topic in tidy.topics(ORG)] == ["b"]


async def test_foreign_field_among_the_topics_hides_no_topic(store: Store, catalog: Catalog) -> None:
    topic = await catalog.create(ORG, "a", 1)
    await store.command("HSET", store.cluster_keys.topics, "foreign", "1", f"{ORG}/a", "no record", f"{ORG}/x", "{}")
    await catalog.create(ORG, "b", 1)
    fresh = Catalog(store, store.settings, REAL)
    await fresh.refresh()

    assert [one.name for one in catalog.topics(ORG)] == ["a", "b"]
    assert catalog.get(ORG, "a") == topic
    assert [one.name for one in fresh.topics(ORG)] == ["b"]


async def test_faulty_configs_of_one_topic_hide_no_other(store: Store, catalog: Catalog, other: Catalog) -> None:
    """Its configs stay as they were; a broker that never read them serves it when they can be read."""
    await catalog.create(ORG, "a", 1, {"retention.ms": "1000"})
    await until(lambda: other.get(ORG, "a"))
    key = store.cluster_keys.topic(ORG, "a")
    await store.command("RENAME", key, "held")
    await store.command("SET", key, "foreign")
    await catalog.create(ORG, "b", 1)
    fresh = Catalog(store, store.settings, REAL)
    await fresh.refresh()

    assert [topic.name for topic in fresh.topics(ORG)] == ["b"]
    await until(lambda: other.get(ORG, "b"))
    known = other.get(ORG, "a")
    assert known is not None and known.config.retention_ms == 1000
    await store.command("RENAME", "held", key)
    await fresh.refresh()
    assert [topic.name for topic in fresh.topics(ORG)] == ["a", "b"]


async def test_creation_is_notified_to_another_broker(catalog: Catalog, other: Catalog) -> None:
    before = other.version
    topic = await catalog.create(ORG, "orders", 2, {"cleanup.policy": "compact"})

    await until(lambda: other.get(ORG, "orders"))
    assert other.get(ORG, "orders") == topic
    assert other.version > before


async def test_another_broker_finds_it_at_once_when_asked(catalog: Catalog, other: Catalog) -> None:
    topic = await catalog.create(ORG, "orders", 2)

    assert await other.find(ORG, "orders") == topic
    assert await other.find_by_id(ORG, topic.topic_id) == topic
    assert await other.find("elsewhere", "orders") is None
    assert await other.find_by_id("elsewhere", topic.topic_id) is None


async def test_lost_notice_costs_a_poll(store: Store, catalog: Catalog, other: Catalog) -> None:
    other._store.pubsub.forget(store.cluster_keys.topic_changes, other._follower._on_message)
    await catalog.create(ORG, "orders", 1)

    await until(lambda: other.get(ORG, "orders"))


async def test_close_ends_during_a_notification(other: Catalog) -> None:
    await asyncio.sleep(0)
    other._follower._on_message(b"1")

    async with asyncio.timeout(30):
        await other.close()


async def test_two_creators_one_winner(catalog: Catalog, other: Catalog) -> None:
    """Scenario 19."""
    outcomes = await asyncio.gather(catalog.create(ORG, "c", 2), other.create(ORG, "c", 5), return_exceptions=True)

    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Topic", "TopicAlreadyExists"]
    made = next(outcome for outcome in outcomes if isinstance(outcome, Topic))
    assert await catalog.find(ORG, "c") == await other.find(ORG, "c") == made


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
async def test_creation_interrupted_is_finished_by_the_next_request(
    store: Store, catalog: Catalog, other: Catalog, steps: int
) -> None:
    """After the name, after each partition, before the end."""
    topic_id = new_topic_id()
    cut = Catalog(store, store.settings, CutStorage(min(steps, 2)).storage())
    if steps < 3:
        with pytest.raises(StoreUnavailable):
            await cut.create(ORG, "orders", 3, {"retention.ms": "5"}, topic_id)
    else:  # all partitions made, not published yet
        await cut.steps.take_name(ORG, "orders", topic_id, 3, "batch", {"retention.ms": "5"})
        for index in range(3):
            await create_partition(store, store.log_keys(ORG, "orders", index, topic_id.hex))

    topic = await other.find(ORG, "orders")

    assert topic is not None and topic.topic_id == topic_id
    assert topic.config.retention_ms == 5
    assert await streams(store, topic) == 3
    with pytest.raises(TopicAlreadyExists):
        await catalog.create(ORG, "orders", 3)


async def test_creation_interrupted_is_finished_without_a_request(store: Store, other: Catalog) -> None:
    cut = Catalog(store, store.settings, CutStorage(1).storage())
    with pytest.raises(StoreUnavailable):
        await cut.create(ORG, "orders", 3)

    await until(lambda: other.get(ORG, "orders"))


@pytest.mark.parametrize("steps", [0, 1, 2])
async def test_deletion_interrupted_is_finished_by_another_broker(
    store: Store, catalog: Catalog, other: Catalog, steps: int
) -> None:
    topic = await catalog.create(ORG, "orders", 2)
    cut = Catalog(store, store.settings, CutStorage(min(steps, 1)).storage())
    if steps < 2:
        with pytest.raises(StoreUnavailable):
            await cut.delete(ORG, "orders")
    else:
        await cut.steps.hide(ORG, "orders", topic.topic_id)
        for index in range(2):
            await delete_partition(store, store.log_keys(ORG, "orders", index, topic.topic_hex))
    await other.refresh()
    assert other.get(ORG, "orders") is None

    again = await other.create(ORG, "orders", 1)

    assert again.topic_id != topic.topic_id
    assert await streams(store, topic) == 0
    assert await streams(store, again) == 1


async def test_deletion_interrupted_is_finished_without_a_request(
    store: Store, catalog: Catalog, other: Catalog
) -> None:
    topic = await catalog.create(ORG, "a.b", 3)
    cut = Catalog(store, store.settings, CutStorage(1).storage())
    with pytest.raises(StoreUnavailable):
        await cut.delete(ORG, "a.b")

    await until(lambda: not other._records)
    assert await store.command("EXISTS", "tidegate:{cluster}:topics", "tidegate:{cluster}:topic-names") == 0
    assert await streams(store, topic) == 0


async def test_deletion_is_notified_and_removes_the_offsets(
    store: Store, catalog: Catalog, other: Catalog, removed: list[Topic]
) -> None:
    offsets: list[tuple[str, str, UUID, int]] = []

    async def on_deleted_offsets(org: str, name: str, topic_id: UUID, partition_count: int) -> None:
        offsets.append((org, name, topic_id, partition_count))

    topic = await catalog.create(ORG, "orders", 2, {"retention.ms": "1000"})
    await until(lambda: other.get(ORG, "orders"))
    deleting = Catalog(store, store.settings, REAL, on_deleted_offsets)
    await deleting.delete(ORG, "orders")

    assert offsets == [(ORG, "orders", topic.topic_id, 2)]
    await until(lambda: removed)
    assert removed == [topic]
    assert other.by_id(ORG, topic.topic_id) is None
    with pytest.raises(UnknownTopicOrPartition):
        await catalog.delete(ORG, "orders")
    assert not await store.command("EXISTS", "tidegate:{cluster}:topic:default:orders")


async def test_topic_made_again_has_another_id_and_an_empty_log(store: Store, catalog: Catalog) -> None:
    """Scenario 18."""
    first = await catalog.create(ORG, "a", 1, {"retention.ms": "1000"})
    await store.command("XADD", store.log_keys(ORG, "a", 0, first.topic_hex).log, "NOMKSTREAM", "0-1", "w", "x")
    await catalog.delete(ORG, "a")
    second = await catalog.create(ORG, "a", 1)

    assert second.topic_id != first.topic_id
    assert second.config.retention_ms == 604_800_000
    assert await store.command("XLEN", store.log_keys(ORG, "a", 0, second.topic_hex).log) == 0
    assert catalog.by_id(ORG, first.topic_id) is None


async def test_deletion_by_an_old_id_ignores_the_new_topic(catalog: Catalog) -> None:
    first = await catalog.create(ORG, "a", 1)
    await catalog.delete(ORG, "a")
    await catalog.create(ORG, "a", 1)

    with pytest.raises(UnknownTopicOrPartition):
        await catalog.steps.hide(ORG, "a", first.topic_id)
    assert await catalog.find(ORG, "a") is not None


async def test_late_creator_does_not_bring_a_deleted_topic_back(store: Store, catalog: Catalog) -> None:
    slow = Catalog(store, store.settings, CutStorage(0).storage())
    topic_id = new_topic_id()
    with pytest.raises(StoreUnavailable):
        await slow.create(ORG, "orders", 2, topic_id=topic_id)
    await catalog.delete(ORG, "orders")

    with pytest.raises(UnknownTopicOrPartition):
        await Catalog(store, store.settings, REAL).create(ORG, "orders", 2, topic_id=topic_id)

    assert not await store.command("EXISTS", store.log_keys(ORG, "orders", 0, topic_id.hex).log)
    assert (await catalog.create(ORG, "orders", 1)).partition_count == 1


async def test_partitions_are_added_and_never_removed(store: Store, catalog: Catalog, other: Catalog) -> None:
    """Scenario 21, without its group."""
    await catalog.create(ORG, "t", 3)
    for count in (3, 2):
        with pytest.raises(InvalidPartitions):
            await catalog.add_partitions(ORG, "t", count)

    topic = await catalog.add_partitions(ORG, "t", 5)

    assert topic.partition_count == 5
    assert await streams(store, topic) == 5
    await until(lambda: other.get(ORG, "t") == topic)
    with pytest.raises(UnknownTopicOrPartition):
        await catalog.add_partitions(ORG, "nope", 5)


async def test_growth_interrupted_is_finished_by_another_broker(store: Store, catalog: Catalog, other: Catalog) -> None:
    await catalog.create(ORG, "t", 2)
    cut = Catalog(store, store.settings, CutStorage(1).storage())
    with pytest.raises(StoreUnavailable):
        await cut.add_partitions(ORG, "t", 5)
    assert (await other.find(ORG, "t")).partition_count == 2  # type: ignore[union-attr]

    await until(lambda: (found := other.get(ORG, "t")) and found.partition_count == 5)
    assert await streams(store, other.get(ORG, "t")) == 5  # type: ignore[arg-type]


async def test_growth_interrupted_can_be_requested_again(catalog: Catalog, store: Store) -> None:
    await catalog.create(ORG, "t", 2)
    cut = Catalog(store, store.settings, CutStorage(1).storage())
    with pytest.raises(StoreUnavailable):
        await cut.add_partitions(ORG, "t", 5)

    with pytest.raises(InvalidPartitions):
        await catalog.add_partitions(ORG, "t", 4)
    assert (await catalog.add_partitions(ORG, "t", 5)).partition_count == 5


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("a._b", "a..b")])
async def test_names_that_differ_by_dot_and_underscore_collide(catalog: Catalog, first: str, second: str) -> None:
    await catalog.create(ORG, first, 1)
    with pytest.raises(InvalidTopic):
        await catalog.create(ORG, second, 1)
    await catalog.create("elsewhere", second, 1)
    await catalog.delete(ORG, first)

    assert (await catalog.create(ORG, second, 1)).name == second


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ü", "a" * 250, "a\n"])
async def test_name_outside_the_rules_is_refused(store: Store, catalog: Catalog, name: str) -> None:
    with pytest.raises(InvalidTopic):
        await catalog.create(ORG, name, 1)
    assert not await store.command("EXISTS", "tidegate:{cluster}:topics")


@pytest.mark.parametrize("count", [0, -2, 10_001, 2_147_483_647])
async def test_count_that_cannot_be_is_refused(catalog: Catalog, count: int) -> None:
    with pytest.raises(InvalidPartitions):
        await catalog.create(ORG, "orders", count)


async def test_unknown_name_costs_one_small_read(store: Store, catalog: Catalog) -> None:
    await catalog.create(ORG, "orders", 1)
    calls = (await store.command("INFO", "commandstats")).decode()
    before = calls.split("cmdstat_hgetall:calls=")[1].split(",")[0]
    for _ in range(20):
        assert await catalog.find(ORG, "nope") is None
    after = (await store.command("INFO", "commandstats")).decode().split("cmdstat_hgetall:calls=")[1].split(",")[0]

    assert before == after


async def test_two_orgs_may_use_the_same_name(catalog: Catalog) -> None:
    one, two = await catalog.create("one", "t", 1), await catalog.create("two", "t", 2)

    assert (catalog.get("one", "t"), catalog.get("two", "t")) == (one, two)
    assert [topic.name for topic in catalog.topics("one")] == ["t"]
    assert catalog.topics("three") == []
