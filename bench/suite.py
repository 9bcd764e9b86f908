"""All measures on our cluster and on Apache Kafka, turn by turn, so that both meet the same neighbours."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import builds, measures, report
from bench.cluster import Cluster
from bench.endpoint import Endpoint
from bench.jars import NEWEST_KAFKA_VERSION, PeerUnavailable
from bench.kafka_peer import KafkaPeer
from bench.kafka_wire import MeasureFailed
from bench.processes import wait_quiet

STEPS: Final = (
    ("heartbeats", "heartbeats --connections 16 --depth 16"),
    ("heartbeats, 256 connections", "heartbeats --connections 256 --depth 1"),
    ("heartbeats, one at a time", "heartbeats --connections 1 --depth 1"),
    ("commits", "commits --connections 128 --depth 4"),
    ("commits, 256 connections", "commits --connections 256 --depth 1"),
    ("commits of 10 partitions", "commits --connections 16 --depth 16 --partitions 10"),
    ("offset fetches", "offset-fetches --connections 128 --depth 4"),
    ("offset fetches, 256 connections", "offset-fetches --connections 256 --depth 1"),
    ("offset fetches of 10 partitions", "offset-fetches --connections 16 --depth 16 --partitions 10"),
    ("1,000 members in 200 groups", "groups --groups 200 --members 5 --seconds 3"),
    ("one more joins 50", "rebalance --members 50 --tries 6"),
    ("one more joins 500", "rebalance --members 500 --tries 3"),
    ("KIP-848 heartbeats, 256 members", "epoch-heartbeats --connections 256 --depth 1"),
    ("KIP-848, one more joins 50", "epoch-rebalance --members 50 --tries 6"),
    ("KIP-848, one more joins 500", "epoch-rebalance --members 500 --heartbeat-ms 500 --tries 3"),
    ("KIP-932, 10 share consumers", "share --members 10 --megabytes 10 --size 100"),
    ("KIP-932, 1,000 share consumers", "share --members 1000 --megabytes 10 --size 100"),
    ("produce 1 kB", "produce --megabytes 200 --size 1000"),
    ("produce 1 kB, idempotent", "produce --megabytes 200 --size 1000 --idempotent"),
    ("produce 100 B", "produce --megabytes 50 --size 100"),
    ("batches of 64 kB", "batches --megabytes 400 --batch-records 64 --size 1000"),
    ("batches of 16 kB", "batches --megabytes 200 --batch-records 16 --size 1000"),
    ("consume 1 kB", "consume --megabytes 200 --size 1000"),
    ("transactions of 100 records", "transactions --batch-records 100 --size 100"),
    ("consume 1 kB, committed by 1,000", "consume-committed --megabytes 50 --batch-records 1000 --size 1000"),
    ("10 records/s to 1,000 long polls", "fan-out --connections 1000 --rate 10 --size 100 --seconds 6"),
    ("latency at 1,000/s", "latency --rate 1000 --size 100 --seconds 8 --warmup 2"),
)
"""What is measured: its name in the report, and the command. Real clients have one request in flight on each of many
connections (256 x 1), and no batch forms; the deep measures show what a connection can carry at most."""

_WARM: Final = (
    "heartbeats --connections 32 --depth 16 --seconds 6",
    "commits --connections 32 --depth 4 --seconds 3",
    "groups --groups 40 --members 5 --seconds 0.5",
    "produce --megabytes 200",
    "consume --megabytes 100",
    "batches --megabytes 200",
)
_QUICK: Final = {"--seconds": 0.25, "--megabytes": 0.1, "--members": 0.2, "--groups": 0.1, "--tries": 0.34}


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `all`."""
    command.add_argument("--brokers", type=int, default=1, help="broker processes; one core each")
    command.add_argument("--repeats", type=int, default=1, help="rounds; the median counts")
    command.add_argument("--only", default="", help="part of the names of the measures to run")
    command.add_argument("--quick", action="store_true", help="small numbers: does it run at all?")
    command.add_argument("--kafka", default=NEWEST_KAFKA_VERSION, metavar="VERSION", help="of Apache Kafka")
    command.add_argument("--no-kafka", action="store_true", help="leave Apache Kafka out")
    command.add_argument("--no-warmup", action="store_true", help="figures of the first seconds, then")
    command.add_argument("--aof", action="store_true", help="append-only file on, fsync each second")
    command.add_argument("--wait-quiet", type=float, default=0.0, help="seconds to wait for the neighbours, each time")
    command.add_argument("--out", type=Path, default=Path("build/benchmarks.md"), help="where the table goes")
    command.add_argument("--raw", type=Path, help="also keep every JSON line here")


