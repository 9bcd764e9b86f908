"""Share groups over real logs without sockets: brokers, and members whose requests and milliseconds a test decides.

Acquired records are written as text: `0-9x1 20-29x2` are two ranges, delivered the first and the second time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.clock import SteppedClock
from tests.support.log_broker import Asked, Connection, LogBroker, produce_request
from tests.support.logs import batch_bytes
from tidegate.apis.registry import error_response
from tidegate.errors import KafkaError
from tidegate.groups.expire_and_retry import group_script_args, group_script_keys
from tidegate.groups.generation_guard import BUMP_GENERATION, SKIP
from tidegate.groups.share.sessions import SharePartition
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.topics.catalog import Topic

HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE = 76, 77, 78, 79
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
LOCK_MS = 30_000
_MS = timedelta(milliseconds=1)

Acks = Mapping[int, Sequence[tuple[int, int, Sequence[int]]]]
"""Partition -> (first offset, last offset, acknowledge types)."""


def code(value: Any) -> str:
    """The name of an error code."""
    return ErrorCode(int(value)).name.upper()


class ShareWorld:
    """Brokers that share a store, topics `t1`, `t2` and `t4` with as many partitions, and one clock."""

    def __init__(self, settings: Settings, clock: SteppedClock) -> None:
        self.settings, self.clock = settings, clock
        self.brokers: list[LogBroker] = []
        self.topics: dict[str, Topic] = {}

    async def start(self, brokers: int = 2) -> None:
        """Open the brokers and make the topics."""
        for _ in range(brokers):
            self.brokers.append(await LogBroker.start(self.settings))
        for count in (1, 2, 4):
            await self.create(f"t{count}", count)

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.context.shares.close()
            await broker.close()

    async def create(self, name: str, partition_count: int, **overrides: str) -> Topic:
        """Make a topic that every broker knows."""
        self.topics[name] = await self.brokers[0].create(name, partition_count, **overrides)
        for broker in self.brokers:
            await broker.catalog.refresh()
        return self.topics[name]

    @property
    def keys(self) -> GroupKeys:
        return self.brokers[0].store.group_keys("default", "jobs")

    async def configure(self, **configs: Any) -> None:
        """Set configs of the group; underscores for dots."""
        fields = [part for name, value in configs.items() for part in (name.replace("_", "."), str(value))]
        await self.brokers[0].store.command("HSET", self.keys.configs, *fields)

    async def produce(self, *counts: int, topic: str = "t1", partition: int = 0) -> None:
        """One batch of each number of records."""
        connection = self.brokers[0].connect()
        for count in counts:
            batch = batch_bytes(count)
            answer = await connection.ask(produce_request([(topic, [(partition, batch)])]))
            assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none

    def member(self, name: str = "a", *topics: str, broker: int = 0) -> Member:
        """A member to be, with a connection of its own to a broker."""
        return Member(self, name, topics or ("t1",), self.brokers[broker].connect())

    async def joined(self, *members: Member) -> None:
        """Let members join, and heartbeat until each has its partitions."""
        for member in members:
            assert await member.join() != "", member
        for member in members:
            await member.heartbeat()

    async def describe(self) -> Any:
        """ShareGroupDescribe of the group."""
        asked = request(DESCRIBE, 1, group_ids=["jobs"], include_authorized_operations=False)
        (group,) = (await self.brokers[0].connect().ask(asked)).groups
        return group

    def first(self, topic: str = "t1", partition: int = 0) -> SharePartition:
        """A share-partition by its topic's name."""
        return SharePartition(self.topics[topic].topic_id, partition)

    async def report_generation(self, generation: int, failover_epoch: int = 0) -> bool:
        """What a broker that reconnects reports of the group, or one that starts (-1); whether the group was behind."""
        store = self.brokers[0].store
        args = [*group_script_args(store, self.keys, "1"), generation, 1, SKIP, failover_epoch, -1]
        (was_behind,) = await store.run(BUMP_GENERATION, [*group_script_keys(self.keys), self.keys.consumers], *args)
        return bool(was_behind)

    async def start_offset(self, topic: str = "t1", partition: int = 0) -> int:
        """The first unfinished offset."""
        one = self.first(topic, partition)
        (found,) = await self.brokers[0].context.shares.records.progress(self.keys, [one])
        return found.start


