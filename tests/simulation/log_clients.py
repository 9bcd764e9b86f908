"""Producers and readers of a topic as client libraries have them: idempotent, five in flight, retried in order.

A producer keeps to one broker for each partition until that broker fails it, whoever leads the partition: so several
brokers append to one partition at a time. What it cannot know (the broker died, the answer was lost) it sends again
with the same sequence, as Java's and librdkafka's do. Everything is noted in a history, which `tests.kit.checker`
judges.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tests.kit.history import Outcome, Poll, Records, Send
from tests.kit.wire import decode_response, encode_request, request
from tests.simulation.wire import Disconnected, Wire
from tests.support.log_broker import fetch_request, produce_request
from tidegate.records.batch import iter_headers
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.record import read_records

if TYPE_CHECKING:
    from tests.simulation.log_traffic import LogTraffic

TOPIC: Final = "log"
PRODUCE, FETCH, INIT_PRODUCER_ID = 0, 1, 22
PRODUCE_VERSION, FETCH_VERSION = 9, 12
IN_FLIGHT_MAX: Final = 5
EVERY_S: Final = 15.0
"""Between two batches of a producer for one partition, on average."""
BURST_SHARE: Final = 0.15
"""Of the batches, those that several others follow at once."""
REQUEST_TIMEOUT_S: Final = 12.0
FETCH_WAIT_MS: Final = 4_000
FETCH_BYTES_MAX: Final = 4_000
LIFE_S: Final = 300.0
"""Of a producer process, on average; the next one is another producer."""
_BACK_OFF_S: Final = (1 / 16, 1 / 8, 1 / 4)
_RETRIED: Final = frozenset(
    {
        ErrorCode.request_timed_out,
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)


@dataclass(slots=True)
class SentBatch:
    """Records with the sequence of the first; sent again until their fate is known."""

    values: tuple[str, ...]
    sequence: int
    began: int
    """ns; later batches of a partition have higher ones, even of one instant."""
    data: bytes = b""


@dataclass(slots=True)
class PartitionQueue:
    """One producer's batches of one partition that are not answered for good, in order."""

    index: int
    port: int
    unacked: deque[SentBatch] = field(default_factory=deque)
    sequence: int = 0
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class LogClient:
    """Connections of one client process, one for each broker."""

    def __init__(self, traffic: LogTraffic, name: str, rng: random.Random) -> None:
        self.traffic, self.name, self.rng = traffic, name, rng
        self._wires: dict[int, Wire] = {}
        self._dialling = asyncio.Lock()

    async def wire(self, port: int) -> Wire:
        """An open connection. Raises Disconnected."""
        async with self._dialling:
            wire = self._wires.get(port)
            if wire is None or not wire.open:
                wire = self._wires[port] = Wire(self.traffic.world.net, port, lambda: None)
                await wire.ready()
            return wire

    async def ask(self, port: int, request: Any, timeout_s: float) -> Any:
        """The answer's body. Raises Disconnected."""
        return await (await self.wire(port)).ask(request, self.name, timeout_s)

    async def back_off(self) -> None:
        await asyncio.sleep(self.rng.choice(_BACK_OFF_S))

    def other_port(self) -> int:
        return self.rng.choice(self.traffic.world.ports)

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()