def measured(endpoint: Endpoint, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One measure's figures, or its error."""

    async def run() -> dict[str, Any]:
        await endpoint.check()
        return await measures.MEASURES[name](endpoint, args)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return {"measure": name, **runner.run(run())}
    except (MeasureFailed, OSError, TimeoutError) as error:
        return {"measure": name, "error": f"{type(error).__name__}: {error}"}


def parse(command: str, quick: bool) -> tuple[str, argparse.Namespace]:
    """A measure and its options from one of `STEPS`; `quick` shrinks them."""
    name, *words = command.split()
    if quick:
        for option, share in _QUICK.items():
            if option in words:
                at = words.index(option) + 1
                shrunk = float(words[at]) * share
                whole = option in ("--members", "--groups", "--tries")
                words[at] = str(max(int(shrunk), 2) if whole else shrunk)
    parser = argparse.ArgumentParser()
    measures.add_options(parser)
    args = parser.parse_args(words)
    args.run_id = f"{os.getpid()}-{time.monotonic_ns() // 1_000_000}"
    return name, args


@contextlib.contextmanager
def endpoints(args: argparse.Namespace) -> Iterator[dict[str, Endpoint]]:
    """What is compared: ours, and Kafka where it can be had."""
    aof = ["--appendonly", "yes", "--appendfsync", "everysec"] if args.aof else []
    settings = {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
    with contextlib.ExitStack() as stack:
        found: dict[str, Endpoint] = {}
        cluster = stack.enter_context(Cluster(args.brokers, settings, aof))
        args.server = builds.server(cluster.redis_port)
        print(f"{report.machine()}; {args.server}", flush=True)
        found["tidegate"] = Endpoint(cluster.bootstrap, cluster.pids)
        if args.no_kafka:
            print("Apache Kafka is left out", flush=True)
        else:
            try:
                kafka = stack.enter_context(KafkaPeer({"group.share.max.size": "1000"}, args.kafka))
                found["kafka"] = Endpoint(kafka.bootstrap, kafka.pids)
            except PeerUnavailable as error:
                print(f"Apache Kafka is skipped: {error}", flush=True)
        yield found


def main(args: argparse.Namespace) -> int:
    """Measure, print each line, write the report. 1 when a measure of ours failed."""
    steps = [(title, command) for title, command in STEPS if args.only in title or args.only in command]
    rows: list[dict[str, Any]] = []
    with endpoints(args) as peers:
        if not (args.no_warmup or args.quick):
            for command in _WARM:
                for peer, endpoint in peers.items():
                    name, options = parse(command, quick=False)
                    failure = measured(endpoint, name, options).get("error")
                    print(f"warm-up {peer}: {name}{f' failed: {failure}' if failure else ''}", flush=True)
        for round_number in range(args.repeats):
            for title, command in steps:
                for peer, endpoint in peers.items():
                    name, options = parse(command, args.quick)
                    wait_quiet(args.wait_quiet)
                    row = {"peer": peer, "title": title, "round": round_number, **measured(endpoint, name, options)}
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    if args.raw is not None:
        args.raw.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if not args.quick and not args.only:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            report.page(rows, brokers=args.brokers, aof=args.aof, server=args.server, kafka_version=args.kafka)
        )
        print(f"written: {args.out}", flush=True)
    else:
        print(report.table(rows), flush=True)
    return 1 if any("error" in row for row in rows if row["peer"] == "tidegate") else 0
