"""What records cost: produced and consumed in bulk by librdkafka, raw batches, and one at a time end to end."""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import threading
import time
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from bench.endpoint import Endpoint
from bench.kafka_wire import PRODUCE, MeasureFailed, Wire, decode, encode, request
from bench.processes import Meter, percentiles
from tidegate.records.build import NewRecord, build_batch

PARTITIONS: Final = 4
_FLUSH_TIMEOUT_S: Final = 120.0
_QUIET: Final = {"log_level": 3, "broker.address.family": "v4"}


def fill(bootstrap: str, topic: str, count: int, size: int, idempotent: bool) -> None:
    """Produce `count` records of `size` random bytes, round robin, and wait until all are acknowledged."""
    producer = Producer(
        {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "enable.idempotence": idempotent,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 256 << 10,
        }
    )
    values = [os.urandom(size) for _ in range(64)]
    for number in range(count):
        while True:
            try:
                producer.produce(topic, values[number % 64], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(_FLUSH_TIMEOUT_S):
        raise MeasureFailed("records were not acknowledged in time")


async def _check_ends(endpoint: Endpoint, topic: str, leaders: list[str], count: int) -> None:
    ends = await endpoint.end_offsets(topic, leaders)
    if sum(ends) != count:
        raise MeasureFailed(f"{count} records were sent, the logs end at {ends}")


def _sized(args: argparse.Namespace) -> int:
    return int(max(args.megabytes * 1_000_000 // args.size, 1))


async def produce(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """librdkafka, acks=all, linger 5 ms, no compression, 4 partitions: first produce() until all acknowledged."""
    count = _sized(args)
    async with endpoint.topic("produce", PARTITIONS) as (topic, leaders):
        meter = Meter(endpoint.pids)
        meter.start()
        await asyncio.to_thread(fill, endpoint.bootstrap, topic, count, args.size, args.idempotent)
        seconds = meter.stop()
        await _check_ends(endpoint, topic, leaders, count)
    rate = {"size": args.size, "mb_per_s": round(count * args.size / seconds / 1e6, 1)}
    return {**rate, "idempotent": args.idempotent, **meter.figures(count)}


def drain(bootstrap: str, topic: str, count: int) -> None:
    """Read `count` records from the beginning. Raises MeasureFailed."""
    own = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**_QUIET, **own, "fetch.queue.backoff.ms": 10})  # its default is a pause of 1 s
    try:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        observed, deadline = 0, time.monotonic() + _FLUSH_TIMEOUT_S
        while observed < count:
            records = consumer.consume(min(10_000, count - observed), 1.0)  # it waits for as many
            for record in records:
                if record.error():
                    raise MeasureFailed(str(record.error()))
            observed += len(records)
            if time.monotonic() > deadline:
                raise MeasureFailed(f"{observed} of {count} records came")
    finally:
        consumer.close()


async def consume(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """librdkafka from the beginning of 4 partitions, filled before: assign() until the last record."""
    count = _sized(args)
    async with endpoint.topic("consume", PARTITIONS) as (topic, _):
        await asyncio.to_thread(fill, endpoint.bootstrap, topic, count, args.size, False)
        meter = Meter(endpoint.pids)
        meter.start()
        await asyncio.to_thread(drain, endpoint.bootstrap, topic, count)
        seconds = meter.stop()
    return {"size": args.size, "mb_per_s": round(count * args.size / seconds / 1e6, 1), **meter.figures(count)}


def built_batch(count: int, size: int) -> bytes:
    """A batch of random records of now."""
    now_ms = int(time.time() * 1_000)
    return build_batch([NewRecord(os.urandom(size), timestamp=now_ms) for _ in range(count)])


def produce_frame(topic: str, partition: int, batch: bytes) -> bytes:
    """A Produce request of one batch, acks=all."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
    return encode(request(PRODUCE, transactional_id=None, acks=-1, timeout=30_000, topic_data=data))


def refusal(payload: bytes) -> ErrorCode:
    """What a Produce response says of its one partition."""
    code: ErrorCode = decode(PRODUCE, payload).responses[0].partition_responses[0].error_code
    return code


async def _push(address: str, frame: bytes, batches: int, depth: int) -> None:
    """Send one frame `batches` times with `depth` in flight; every answer is checked."""
    wire = await Wire.connect(address)
    left = batches

    async def lane() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            code = refusal(await wire.send(frame))
            if code is not ErrorCode.none:
                raise MeasureFailed(f"Produce: {code.name}")

    try:
        await asyncio.gather(*(lane() for _ in range(depth)))
    finally:
        wire.close()


async def _primed(address: str, frame: bytes) -> None:
    """A new topic's leader may refuse for a moment."""
    wire = await Wire.connect(address)
    for _ in range(100):
        if refusal(await wire.send(frame)) is ErrorCode.none:
            break
        await asyncio.sleep(0.05)
    wire.close()


async def batches(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """Prebuilt batches of `--batch-records` x `--size`, acks=all: the broker without librdkafka's cost."""
    batch = built_batch(args.batch_records, args.size)
    each = max(int(args.megabytes * 1_000_000 / len(batch) / PARTITIONS), 1)
    async with endpoint.topic("batches", PARTITIONS) as (topic, leaders):
        frames = [produce_frame(topic, index, batch) for index in range(PARTITIONS)]
        await asyncio.gather(*(_primed(address, frame) for address, frame in zip(leaders, frames, strict=True)))
        meter = Meter(endpoint.pids)
        meter.start()
        pushes = zip(leaders, frames, strict=True)
        await asyncio.gather(*(_push(address, frame, each, args.depth) for address, frame in pushes))
        seconds = meter.stop()
        count = (each + 1) * PARTITIONS * args.batch_records
        await _check_ends(endpoint, topic, leaders, count)
    sent = each * PARTITIONS
    figures = {"batch_bytes": len(batch), "mb_per_s": round(sent * len(batch) / seconds / 1e6, 1)}
    return {**figures, **meter.figures(sent)}


class _Receiver(threading.Thread):
    """Polls in a thread of its own; notes how long after its stamp each record was there."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.latencies: list[tuple[float, float]] = []
        self.ready = threading.Event()
        self.ending = threading.Event()
        self._topic = topic
        self._consumer = Consumer(
            {**_QUIET, "bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
        )

    def run(self) -> None:
        """Until it is stopped."""
        self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        while not self.ending.is_set():
            record = self._consumer.poll(0.2)
            value = None if record is None or record.error() else record.value()
            if value is None:
                continue
            now = time.perf_counter()
            (sent,) = struct.unpack_from(">d", value)
            self.latencies.append((sent, now - sent))
            self.ready.set()
        self._consumer.close()


def _send_at(producer: Producer, topic: str, rate: int, seconds: float, size: int) -> float:
    """Send stamped records at a rate; how late the sender itself was at worst, in seconds."""
    began, late, padding = time.perf_counter(), 0.0, bytes(max(size - 8, 0))
    for number in range(int(rate * seconds)):
        due = began + number / rate
        wait = due - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        now = time.perf_counter()
        late = max(late, now - due)
        producer.produce(topic, struct.pack(">d", now) + padding, partition=0)
        producer.poll(0)
    producer.flush(30)
    return late


def _latency(endpoint: Endpoint, topic: str, args: argparse.Namespace) -> dict[str, Any]:
    receiver = _Receiver(endpoint.bootstrap, topic)
    producer = Producer(
        {**_QUIET, "bootstrap.servers": endpoint.bootstrap, "acks": "all", "linger.ms": 0, "enable.idempotence": False}
    )
    receiver.start()
    _send_at(producer, topic, 10, 0.5, args.size)
    if not receiver.ready.wait(20):
        raise MeasureFailed("the consumer saw nothing")
    meter = Meter(endpoint.pids)
    _send_at(producer, topic, args.rate, args.warmup, args.size)
    meter.start()
    began, count = time.perf_counter(), int(args.rate * args.seconds)
    late = _send_at(producer, topic, args.rate, args.seconds, args.size)
    meter.stop()
    time.sleep(1.0)
    receiver.ending.set()
    receiver.join(20)
    observed = [took for sent, took in receiver.latencies if sent >= began]
    if len(observed) != count:
        raise MeasureFailed(f"{len(observed)} of {count} records came")
    return {**meter.figures(count), **percentiles(observed), "sender_max_late_ms": round(late * 1e3, 2)}


async def latency(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """One record at a time at `--rate`: just before produce() until the consumer's poll() returns it."""
    async with endpoint.topic("latency", 1) as (topic, _):
        return {"rate": args.rate, "size": args.size, **await asyncio.to_thread(_latency, endpoint, topic, args)}