class Writer(LogClient):
    """An idempotent producer, from its producer id to its end."""

    def __init__(self, traffic: LogTraffic, name: str, rng: random.Random) -> None:
        super().__init__(traffic, name, rng)
        self.producer_id = self.producer_epoch = -1
        self.queues = [PartitionQueue(index, self.other_port()) for index in range(traffic.partition_count)]
        self.is_over = False
        self._numbers = itertools.count()

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._init()
        async with asyncio.TaskGroup() as tasks:
            for queue in self.queues:
                tasks.create_task(self._fill(queue))
                tasks.create_task(self._drain(queue))

    def note_unanswered(self) -> None:
        """Its process ends: nobody knows what became of these."""
        for queue in self.queues:
            for batch in queue.unacked:
                self._note(queue.index, batch, Outcome.UNKNOWN, -1)

    async def _init(self) -> None:
        asked = request(
            INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        while self.producer_id < 0:
            try:
                answer = await self.ask(self.other_port(), asked, REQUEST_TIMEOUT_S)
            except Disconnected:
                await self.back_off()
                continue
            if answer.error_code is ErrorCode.none:
                self.producer_id, self.producer_epoch = int(answer.producer_id), int(answer.producer_epoch)
            else:
                await self.back_off()

    async def _fill(self, queue: PartitionQueue) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / EVERY_S))
            await self.traffic.until_not_calm()
            for _ in range(self.rng.randrange(3, 9) if self.rng.random() < BURST_SHARE else 1):
                values = tuple(
                    f"{self.name}:{queue.index}:{next(self._numbers)}" for _ in range(self.rng.choice((1, 1, 3)))
                )
                queue.unacked.append(SentBatch(values, queue.sequence, self.traffic.now_ns() + queue.sequence))
                queue.sequence += len(values)
            queue.woken.set()

    async def _drain(self, queue: PartitionQueue) -> None:
        while True:
            if not queue.unacked:
                queue.woken.clear()
                await queue.woken.wait()
            batches = list(itertools.islice(queue.unacked, IN_FLIGHT_MAX))
            try:
                wire = await self.wire(queue.port)
                answers = await self._pipelined(wire, queue, batches)
            except Disconnected:
                queue.port = self.other_port()
                await self.back_off()
                continue
            if self._take(queue, batches, answers):
                await self.back_off()

    async def _pipelined(
        self, wire: Wire, queue: PartitionQueue, batches: Sequence[SentBatch]
    ) -> list[tuple[ErrorCode, int] | None]:
        """Send all without waiting; the code and offset of each, None where the connection ended before."""
        if not wire.open:
            raise Disconnected
        answered: list[asyncio.Future[bytes]] = []
        for batch in batches:
            answered.append(self.traffic.world.loop.create_future())
            wire.send(self._frame(queue.index, batch), answered[-1])
        late = self.traffic.world.loop.call_later(REQUEST_TIMEOUT_S, wire.close)
        try:
            payloads = await asyncio.gather(*answered, return_exceptions=True)
        finally:
            late.cancel()
        return [None if isinstance(one, BaseException) else _produced(one) for one in payloads]

    def _frame(self, index: int, batch: SentBatch) -> bytes:
        if not batch.data:
            now_ms = self.traffic.world.redis.now_ms()
            batch.data = build_batch(
                [NewRecord(value.encode(), timestamp=now_ms) for value in batch.values],
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=batch.sequence,
            )
        return encode_request(produce_request([(TOPIC, [(index, batch.data)])], version=PRODUCE_VERSION), 0, self.name)

    def _take(
        self, queue: PartitionQueue, batches: Sequence[SentBatch], answers: Sequence[tuple[ErrorCode, int] | None]
    ) -> bool:
        """Note what is known; whether something has to be sent again. Raises Violation."""
        failed = False
        for batch, answer in zip(batches, answers, strict=True):
            code, offset = (None, -1) if answer is None else answer
            if code is ErrorCode.none or code is ErrorCode.duplicate_sequence_number:
                queue.unacked.remove(batch)
                self._note(queue.index, batch, Outcome.OK, offset if code is ErrorCode.none else -1)
                continue
            if code is ErrorCode.out_of_order_sequence_number and not failed:
                raise self.traffic.broken(
                    "P4", f"{self.name}: sequence {batch.sequence} of partition {queue.index} is out of order, "
                    "though every earlier one is in the log"
                )  # fmt: skip
            if code is not None and code not in _RETRIED and code is not ErrorCode.out_of_order_sequence_number:
                raise self.traffic.broken("P7", f"{self.name}: Produce was answered {code.name}")
            failed = True
        if None in answers:
            queue.port = self.other_port()
        return failed

    def _note(self, index: int, batch: SentBatch, outcome: Outcome, offset: int) -> None:
        now, partition = self.traffic.now_ns(), self.traffic.partition(index)
        for delta, value in enumerate(batch.values):
            where = -1 if offset < 0 else offset + delta
            self.traffic.history.add(Send(self.name, batch.began + delta, now, partition, value, outcome, where))


class LogReader(LogClient):
    """Reads every partition from its start, as a consumer that assigns itself; never goes back."""

    def __init__(self, traffic: LogTraffic, name: str, rng: random.Random) -> None:
        super().__init__(traffic, name, rng)
        self.positions = [0] * traffic.partition_count
        self.ends = [0] * traffic.partition_count

    async def run(self) -> None:
        """Until it is cancelled."""
        port = self.other_port()
        while True:
            began = self.traffic.now_ns()
            request = fetch_request(
                [(TOPIC, list(enumerate(self.positions)))], version=FETCH_VERSION, max_wait_ms=FETCH_WAIT_MS,
                partition_max_bytes=FETCH_BYTES_MAX,
            )  # fmt: skip
            try:
                answer = await self.ask(port, request, FETCH_WAIT_MS / 1000 + REQUEST_TIMEOUT_S)
            except Disconnected:
                port = self.other_port()
                await self.back_off()
                continue
            codes = [self._take(one, began) for topic in answer.responses for one in topic.partitions]
            if any(codes) or answer.error_code is not ErrorCode.none:
                await self.back_off()

    def _take(self, found: Any, began: int) -> bool:
        """Note the records of a partition; whether there was an error instead. Raises Violation."""
        index, code = found.partition_index, found.error_code
        if code is not ErrorCode.none:
            if code not in _RETRIED:
                raise self.traffic.broken("P7", f"{self.name}: Fetch was answered {code.name}")
            return True
        records = _records_from(found.records or b"", self.positions[index])
        self.ends[index] = max(self.ends[index], found.high_watermark)
        if records:
            self.positions[index] = records[-1][0] + 1
            poll = Poll(self.name, began, self.traffic.now_ns(), self.traffic.partition(index), records)
            self.traffic.history.add(poll)
        return False


def _produced(payload: bytes) -> tuple[ErrorCode, int]:
    answer = decode_response(PRODUCE, PRODUCE_VERSION, payload)[1].responses[0].partition_responses[0]
    return answer.error_code, int(answer.base_offset)


def _records_from(data: bytes, position: int) -> Records:
    """What a client hands out of a Fetch: whole batches, without the records before its position."""
    return tuple(
        (record.offset, (record.value or b"").decode())
        for batch in iter_headers(data)
        for record in read_records(batch)
        if record.offset >= position
    )
