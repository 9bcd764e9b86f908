"""`python -m bench formats`: topics of format `record` beside format `batch`: produce, consume, memory of a record.

One broker and one Valkey, 4 partitions, librdkafka without compression; the formats take turns, and the medians are
printed as rows of a table. docs/record-topics.md has the published figures.
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Final

import redis

from bench.client_groups import create_topic
from bench.cluster import Cluster
from bench.logs import PARTITIONS, drain, fill
from bench.processes import Meter
from bench.report import shown

FORMATS: Final = ("batch", "record")
_FIGURES: Final = (
    ("produce_mb_per_s", "produce, MB/s"),
    ("produce_cpu_us", "produce, server CPU, µs a record"),
    ("consume_mb_per_s", "consume, MB/s"),
    ("consume_cpu_us", "consume, server CPU, µs a record"),
    ("bytes_per_record", "memory of a record in Redis, bytes"),
)


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `formats`."""
    command.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="bytes of a record's value")
    command.add_argument("--megabytes", type=float, default=30.0, help="of values, for each measure")
    command.add_argument("--rounds", type=int, default=3)


def main(args: argparse.Namespace) -> int:
    """Measure and print. Raises MeasureFailed where a record was missing."""
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    for size in args.sizes:
        count = int(args.megabytes * 1_000_000 // size)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in FORMATS}
        for _ in range(args.rounds):
            for name in FORMATS:
                found[name].append(_measured(name, count, size))
        for row in _rows(size, found):
            print(row, flush=True)
    return 0


def _measured(name: str, count: int, size: int) -> dict[str, float]:
    """One round of one format, on a cluster of its own."""
    with Cluster(1) as cluster, redis.Redis(port=cluster.redis_port) as server:
        create_topic(cluster.bootstrap, "measured", PARTITIONS, tidegate_format=name)
        before = _used(server)
        meter = Meter(cluster.pids)
        meter.start()
        fill(cluster.bootstrap, "measured", count, size, False)
        seconds, written = meter.stop(), meter.figures(count)
        used = _used(server) - before
        meter.start()
        drain(cluster.bootstrap, "measured", count)
        reading_s, read = meter.stop(), meter.figures(count)
    megabytes = count * size / 1e6
    return {
        "produce_mb_per_s": megabytes / seconds,
        "produce_cpu_us": written["cpu_us_per_op"],
        "consume_mb_per_s": megabytes / reading_s,
        "consume_cpu_us": read["cpu_us_per_op"],
        "bytes_per_record": used / count,
    }


def _used(server: redis.Redis) -> int:
    """Bytes of all logs in Redis."""
    keys = [*server.scan_iter("tidegate:*:log"), *server.scan_iter("tidegate:*:records")]
    return sum(int(server.memory_usage(key, samples=0) or 0) for key in keys)


def _rows(size: int, found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Rows of a table: the figure, its median for each format."""
    rows = []
    for key, title in _FIGURES:
        medians = [statistics.median(one[key] for one in found[name]) for name in FORMATS]
        rows.append(f"| {size} B: {title} | {' | '.join(shown(value) for value in medians)} |")
    return rows
