"""`python -m bench.mirror`: what it costs to show groups as Redis consumer groups: two clusters, mirror off and on.

Turn by turn, so that both meet the same neighbours: commits as fast as they are answered; a group that reads back a
log; a group that follows a producer whose records are entries of their own, the case where a mirror has most to do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from typing import Any, Final

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no `__all__`
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench import logs, measures, suite
from bench.cluster import Cluster
from bench.endpoint import Endpoint
from bench.kafka_wire import MeasureFailed
from bench.processes import Meter

_TIMEOUT_S: Final = 120.0
_STEPS: Final = (
    ("one commit", "commits --connections 64 --depth 4 --seconds 3"),
    ("one MB read back", "group-consume --megabytes 200 --size 1000"),
    ("one record followed", "group-tail --rate 1000 --size 100 --seconds 6"),
)
_FIGURES: Final = ("broker_cpu_us_per_op", "redis_cpu_us_per_op", "cpu_us_per_op")


def _join(endpoint: Endpoint, topic: str) -> Consumer:
    """A member that owns every partition and commits each second."""
    consumer = Consumer(
        {
            "log_level": 3, "broker.address.family": "v4", "bootstrap.servers": endpoint.bootstrap,
            "group.id": f"bench-{topic}", "client.id": "bench-mirror", "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 1_000,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    return consumer


def _read(consumer: Consumer, count: int) -> None:
    ends, observed = time.monotonic() + _TIMEOUT_S, 0
    while observed < count:
        observed += len(consumer.consume(10_000, 0.2))
        if time.monotonic() > ends:
            raise MeasureFailed(f"{observed} of {count} records came")


async def group_consume(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """A group's only member reads 4 partitions from the beginning, until a second after the last record; per MB."""
    count = int(args.megabytes * 1_000_000 // args.size)
    async with endpoint.topic("group-consume", 4) as (topic, _):
        await asyncio.to_thread(logs.fill, endpoint.bootstrap, topic, count, args.size, False)
        consumer = _join(endpoint, topic)
        meter = Meter(endpoint.pids)
        meter.start()
        await asyncio.to_thread(_read, consumer, count)
        await asyncio.sleep(1.0)
        meter.stop()
        await asyncio.to_thread(consumer.close)
    return meter.figures(int(args.megabytes))


def _follow(endpoint: Endpoint, topic: str, args: argparse.Namespace) -> dict[str, Any]:
    producer = Producer(
        {"log_level": 3, "broker.address.family": "v4", "bootstrap.servers": endpoint.bootstrap, "linger.ms": 0}
    )
    consumer = _join(endpoint, topic)
    logs._send_at(producer, topic, 100, 1.0, args.size)
    _read(consumer, 100)
    meter, count = Meter(endpoint.pids), int(args.rate * args.seconds)
    meter.start()
    began, sent = time.perf_counter(), 0
    while sent < count:
        due = min(int((time.perf_counter() - began) * args.rate) + 1, count)
        for _ in range(due - sent):
            producer.produce(topic, bytes(args.size), partition=0)
        sent = due
        producer.poll(0)
        consumer.consume(1_000, 0.0005)
    producer.flush(30)
    meter.stop()
    consumer.close()
    return meter.figures(count)


async def group_tail(endpoint: Endpoint, args: argparse.Namespace) -> dict[str, Any]:
    """A group's only member follows a producer of `--rate` records a second that does not linger; per record."""
    async with endpoint.topic("group-tail", 1) as (topic, _):
        return await asyncio.to_thread(_follow, endpoint, topic, args)


def _enable(cluster: Cluster, is_on: bool) -> None:
    entry = ConfigEntry("mirror.groups", str(is_on).lower(), incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for done in admin.incremental_alter_configs([broker]).values():
        done.result(_TIMEOUT_S)


def main() -> int:
    """Measure and print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the names of what is measured")
    parser.add_argument("--quick", action="store_true", help="small numbers: does it run at all?")
    args = parser.parse_args()
    steps = [step for step in _STEPS if args.only in step[0]]
    measures.MEASURES.update({"group-consume": group_consume, "group-tail": group_tail})
    found: dict[tuple[str, str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        endpoints = {}
        for mirror in ("off", "on"):
            cluster = stack.enter_context(Cluster(1, {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}))
            _enable(cluster, mirror == "on")
            endpoints[mirror] = Endpoint(cluster.bootstrap, cluster.pids)
        for round_number in range(args.rounds):
            for title, command in steps:
                for mirror in sorted(endpoints, reverse=bool(round_number % 2)):
                    name, options = suite.parse(command, args.quick)
                    row = suite.measured(endpoints[mirror], name, options)
                    if "error" in row:
                        print(title, mirror, row["error"], flush=True)
                        return 1
                    for figure in _FIGURES:
                        found.setdefault((title, mirror, figure), []).append(row[figure])
    print("| CPU, µs | mirror | broker | Redis | together |\n|---|---|---|---|---|")
    for title, _ in steps:
        for mirror in ("off", "on"):
            medians = [f"{statistics.median(found[title, mirror, figure]):.1f}" for figure in _FIGURES]
            print(f"| {title} | {mirror} | {' | '.join(medians)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
