"""This broker's cache of the topics in `{cluster}:topics`, and the operations that change them.

Every change increments a version and is published on a channel; a poll finds changes whose message was lost. After a
change of its own the broker refreshes the cache before it replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from uuid import UUID

import structlog

from tidegate.errors import (
    InvalidPartitions,
    InvalidTopic,
    KafkaError,
    RequestTimedOut,
    StoreUnavailable,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidegate.settings import Settings
from tidegate.store.batching import Coalescer, SingleFlight
from tidegate.store.change_follower import ChangeFollower
from tidegate.store.keys import RECORD_FORMAT
from tidegate.store.outcome import FaultyKeys
from tidegate.store.slices import slices
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.topics import configs, names
from tidegate.topics.cached_topics import TOPICS_AT_ONCE, CachedTopics
from tidegate.topics.configs import TopicConfig
from tidegate.topics.model import Record, Topic, TopicState
from tidegate.topics.steps import OnDeletedOffsets, PartitionStorage, TopicSteps, new_topic_id
from tidegate.topics.stored_topics import StoredTopics, pairs, read_topics

__all__ = ["Catalog", "PartitionStorage", "Topic", "TopicConfig"]

logger = structlog.get_logger()

PARTITIONS_MAX: Final = 10_000
"""Per topic: Metadata replies and every broker's memory grow with it."""
POLL_MS: Final = 3_000
"""Upper bound on the delay that a lost notification adds to a change of topics."""
_CREATE_TRIES: Final = 5
_ALTER_TRIES: Final = 20
_RELOAD: Final = -1


