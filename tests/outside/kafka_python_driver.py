"""kafka-python: its sticky (eager) assignor, static members, commits of both kinds.

With its cooperative-sticky assignor (3.0.12) a leader that has given a partition up joins again forever, one
generation after the other, at Apache Kafka 4.1 just as here: `bench.kafka_peer` shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.kit.history import now_ns
from tests.outside.member import GroupMember

Value = TypeVar("Value")


class KafkaPythonDriver(ConsumerRebalanceListener):  # type: ignore[misc]
    """Blocking calls, one at a time, in a thread; its callbacks run inside `poll`."""

    errors = (KafkaError, KeyError, ValueError)  # the latter two: to pause, to seek what was just taken away

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self._topic = member.spec.topic

    async def start(self) -> None:
        spec = self._member.spec
        self._consumer = await self._run(
            lambda: KafkaConsumer(
                bootstrap_servers=spec.bootstrap.split(","),
                client_id=spec.name,
                group_id=spec.group,
                group_instance_id=spec.instance_id,
                partition_assignment_strategy=[StickyPartitionAssignor],
                session_timeout_ms=spec.session_timeout_ms,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            )
        )
        self._consumer.subscribe([self._topic], listener=self)

    async def _run(self, call: Callable[[], Value]) -> Value:
        return await asyncio.to_thread(call)

    async def poll(self) -> Mapping[int, list[tuple[int, str]]]:
        polled = await self._run(lambda: self._consumer.poll(timeout_ms=100))
        return {tp.partition: [(one.offset, one.value.decode()) for one in records] for tp, records in polled.items()}

    async def commit(self, offsets: Mapping[int, int], synchronous: bool) -> None:
        await self._run(lambda: self._commit(dict(offsets), synchronous))

    def _commit(self, offsets: dict[int, int], synchronous: bool) -> None:
        began, generation = now_ns(), self._generation
        wanted = {self._tp(partition): OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}
        if synchronous:
            error = None
            try:
                self._consumer.commit(wanted)
            except KafkaError as failed:
                error = type(failed).__name__
            self._member.committed(began, offsets, (generation, self._generation), error)
            return

        def answered(_: Any, response: Any) -> None:
            error = type(response).__name__ if isinstance(response, Exception) else None
            self._member.committed(began, offsets, (generation, self._generation), error)

        self._consumer.commit_async(wanted, callback=answered)

    async def committed(self, partitions: list[int]) -> Mapping[int, int]:
        def ask() -> dict[int, int]:
            found = {partition: self._consumer.committed(self._tp(partition)) for partition in partitions}
            return {partition: -1 if offset is None else offset for partition, offset in found.items()}

        return await self._run(ask)

    async def seek(self, partition: int, offset: int) -> None:
        self._consumer.seek(self._tp(partition), offset)

    async def pause(self, partition: int) -> None:
        self._consumer.pause(self._tp(partition))

    async def resume(self, partition: int) -> None:
        self._consumer.resume(self._tp(partition))

    async def close(self) -> None:
        await self._run(lambda: self._consumer.close(autocommit=False))

    # -- the listener

    def on_partitions_revoked(self, revoked: Any) -> None:
        """No commit: it would wait for the loop that waits for this to end. What was read last is read again."""
        if not self._member.stopping:
            self._member.released("revoked", [tp.partition for tp in revoked])

    def on_partitions_lost(self, lost: Any) -> None:
        self._member.released("lost", [tp.partition for tp in lost])

    def on_partitions_assigned(self, assigned: Any) -> None:
        generation = self._consumer._coordinator._generation
        self._member.assigned((tp.partition for tp in assigned), generation.generation_id, generation.member_id)

    @property
    def _generation(self) -> int:
        return int(self._consumer._coordinator._generation.generation_id)

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)


def open_driver(member: GroupMember) -> KafkaPythonDriver:
    """This library's driver."""
    return KafkaPythonDriver(member)
