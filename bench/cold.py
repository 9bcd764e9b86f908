"""`python -m bench cold`: records are produced, archived, trimmed to a tenth in Redis, and read from offset 0.

Real broker processes, the pipeline's own job `archive`, three client libraries, each in a group of its own. Then what
one cold fetch takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from confluent_kafka import admin

from bench.cluster import REPOSITORY, Cluster
from bench.cold_clients import READERS, Expected, Values, produce
from bench.cold_fetches import fetches, places
from bench.cold_page import page
from bench.jars import PeerUnavailable
from bench.kafka_wire import MeasureFailed
from bench.processes import Meter
from tidegate_pipeline.redis_access import Client, connect
from tidegate_pipeline.topics import Topic, read_topics

_ADMIN: Final[Any] = admin
_TOPIC: Final = "history"
_SHARE: Final = 0.1
_ENTRY_BYTES_MAX: Final = 1 << 20
_TRIM_TIMEOUT_S: Final = 120.0


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `cold`."""
    command.add_argument("--records", type=int, default=5_000_000)
    command.add_argument("--size", type=int, default=100, help="bytes of a value")
    command.add_argument("--partitions", type=int, default=4)
    command.add_argument("--brokers", type=int, default=2, help="broker processes")
    command.add_argument("--codec", default="lz4", help="of the producers: none, gzip, snappy, lz4, zstd")
    command.add_argument("--clients", default=",".join(READERS), help="who reads, in turn")
    command.add_argument("--fetches", type=int, default=400, help="cold fetches that are timed")
    command.add_argument("--segment-bytes", type=int, default=128 << 20)
    command.add_argument("--out", type=Path, help="where the page goes, such as build/cold-reads.md")