class Catalog:
    """The topics of every organisation. `get`, `by_id` and `topics` read the cache; other methods query the store.

    `version` increases with every change of the cache; `record_topics` counts those of format record. `on_removed` is
    called with each removed topic.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        storage: PartitionStorage,
        on_deleted_offsets: OnDeletedOffsets | None = None,
        on_removed: Callable[[Topic], None] | None = None,
    ) -> None:
        self.version = 0
        self.record_topics = 0
        self._on_removed = on_removed
        self._store = store
        self._settings = settings
        self._keys = store.cluster_keys
        self.steps = TopicSteps(store, storage, on_deleted_offsets)
        self._cached = CachedTopics(settings)
        self.get, self.by_id = self._cached.get, self._cached.by_id
        self.topics, self.all_topics = self._cached.topics, self._cached.all_topics
        self.topic_count = self._cached.topic_count
        self._records: dict[str, Record] = {}
        self._stored = StoredTopics()
        self._stored_version = _RELOAD
        self._refreshes: Coalescer[BaseException | None] = Coalescer(self._begin_refresh)
        self._refreshing: asyncio.Task[None] | None = None
        self._finishing = SingleFlight[str]()
        self._left_over: dict[str, Record] = {}
        self._loops = BackgroundTasks()
        self._follower = ChangeFollower(
            store,
            self._keys.topic_changes,
            POLL_MS,
            read=self._follow,
            on_doubt=self._reload,
            on_failed=lambda error: logger.debug("topics_not_refreshed", reason=str(error)),
        )
        self._closed = False

    # -- lifecycle

    async def start(self) -> None:
        """Load every topic, then follow changes. Raises StoreUnavailable."""
        await self._follower.subscribe(self._settings.redis_connect_timeout_ms)
        await self.refresh()
        self._follower.follow("topics-follow")
        self._loops.every("topics-finish", POLL_MS, self.finish_left_over)

    async def close(self) -> None:
        """Stop following."""
        await self._follower.close()
        await self._loops.close()
        self._closed = True
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        await self._finishing.close()

    def _reload(self) -> None:
        self._stored_version = _RELOAD

    async def _follow(self) -> None:
        if await self._store.command("HLEN", self._keys.topics) < len(self._records):
            self._reload()  # deleted topics, or lost ones: the version may be the same
        await self.refresh()

    # -- the cache

    @property
    def stored_version(self) -> int:
        """The store's version that the cache reflects; lower than any version if it must be reloaded."""
        return self._stored_version

    async def find(self, org: str, name: str) -> Topic | None:
        """A topic; on a cache miss refreshes, and finishes an incomplete creation. Raises StoreUnavailable."""
        topic = self.get(org, name)
        if topic is not None:
            return topic
        await self.refresh()
        await self._finish_if(f"{org}/{name}", TopicState.CREATING)
        return self.get(org, name)

    async def find_by_id(self, org: str, topic_id: UUID) -> Topic | None:
        """A topic by its id; refreshes on a cache miss. Raises StoreUnavailable."""
        topic = self.by_id(org, topic_id)
        if topic is None:
            await self.refresh()
            topic = self.by_id(org, topic_id)
        return topic

    # -- reading the store

    async def refresh(self) -> None:
        """Read the changes made before this call. Concurrent callers share a read. Raises StoreUnavailable."""
        error = await self._refreshes.wait()
        if error is not None:
            raise error

    def _begin_refresh(self) -> None:
        if self._closed:
            self._refreshes.finish(StoreUnavailable("closed"))
            return
        self._refreshing = asyncio.get_running_loop().create_task(self._read(), name="topics-refresh")
        self._refreshing.add_done_callback(self._refreshed)

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        self._refreshes.finish(StoreUnavailable("closed") if task.cancelled() else task.exception())

    async def _read(self) -> None:
        """Reads the version first, so that the contents read after it are at least as new."""
        stored = int(await self._store.command("HGET", self._keys.info, "topics_version") or 0)
        if stored == self._stored_version and not self._stored.faulty_configs:
            return
        listed = pairs(await self._store.command("HGETALL", self._keys.topics))
        if await self._restore_lost(self._records.keys() - dict(listed).keys()):
            listed = pairs(await self._store.command("HGETALL", self._keys.topics))
        found = await read_topics(self._store, listed, self._stored, self.get)
        async for some in slices(self._records.keys() - found.records.keys(), TOPICS_AT_ONCE):
            for field in some:
                self._forget(field)
        async for some in slices(found.changed, TOPICS_AT_ONCE):
            for field in some:
                self._forget(field, stays=found.records[field])
                self._cached.add(field, found.records[field], found.overrides.get(field, {}))
        if found.changed or len(self._records) != len(found.records):
            self.version += 1
        self._stored, self._records, self._stored_version = found, found.records, stored
        self.record_topics = sum(1 for record in found.records.values() if record.format == RECORD_FORMAT)

    async def _restore_lost(self, missing: Iterable[str]) -> bool:
        """Store again the cached records that Redis has lost; True if there were any."""
        restored = False
        for field in missing:
            org, name = field.split("/", 1)
            topic = self.get(org, name)
            if topic is not None and await self.steps.restore(
                org, name, topic.topic_id, self._stored.texts[field], topic.overrides
            ):
                logger.error("topic_restored", org=org, topic=name)
                restored = True
        return restored

    def apply_defaults(self) -> None:
        """Compute the configs of all topics again, soon, because the broker's defaults changed."""
        self._apply_defaults(self.all_topics())

    def _apply_defaults(self, topics: list[Topic]) -> None:
        self._cached.apply_defaults(topics[:TOPICS_AT_ONCE])
        if len(topics) > TOPICS_AT_ONCE:
            asyncio.get_running_loop().call_soon(self._apply_defaults, topics[TOPICS_AT_ONCE:])
        else:
            self.version += 1

    def _forget(self, field: str, stays: Record | None = None) -> None:
        """Remove a topic from the cache, and call `on_removed` unless `stays` is the same topic and ready."""
        topic = self._cached.remove(field)
        if topic is None:
            return
        gone = stays is None or stays.topic_id != topic.topic_id or stays.state is not TopicState.READY
        if gone and self._on_removed is not None:
            self._on_removed(topic)

    # -- changes

    async def create(
        self,
        org: str,
        name: str,
        partition_count: int | None = None,
        overrides: Mapping[str, str] | None = None,
        topic_id: UUID | None = None,
    ) -> Topic:
        """Create a topic; its configs are parsed already (`configs.parse`). `check_new` refuses clients' internal ones.

        Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions, PolicyViolation, StoreUnavailable: then the topic
        may or may not exist; another broker completes a creation that was started.
        """
        names.check(name)
        count = self._settings.num_partitions if partition_count is None else partition_count
        self.check_count(count)
        topic_id, log_format = topic_id or new_topic_id(), configs.format_of(overrides or {})
        for _ in range(_CREATE_TRIES):
            record = await self.steps.take_name(org, name, topic_id, count, log_format, overrides or {})
            if record.topic_id == topic_id:
                return await self._created(org, name, record)
            if record.state is not TopicState.DELETING:
                raise TopicAlreadyExists(f"topic {name!r} already exists")
            await self.steps.finish(org, name, record)
        raise TopicAlreadyExists(f"topic {name!r} is being deleted")

    async def _created(self, org: str, name: str, record: Record) -> Topic:
        await self.steps.finish(org, name, record)
        await self.refresh()
        topic = self.by_id(org, record.topic_id)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name!r} was deleted as soon as it was made")
        logger.info("topic_created", org=org, topic=name, partitions=topic.partition_count)
        return topic

    async def check_new(self, org: str, name: str) -> None:
        """Check that a name is free and does not collide with another. Raises TopicAlreadyExists, InvalidTopic."""
        names.check(name)
        if await self.find(org, name) is not None:
            raise TopicAlreadyExists(f"topic {name!r} already exists")
        names.check_creatable(name)
        plain_name = names.plain(name)
        if plain_name:
            other = await self._store.command("HGET", self._keys.topic_names, f"{org}/{plain_name}")
            if other is not None and other.decode() != f"{org}/{name}":
                raise InvalidTopic(f"topic {name!r} differs from {other.decode()!r} only by '.' and '_'")

    def check_count(self, count: int) -> None:
        """Check the number of partitions. Raises InvalidPartitions."""
        if not 1 <= count <= PARTITIONS_MAX:
            raise InvalidPartitions(f"number of partitions must be between 1 and {PARTITIONS_MAX}, not {count}")

    async def check_limits(self, org: str, name: str, count: int) -> None:
        """Check that a topic may have `count` partitions. Raises InvalidPartitions, PolicyViolation, StoreUnavailable.

        With `check_new`, what is checked before a quota is spent.
        """
        self.check_count(count)
        await self.steps.check_org_limits(org, name, count)

    async def delete(self, org: str, name: str, topic_id: UUID | None = None) -> None:
        """Delete a topic, its records and its committed offsets; with `topic_id` only if the ids match.

        Raises UnknownTopicOrPartition, UnknownTopicId, StoreUnavailable. Once it is hidden, any broker completes it.
        """
        await self.refresh()
        topic = await self.find(org, name)
        if topic is None:
            raise UnknownTopicOrPartition
        if topic_id not in (None, topic.topic_id):
            raise UnknownTopicId
        record = await self.steps.hide(org, name, topic.topic_id)
        await self.steps.finish(org, name, record)
        await self.refresh()
        logger.info("topic_deleted", org=org, topic=name)

    async def add_partitions(self, org: str, name: str, count: int, topic_id: UUID | None = None) -> Topic:
        """Increase a topic's partitions to `count`. Raises as `check_growth`, PolicyViolation, StoreUnavailable."""
        topic = await self.check_growth(org, name, count, topic_id)
        record = await self.steps.want_partitions(org, name, topic.topic_id, count)
        await self.steps.finish(org, name, record)
        await self.refresh()
        logger.info("partitions_added", org=org, topic=name, partitions=count)
        return self.by_id(org, topic.topic_id) or topic

    async def check_growth(self, org: str, name: str, count: int, topic_id: UUID | None = None) -> Topic:
        """Raise what `add_partitions` would: InvalidPartitions, UnknownTopicOrPartition also for another `topic_id`."""
        topic = await self._named(org, name, topic_id)
        if count <= topic.partition_count:
            raise InvalidPartitions(f"topic has {topic.partition_count} partitions already")
        self.check_count(count)
        return topic

    async def _named(self, org: str, name: str, topic_id: UUID | None) -> Topic:
        """The topic of a name, by a refresh. Raises UnknownTopicOrPartition, also if it has another id."""
        await self.refresh()
        topic = await self.find(org, name)
        if topic is None or topic_id not in (None, topic.topic_id):
            raise UnknownTopicOrPartition
        return topic

    async def alter_configs(
        self,
        org: str,
        name: str,
        plan: Callable[[Mapping[str, str]], dict[str, str]],
        validate_only: bool = False,
        topic_id: UUID | None = None,
    ) -> None:
        """Replace a topic's configs by `plan(current)`; after a concurrent change `plan` is called again.

        Raises UnknownTopicOrPartition, also for another `topic_id`, what `plan` raises, StoreUnavailable.
        """
        for _ in range(_ALTER_TRIES):
            topic = await self._named(org, name, topic_id)
            topic_id = topic.topic_id
            planned_on = self._records[f"{org}/{name}"].config
            overrides = plan(topic.overrides)
            if validate_only or overrides == topic.overrides:
                return
            if await self.steps.replace_configs(org, name, topic.topic_id, planned_on, overrides):
                await self.refresh()
                logger.info("topic_configs_altered", org=org, topic=name, configs=overrides)
                return
        raise RequestTimedOut("others change the configs of this topic all the time")

    # -- unfinished operations

    async def finish_left_over(self) -> None:
        """Complete operations unfinished since the last call: their broker stopped, or is very slow."""
        before, self._left_over = (
            self._left_over,
            {field: record for field, record in self._records.items() if record.under_way},
        )
        for field, record in self._left_over.items():
            if before.get(field) == record:
                try:
                    await self._finish_if(field, record.state)
                except FaultyKeys as error:
                    logger.warning("topic_not_finished", topic=field, reason=str(error))

    async def _finish_if(self, field: str, state: TopicState) -> None:
        """Complete a topic's unfinished operation in `state`, once for concurrent callers. Raises StoreUnavailable."""
        record = self._records.get(field)
        if record is None or not record.under_way or record.state is not state:
            return
        await self._finishing.do(field, lambda: self._finish(field, record))

    async def _finish(self, field: str, record: Record) -> None:
        org, name = field.split("/", 1)
        try:
            await self.steps.finish(org, name, record)
        except StoreUnavailable:
            raise
        except KafkaError as error:
            logger.info("topic_not_finished", org=org, topic=name, reason=str(error))
        else:
            logger.info("topic_finished", org=org, topic=name, state=record.state.value)
        await self.refresh()
