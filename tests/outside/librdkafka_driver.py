"""librdkafka: its cooperative-sticky assignor (KIP-429), static members, commits of both kinds."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.kit.history import now_ns
from tests.outside.member import GroupMember
from tests.support.librdkafka_positions import DEBUG, LibrdkafkaPositions

RECORDS_MAX = 100
POLL_S = 0.1
_METADATA = b"CGMDv2:"
Value = TypeVar("Value")


class LibrdkafkaDriver:
    """Blocking calls, one at a time, in a thread; its callbacks run inside `poll`."""

    errors = (KafkaException,)

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self._topic = member.spec.topic
        self._sent: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._library = LibrdkafkaPositions(member.spec.name)

    async def start(self) -> None:
        spec = self._member.spec
        settings = {
            "bootstrap.servers": spec.bootstrap,
            "client.id": spec.name,
            "group.id": spec.group,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": spec.session_timeout_ms,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "on_commit": self._answered,
            "debug": DEBUG,
            "log_level": 7,
        }
        if spec.instance_id is not None:
            settings["group.instance.id"] = spec.instance_id
        self._consumer = Consumer(settings, logger=self._library.logger)
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)

    async def _run(self, call: Callable[[], Value]) -> Value:
        return await asyncio.to_thread(call)

    async def poll(self) -> Mapping[int, list[tuple[int, str]]]:
        return await self._run(self._poll)

    def _poll(self) -> dict[int, list[tuple[int, str]]]:
        """What is there by now, up to a rebalance: what was read before it is in the journal before it continues."""
        polled: dict[int, list[tuple[int, str]]] = defaultdict(list)
        message = self._consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            self._note_move(message.partition(), message.offset())
            polled[message.partition()].append((message.offset(), message.value().decode()))
        return polled

    def _note_move(self, partition: int, offset: int) -> None:
        """librdkafka moved by itself, and its log says so: a seek like any other."""
        if offset != self._member.positions.get(partition, offset) and self._library.moved(partition, offset):
            self._member.journal.note("seek", partition=partition, offset=offset, by="librdkafka")

    async def commit(self, offsets: Mapping[int, int], synchronous: bool) -> None:
        await self._run(lambda: self._commit(dict(offsets), synchronous))

    def _commit(self, offsets: dict[int, int], synchronous: bool) -> None:
        began, generation = now_ns(), self._generation()
        wanted = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        if not synchronous:
            for asked in offsets.items():
                self._sent[asked].append((began, generation))
            self._consumer.commit(offsets=wanted, asynchronous=True)
            return
        try:
            reported = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as failed:
            self._member.committed(began, offsets, (generation, self._generation()), failed.args[0].name())
            return
        for tp in reported:
            error = None if tp.error is None else tp.error.name()
            self._member.committed(began, {tp.partition: tp.offset}, (generation, self._generation()), error)

    def _answered(self, error: Any, partitions: list[Any]) -> None:
        for tp in partitions:
            sent = self._sent.get((tp.partition, tp.offset))
            if sent:  # else a synchronous one, which has reported already
                began, generation = sent.pop(0)
                failed = error or tp.error
                reported = None if failed is None else failed.name()
                self._member.committed(began, {tp.partition: tp.offset}, (generation, self._generation()), reported)

    async def committed(self, partitions: list[int]) -> Mapping[int, int]:
        asked = [TopicPartition(self._topic, partition) for partition in partitions]
        try:
            found = await self._run(lambda: self._consumer.committed(asked, timeout=20))
        except KafkaException:
            return {}
        return {tp.partition: max(tp.offset, -1) for tp in found if tp.error is None}

    async def seek(self, partition: int, offset: int) -> None:
        await self._run(lambda: self._consumer.seek(TopicPartition(self._topic, partition, offset)))

    async def pause(self, partition: int) -> None:
        self._consumer.pause([TopicPartition(self._topic, partition)])

    async def resume(self, partition: int) -> None:
        self._consumer.resume([TopicPartition(self._topic, partition)])

    async def close(self) -> None:
        await self._run(self._consumer.close)

    # -- the listener

    def _assigned(self, _: Any, partitions: list[Any]) -> None:
        self._member.assigned((tp.partition for tp in partitions), self._generation(), self._consumer.memberid() or "")

    def _revoked(self, _: Any, partitions: list[Any]) -> None:
        if self._member.stopping:
            return
        gone = [tp.partition for tp in partitions]
        offsets = self._member.uncommitted(gone)
        if offsets:
            self._commit(offsets, synchronous=True)
        self._member.released("revoked", gone)

    def _lost(self, _: Any, partitions: list[Any]) -> None:
        self._member.released("lost", [tp.partition for tp in partitions])

    def _generation(self) -> int:
        """From the serialised group metadata: after its name, an int32 in the machine's order."""
        metadata = bytes(self._consumer.consumer_group_metadata() or b"")
        return int(struct.unpack_from("<i", metadata, len(_METADATA))[0]) if metadata.startswith(_METADATA) else -1


def open_driver(member: GroupMember) -> LibrdkafkaDriver:
    """This library's driver."""
    return LibrdkafkaDriver(member)
