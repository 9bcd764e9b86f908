"""Many readers wait at the end of one partition's log; each record goes to all of them."""

from __future__ import annotations

import argparse
import asyncio
import time
from datetime import timedelta
from typing import Any, Final

from bench.endpoint import Endpoint
from bench.kafka_wire import FETCH, PRODUCE, MeasureFailed, Wire, decode, encode, request
from bench.logs import built_batch, produce_frame
from bench.processes import Meter, percentiles

_CONNECTS_AT_ONCE: Final = 32
_MAX_WAIT: Final = timedelta(milliseconds=500)
_BYTES_MAX: Final = 1 << 20
_FINISH_S: Final = 10.0


class Reader:
    """A connection with one fetch in flight, without a session."""

    def __init__(self, wire: Wire, topic: str, sent_s: list[float]) -> None:
        self._wire, self._topic, self._sent_s = wire, topic, sent_s
        self.offset = 0
        self.latencies: list[float] = []

    async def read(self) -> None:
        """Read from the log's start on, until cancelled."""
        while True:
            payload = await self._wire.send(fetch_frame(self._topic, self.offset))
            now_s = time.perf_counter()
            [partition] = decode(FETCH, payload).responses[0].partitions
            if partition.error_code.value:
                raise MeasureFailed(f"Fetch: {partition.error_code.name}")
            if partition.records:  # all that there are: they are small
                self.latencies += [now_s - at for at in self._sent_s[self.offset : partition.high_watermark]]
                self.offset = partition.high_watermark


def fetch_frame(topic: str, offset: int) -> bytes:
    """A long poll of the topic's only partition."""
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": _BYTES_MAX}
    return encode(request(
        FETCH, max_wait=_MAX_WAIT, min_bytes=1, max_bytes=_BYTES_MAX,
        topics=[{"topic": topic, "partitions": [partition]}], forgotten_topics_data=[],
    ))  # fmt: skip


async def fan_out(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """`--rate` records a second, each to every one of `--connections` that long-poll one partition."""
    async with endpoint.topic("fan-out", 1) as (topic, [leader]):
        sent_s: list[float] = []
        readers = await _readers(leader, args.connections, topic, sent_s)
        tasks = [asyncio.create_task(reader.read()) for reader in readers]
        try:
            await asyncio.sleep(args.warmup)
            meter = Meter(endpoint.pids)
            meter.start()
            await _while_reading(tasks, _produce(leader, topic, args, sent_s, readers))
            meter.stop()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        latencies = [latency for reader in readers for latency in reader.latencies]
        found = {"connections": args.connections, "rate": args.rate}
        return {**found, **meter.figures(len(latencies)), **percentiles(latencies)}


async def _readers(address: str, count: int, topic: str, sent_s: list[float]) -> list[Reader]:
    connecting = asyncio.Semaphore(_CONNECTS_AT_ONCE)

    async def connect() -> Reader:
        async with connecting:
            return Reader(await Wire.connect(address), topic, sent_s)

    return list(await asyncio.gather(*(connect() for _ in range(count))))


async def _while_reading(tasks: list[asyncio.Task[None]], producing: Any) -> None:
    """Produce, unless a reader fails first. Raises what it failed with."""
    producer = asyncio.create_task(producing)
    await asyncio.wait([*tasks, producer], return_when=asyncio.FIRST_COMPLETED)
    if not producer.done():
        producer.cancel()
    for task in (*tasks, producer):
        if task.done() and not task.cancelled():
            task.result()


async def _produce(
    address: str, topic: str, args: argparse.Namespace, sent_s: list[float], readers: list[Reader]
) -> None:
    """Send the records on time, one request each, and wait until every reader has them. Raises MeasureFailed."""
    frame = produce_frame(topic, 0, built_batch(1, args.size))
    wire, began_s = await Wire.connect(address), time.perf_counter()
    for number in range(int(args.rate * args.seconds)):
        await asyncio.sleep(max(began_s + number / args.rate - time.perf_counter(), 0))
        sent_s.append(time.perf_counter())
        answer = decode(PRODUCE, await wire.send(frame)).responses[0].partition_responses[0]
        if answer.error_code.value:
            raise MeasureFailed(f"Produce: {answer.error_code.name}")
    wire.close()
    ends_s = time.monotonic() + _FINISH_S
    while any(reader.offset < len(sent_s) for reader in readers):
        if time.monotonic() > ends_s:
            raise MeasureFailed(f"{sum(reader.offset < len(sent_s) for reader in readers)} readers miss records")
        await asyncio.sleep(0.01)
