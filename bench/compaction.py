"""`python -m bench compaction`: one partition is compacted to the last value of each key: time, CPU, memory.

One broker and one Valkey. The topic keeps all records until it is filled; then it is compacted by request, and what a
consumer reads must be the last value of each key. Peak memory is the broker's largest resident size meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import redis
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has no `__all__`
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench.client_groups import create_topic
from bench.cluster import REPOSITORY, Cluster
from bench.kafka_wire import MeasureFailed, Wire
from bench.logs import produce_frame, refusal
from bench.processes import cpu_seconds
from bench.start import resident_bytes
from tidegate.records.build import NewRecord, build_batch

_TOPIC: Final = "table"
_BATCH_RECORDS: Final = 100
_LANES: Final = 8
_WAIT_S: Final = 60.0
_MIB: Final = 1 << 20


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `compaction`."""
    command.add_argument("--records", type=int, default=5_000_000)
    command.add_argument("--keys", type=int, default=100_000)
    command.add_argument("--value-bytes", type=int, default=40, help="random ones, so no codec makes them fewer")
    command.add_argument("--timeout", type=int, default=1_200, help="seconds for the compaction")


def main(args: argparse.Namespace) -> int:
    """Measure and print one JSON line. Raises MeasureFailed where a wrong record is left."""
    with Cluster(1) as cluster, redis.Redis(port=cluster.redis_port) as server:
        create_topic(cluster.bootstrap, _TOPIC, 1, retention_ms="-1")
        began_s = time.perf_counter()
        last = asyncio.run(_fill(cluster.bootstrap, args))
        found: dict[str, Any] = {"records": args.records, "keys": len(last), "value_bytes": args.value_bytes}
        found["filled_s"] = round(time.perf_counter() - began_s, 1)
        found |= _compacted(cluster, server, args.timeout) | {"load": os.getloadavg()[0]}
        print(json.dumps(found), flush=True)
        _check(cluster.bootstrap, last)
    return 0


async def _fill(bootstrap: str, args: argparse.Namespace) -> dict[bytes, bytes]:
    """Produce the records; the first bytes of each key's last value. Raises MeasureFailed."""
    wire, last = await Wire.connect(bootstrap), dict[bytes, bytes]()
    frames = _frames(args, last)

    async def lane() -> None:
        for frame in frames:
            if code := refusal(await wire.send(frame)):
                raise MeasureFailed(f"Produce: {code.name}")

    try:
        await asyncio.gather(*(lane() for _ in range(_LANES)))
    finally:
        wire.close()
    return last


def _frames(args: argparse.Namespace, last: dict[bytes, bytes]) -> Iterator[bytes]:
    """Requests of one connection, so of this order: a partition's appends are in that of their requests."""
    chance, now_ms = random.Random(1), int(time.time() * 1_000)
    for first in range(0, args.records, _BATCH_RECORDS):
        keys = [b"key-%d" % chance.randrange(args.keys) for _ in range(_BATCH_RECORDS)]
        values = [b"%d:" % (first + index) for index in range(_BATCH_RECORDS)]
        last.update(zip(keys, values, strict=True))
        padding = chance.randbytes(args.value_bytes)
        records = [NewRecord(value + padding, key, now_ms) for key, value in zip(keys, values, strict=True)]
        yield produce_frame(_TOPIC, 0, build_batch(records))


def _compacted(cluster: Cluster, server: redis.Redis, timeout_s: int) -> dict[str, Any]:
    """What a compaction costs: the broker reports how long it took without the wait before it."""
    broker = cluster.brokers[0]
    changed = ConfigResource(
        ResourceType.TOPIC, _TOPIC,
        incremental_configs=[
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("min.cleanable.dirty.ratio", "1.0", incremental_operation=AlterConfigOpType.SET),
        ],
    )  # fmt: skip
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for done in admin.incremental_alter_configs([changed]).values():
        done.result(_WAIT_S)
    [valkey] = set(cluster.pids) - {broker.pid}
    before, rss = server.info("memory")["used_memory"], resident_bytes(broker.pid)
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak starts again
    broker_s, valkey_s = cpu_seconds(broker.pid), cpu_seconds(valkey)
    command = [sys.executable, "-m", "tidegate", "topic", "compact", _TOPIC, "--output", "json"]
    subprocess.run(
        [*command, "--redis-url", cluster.redis_url, "--timeout", str(timeout_s)],
        cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    broker_s, valkey_s = cpu_seconds(broker.pid) - broker_s, cpu_seconds(valkey) - valkey_s
    [line] = [line for line in broker.log_path.read_text().splitlines() if "log_compacted" in line]
    dropped, took_ms = (int(re.findall(rf'"?{name}"?[=:] ?(\d+)', line)[0]) for name in ("records_dropped", "ms"))
    return {
        "compacted_s": took_ms / 1_000, "dropped": dropped, "broker_cpu_s": round(broker_s, 1),
        "valkey_cpu_s": round(valkey_s, 1), "broker_mib_before": rss // _MIB, "broker_mib_peak": _peak_mib(broker.pid),
        "valkey_mib_before": before // _MIB, "valkey_mib_after": server.info("memory")["used_memory"] // _MIB,
    }  # fmt: skip


def _peak_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s*(\d+)", status)[0]) // 1024


def _check(bootstrap: str, last: dict[bytes, bytes]) -> None:
    """Raises MeasureFailed unless each key's last value is left, and nothing of it twice."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(_TOPIC, 0, 0)])
    table, count, ended = dict[bytes, bytes](), 0, False
    while not ended:
        for message in consumer.consume(10_000, timeout=_WAIT_S):
            if message.error() is not None:
                ended = True
            else:
                count += 1
                table[message.key() or b""] = (message.value() or b"").partition(b":")[0] + b":"
    consumer.close()
    if table != last:
        raise MeasureFailed(f"{len(table)} keys are left of {len(last)}, or not with their last values")
    if count > len(last) + 10 * _BATCH_RECORDS:  # the newest batches are left as they are
        raise MeasureFailed(f"{count} records are left of {len(last)} keys")
