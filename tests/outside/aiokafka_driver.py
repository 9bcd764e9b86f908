"""aiokafka: the sticky (eager) assignor, static members, commits that are awaited or reported later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

from tests.kit.history import now_ns
from tests.outside.member import GroupMember


class AiokafkaDriver(ConsumerRebalanceListener):  # type: ignore[misc]
    """Everything in one loop."""

    errors = (KafkaError,)

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self._topic = member.spec.topic
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        spec = self._member.spec
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=spec.bootstrap,
            client_id=spec.name,
            group_id=spec.group,
            group_instance_id=spec.instance_id,
            partition_assignment_strategy=(StickyPartitionAssignor,),
            session_timeout_ms=spec.session_timeout_ms,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        self._consumer.subscribe([self._topic], listener=self)
        await self._consumer.start()

    async def poll(self) -> Mapping[int, list[tuple[int, str]]]:
        polled = await self._consumer.getmany(timeout_ms=100)
        return {tp.partition: [(one.offset, one.value.decode()) for one in records] for tp, records in polled.items()}

    async def commit(self, offsets: Mapping[int, int], synchronous: bool) -> None:
        committing = asyncio.ensure_future(self._commit(dict(offsets)))
        if synchronous:
            await committing
        else:
            self._tasks.add(committing)
            committing.add_done_callback(self._tasks.discard)

    async def _commit(self, offsets: dict[int, int]) -> None:
        began, generation = now_ns(), self._coordinator.generation
        try:
            await self._consumer.commit({self._tp(partition): offset for partition, offset in offsets.items()})
            error = None
        except KafkaError as failed:
            error = type(failed).__name__
        self._member.committed(began, offsets, (generation, self._coordinator.generation), error)

    async def committed(self, partitions: list[int]) -> Mapping[int, int]:
        found = {}
        for partition in partitions:
            offset = await self._consumer.committed(self._tp(partition))
            found[partition] = -1 if offset is None else offset
        return found

    async def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(self._tp(partition), offset)

    async def pause(self, partition: int) -> None:
        self._consumer.pause(self._tp(partition))

    async def resume(self, partition: int) -> None:
        self._consumer.resume(self._tp(partition))

    async def close(self) -> None:
        await asyncio.gather(*self._tasks)
        await self._consumer.stop()

    # -- the listener

    async def on_partitions_revoked(self, revoked: Any) -> None:
        partitions = [tp.partition for tp in revoked]
        offsets = self._member.uncommitted(partitions)
        await asyncio.gather(*self._tasks)
        if offsets:
            await self._commit(offsets)
        if not self._member.stopping:
            self._member.released("revoked", partitions)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.assigned(
            (tp.partition for tp in assigned), self._coordinator.generation, self._coordinator.member_id
        )

    @property
    def _coordinator(self) -> Any:
        return self._consumer._coordinator

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)


def open_driver(member: GroupMember) -> AiokafkaDriver:
    """This library's driver."""
    return AiokafkaDriver(member)