def main(args: argparse.Namespace) -> int:
    """Measure, print each line, write the page. 1 where a record was missing, doubled or out of order."""
    rows: list[dict[str, Any]] = []

    def report(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    with tempfile.TemporaryDirectory(prefix="tidegate-archive-") as root:
        settings = {
            "TIDEGATE_ARCHIVE_PATH": root,
            "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        partition_bytes = args.records * args.size // args.partitions
        constants = {
            "tidegate.log.upkeep.CHECK_INTERVAL_MS": 1_000,
            "tidegate.log.append.ENTRY_BYTES_MAX": min(_ENTRY_BYTES_MAX, partition_bytes // 100),
        }
        with Cluster(args.brokers, settings, constants=constants) as cluster:
            try:
                _measure(cluster, root, args, report)
            except (MeasureFailed, PeerUnavailable) as error:
                report({"step": "failed", "error": str(error)})
                return 1
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(page(rows, args))
        print(f"written: {args.out}", flush=True)
    return 0


def _measure(cluster: Cluster, root: str, args: argparse.Namespace, report: Any) -> None:
    config = {"remote.storage.enable": "true", "retention.ms": "-1"}
    topics = [_ADMIN.NewTopic(_TOPIC, args.partitions, 1, config=config)]
    kafka = _ADMIN.AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    for made in kafka.create_topics(topics).values():
        made.result(30)
    client = connect(cluster.redis_url)
    topic = read_topics(client, "tidegate", "default")[_TOPIC]

    values = Values(args.partitions, args.size)
    meter = Meter(cluster.pids)
    meter.start()
    produce(cluster.bootstrap, _TOPIC, values, args.records, args.codec)
    meter.stop()
    report({"step": "produce", **meter.figures(args.records), **_held(client, topic, values.ends)})

    began = time.monotonic()
    reported = _archive(cluster, root, args.segment_bytes)
    report({"step": "archive", "seconds": round(time.monotonic() - began, 1), **reported})

    began = time.monotonic()
    _trim(cluster.bootstrap, client, topic)
    report({"step": "trim", "seconds": round(time.monotonic() - began, 1), **_held(client, topic, values.ends)})

    for broker in cluster.brokers:  # they hold the newest records in memory: begin with nothing
        broker.drain()
        broker.start()
    for broker in cluster.brokers:
        broker.wait_ready()
    for name in args.clients.split(","):
        before = _cold_reads(cluster)
        meter = Meter(cluster.pids)
        meter.start()
        READERS[name](cluster.bootstrap, _TOPIC, f"bench-{name}", Expected(values.ends))
        meter.stop()
        after = _cold_reads(cluster)
        cold = {key: round(after[key] - before[key], 3) for key in after}
        report({"step": "read", "client": name, **meter.figures(args.records), **cold})

    reader = cluster.add_broker()  # its caches are empty
    listed = places(cluster.redis_url, root, _TOPIC)
    report({"step": "fetch", **asyncio.run(fetches(reader.address, _TOPIC, listed, root, args.fetches))})
    client.close()


def _archive(cluster: Cluster, root: str, segment_bytes: int) -> dict[str, Any]:
    """Run the job once. Raises MeasureFailed with what it said."""
    environment = {
        **os.environ,
        "TIDEGATE_REDIS_URL": cluster.redis_url,
        "TIDEGATE_ARCHIVE_PATH": root,
        "TIDEGATE_PIPELINE_ARCHIVE_SEGMENT_BYTES": str(segment_bytes),
    }
    command = [sys.executable, "-m", "tidegate", "pipeline", "archive", "--once", "--json"]
    command += ["--checkpoint", str(cluster.directory / "checkpoint")]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MeasureFailed(f"the job archive: {done.stderr.strip()[-600:]}")
    reported: dict[str, Any] = json.loads(done.stdout)
    return {key: reported[key] for key in ("segments", "records", "batch_bytes", "file_bytes") if key in reported}


def _trim(bootstrap: str, client: Client, topic: Topic) -> None:
    """Set local.retention.bytes to a tenth of what there is; wait until brokers have trimmed. Raises MeasureFailed."""
    metas = [topic.keys("tidegate", partition).meta for partition in range(topic.partition_count)]
    keep = min(int(int(client.hget(meta, "bytes")) * _SHARE) for meta in metas)
    set_it = _ADMIN.AlterConfigOpType.SET
    entry = _ADMIN.ConfigEntry("local.retention.bytes", str(keep), incremental_operation=set_it)
    resource = _ADMIN.ConfigResource(_ADMIN.ResourceType.TOPIC, topic.name, incremental_configs=[entry])
    kafka = _ADMIN.AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    for altered in kafka.incremental_alter_configs([resource]).values():
        altered.result(30)
    deadline = time.monotonic() + _TRIM_TIMEOUT_S
    while time.monotonic() < deadline:
        held = [int(client.hget(meta, "bytes")) for meta in metas]
        if max(held) <= keep + _ENTRY_BYTES_MAX:
            return
        time.sleep(0.2)
    raise MeasureFailed(f"Redis was not trimmed: it holds {held} bytes, {keep} are to stay")


def _held(client: Client, topic: Topic, ends: list[int]) -> dict[str, Any]:
    """What Redis holds."""
    metas = [topic.keys("tidegate", partition).meta for partition in range(topic.partition_count)]
    starts = [int(client.hget(meta, "local_start") or 0) for meta in metas]
    memory = client.info("memory")["used_memory"]
    return {"records_in_redis": sum(ends) - sum(starts), "redis_mb": round(memory / 1e6, 1)}


def _cold_reads(cluster: Cluster) -> dict[str, float]:
    """Counters of cold reads over all brokers."""
    wanted = {
        "tidegate_cold_reads_total": "archive_reads",
        "tidegate_cold_read_bytes_total": "cold_bytes",
        "tidegate_cold_row_groups_read_total": "row_groups_read",
        "tidegate_cold_read_failures_total": "cold_failures",
    }
    found = dict.fromkeys(wanted.values(), 0.0)
    for broker in cluster.brokers:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                name, _, value = line.partition(" ")
                if name in wanted:
                    found[wanted[name]] += float(value)
    return found
