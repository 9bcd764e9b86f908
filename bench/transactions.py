"""What transactions cost: a producer that commits every `--batch-records` records, and reading what it committed."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import KafkaException, Producer

from bench.endpoint import Endpoint
from bench.kafka_wire import MeasureFailed
from bench.logs import PARTITIONS, drain
from bench.processes import Meter, percentiles

_WAIT_S: Final = 60.0


@contextmanager
def _failing() -> Iterator[None]:
    """librdkafka's errors as the measure's."""
    try:
        yield
    except KafkaException as error:
        raise MeasureFailed(str(error.args[0])) from error


class _Transactions:
    """One transactional producer."""

    def __init__(self, bootstrap: str, topic: str, size: int) -> None:
        self._topic = topic
        self._values = [os.urandom(size) for _ in range(64)]
        self._producer = Producer({
            "log_level": 3, "broker.address.family": "v4", "bootstrap.servers": bootstrap,
            "transactional.id": f"bench-{uuid4().hex}", "linger.ms": 0,
        })  # fmt: skip
        self._producer.init_transactions(_WAIT_S)

    def run(self, count: int) -> float:
        """One transaction of records over all partitions; seconds that its commit took."""
        self._producer.begin_transaction()
        for number in range(count):
            self._producer.produce(self._topic, self._values[number % 64], partition=number % PARTITIONS)
        if self._producer.flush(_WAIT_S):
            raise MeasureFailed("records were not acknowledged in time")
        began = time.perf_counter()
        self._producer.commit_transaction(_WAIT_S)
        return time.perf_counter() - began

    def run_for(self, seconds: float, count: int) -> list[float]:
        """Transactions one after another; the seconds of each commit."""
        ends, commits = time.perf_counter() + seconds, list[float]()
        while time.perf_counter() < ends:
            commits.append(self.run(count))
        return commits


async def transactions(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """librdkafka: transactions of `--batch-records` records in 4 partitions, one after another; the time of commits."""
    async with endpoint.topic("transactions", PARTITIONS) as (topic, _):
        with _failing():
            producer = await asyncio.to_thread(_Transactions, endpoint.bootstrap, topic, args.size)
            await asyncio.to_thread(producer.run_for, args.warmup, args.batch_records)
            meter = Meter(endpoint.pids)
            meter.start()
            commits = await asyncio.to_thread(producer.run_for, args.seconds, args.batch_records)
            meter.stop()
    return {"batch_records": args.batch_records, **meter.figures(len(commits)), **percentiles(commits)}


async def consume_committed(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """librdkafka under read_committed, from the beginning of 4 partitions that transactions have filled."""
    rounds = max(int(args.megabytes * 1_000_000 / args.size / args.batch_records), 1)
    count = rounds * args.batch_records
    async with endpoint.topic("committed", PARTITIONS) as (topic, _):
        with _failing():
            producer = await asyncio.to_thread(_Transactions, endpoint.bootstrap, topic, args.size)
            for _ in range(rounds):
                await asyncio.to_thread(producer.run, args.batch_records)
        meter = Meter(endpoint.pids)
        meter.start()
        await asyncio.to_thread(drain, endpoint.bootstrap, topic, count)
        seconds = meter.stop()
    return {"size": args.size, "mb_per_s": round(count * args.size / seconds / 1e6, 1), **meter.figures(count)}