@dataclass
class Member:
    """One member: its connection, the epochs it was answered, and short ways to ask."""

    world: ShareWorld
    name: str
    topics: Sequence[str]
    connection: Connection
    epoch: int = 0
    session_epoch: int = 0
    lock_ms: int = 0
    assigned: dict[str, list[int]] = field(default_factory=dict)

    async def ask(self, key: int, version: int, **fields: Any) -> Any:
        """A request; an error of the whole request is its error response."""
        return await self.send(key, version, **fields).answer

    def send(self, key: int, version: int, **fields: Any) -> Asked:
        """The same, without waiting for the answer."""
        asked = request(key, version, **fields)
        try:
            return self.connection.send(asked)
        except KafkaError as error:
            answered = Asked(self._future())
            answered.answer.set_result(error_response(key, asked, error.code))
            return answered

    @staticmethod
    def _future() -> Any:
        return asyncio.get_running_loop().create_future()

    # -- membership

    async def send_heartbeat(self, epoch: int, **fields: Any) -> Any:
        """A heartbeat as it is answered."""
        values = {"group_id": "jobs", "member_id": f"member-{self.name}", "member_epoch": epoch, **fields}
        return await self.ask(HEARTBEAT, 1, **values)

    async def heartbeat(self, epoch: int | None = None, **fields: Any) -> tuple[int, dict[str, list[int]] | None] | str:
        """(epoch, partitions by topic or None), or the name of the error."""
        answer = await self.send_heartbeat(self.epoch if epoch is None else epoch, **fields)
        if answer.error_code is not ErrorCode.none:
            return code(answer.error_code)
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return self.epoch, None
        names = {topic.topic_id: topic.name for topic in self.world.topics.values()}
        self.assigned = {names[one.topic_id]: list(one.partitions) for one in answer.assignment.topic_partitions}
        return self.epoch, self.assigned

    async def join(self, *topics: str) -> tuple[int, dict[str, list[int]] | None] | str:
        """Join with epoch 0."""
        self.topics = topics or self.topics
        return await self.heartbeat(0, subscribed_topic_names=list(self.topics))

    async def leave(self) -> tuple[int, dict[str, list[int]] | None] | str:
        """Leave."""
        return await self.heartbeat(-1)

    # -- records

    def sending(
        self,
        epoch: int | None = None,
        partitions: Iterable[int] | None = None,
        acks: Acks | None = None,
        topic: str | None = None,
        topic_id: UUID | None = None,
        forget: Iterable[int] = (),
        max_records: int = 500,
        max_wait_ms: int = 0,
        mode: int = 0,
        **fields: Any,
    ) -> Asked:
        """A ShareFetch on its way; the first one names partition 0, or `partitions`."""
        epoch = self.session_epoch if epoch is None else epoch
        name = topic or self.topics[0]
        if partitions is None:
            partitions = (0,) if epoch == 0 else ()
        topic_id = topic_id or self.world.topics[name].topic_id
        wanted = dict.fromkeys(partitions, ()) | dict(acks or {})
        values: dict[str, Any] = {
            "group_id": "jobs",
            "member_id": f"member-{self.name}",
            "share_session_epoch": epoch,
            "max_wait": max_wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": max_records,
            "batch_size": 500,
            "share_acquire_mode": mode,
            "topics": _topics(topic_id, wanted),
            "forgotten_topics_data": _forgotten(topic_id, forget),
            **fields,
        }
        self.session_epoch = epoch + 1
        return self.send(FETCH, 2, **values)

    async def fetch(self, epoch: int | None = None, **fields: Any) -> str:
        """The acquired ranges of all partitions as text, or the name of the error of the request or a partition."""
        return self.text(await self.sending(epoch, **fields).answer)

    def text(self, answer: Any) -> str:
        """A ShareFetch response as text; errors of acknowledgements follow a slash."""
        if answer.error_code is not ErrorCode.none:
            return code(answer.error_code)
        self.lock_ms = answer.acquisition_lock_timeout // _MS
        parts = []
        for topic in answer.responses:
            for one in topic.partitions:
                ranges = [f"{got.first_offset}-{got.last_offset}x{got.delivery_count}" for got in one.acquired_records]
                text = " ".join(ranges) if one.error_code is ErrorCode.none else code(one.error_code)
                if one.acknowledge_error_code:
                    text += f" / {code(one.acknowledge_error_code)}"
                parts.append(text if one.partition_index == 0 or not text else f"{one.partition_index}: {text}")
        return " ".join(part for part in parts if part)

    async def acknowledge(
        self, acks: Acks | None = None, epoch: int | None = None, version: int = 2, **fields: Any
    ) -> str:
        """The names of the errors of the partitions, NONE if there is none; or that of the request."""
        epoch = self.session_epoch if epoch is None else epoch
        topic_id = fields.pop("topic_id", None) or self.world.topics[self.topics[0]].topic_id
        values: dict[str, Any] = {
            "group_id": "jobs",
            "member_id": f"member-{self.name}",
            "share_session_epoch": epoch,
            "topics": _topics(topic_id, acks or {}),
            **fields,
        }
        self.session_epoch = epoch + 1
        answer = await self.ask(ACKNOWLEDGE, version, **values)
        if answer.error_code is not ErrorCode.none:
            return code(answer.error_code)
        if version >= 2:
            self.lock_ms = answer.acquisition_lock_timeout // _MS
        codes = [code(one.error_code) for topic in answer.responses for one in topic.partitions]
        return " ".join(codes) or "NONE"

    async def ack(self, first: int, last: int, *kinds: int, **fields: Any) -> str:
        """Acknowledge one range of partition 0."""
        return await self.acknowledge({0: [(first, last, kinds or (ACCEPT,))]}, **fields)


def _topics(topic_id: UUID, partitions: Acks) -> list[Any]:
    named = [
        {
            "partition_index": index,
            "acknowledgement_batches": [
                {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
                for first, last, types in batches
            ],
        }
        for index, batches in partitions.items()
    ]
    return [{"topic_id": topic_id, "partitions": named}] if named else []


def _forgotten(topic_id: UUID, indexes: Iterable[int]) -> list[Any]:
    forgotten = list(indexes)
    return [{"topic_id": topic_id, "partitions": forgotten}] if forgotten else []
