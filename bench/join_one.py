"""`python -m bench join-one`: one more member joins a group, until all have their assignments.

Three endpoints side by side, turn by turn: ours with heartbeats answered at once, ours with heartbeats held, and
Apache Kafka. Groups of five real clients at their default settings, records coming in and commits going out; groups of
50 and 500 raw members (bench/members.py), whose heartbeats come every 100 ms or 3 s. Written to build/joining.md;
docs/performance.md has the published figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import report, suite
from bench.client_groups import ClientGroup, Records, create_topic
from bench.clients import CLIENTS
from bench.cluster import Cluster
from bench.endpoint import Endpoint
from bench.jars import PeerUnavailable
from bench.kafka_peer import KafkaPeer
from bench.kafka_wire import MeasureFailed
from bench.processes import percentiles, wait_quiet

OFF, ON, KAFKA = "holds off", "holds on", "Kafka"
HOLD_MS: Final = 3_000
LEARN_S: Final = 16.0
"""Two gaps and two probes at an interval of 3 s."""
_PARTITIONS: Final = 7
_CLIENT_MEMBERS: Final = 5


@dataclass(frozen=True, slots=True)
class Case:
    """Who joins what."""

    title: str
    tries: int
    client: str = ""
    members: int = _CLIENT_MEMBERS
    heartbeat_ms: int = 3_000


CASES: Final = (
    Case("java", 12, client="java"),
    Case("librdkafka", 12, client="librdkafka"),
    Case("aiokafka", 12, client="aiokafka"),
    Case("raw 50, 100 ms", 20, members=50, heartbeat_ms=100),
    Case("raw 500, 100 ms", 10, members=500, heartbeat_ms=100),
    Case("raw 50, 3 s", 10, members=50),
    Case("raw 500, 3 s", 6, members=500),
)


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `join-one`."""
    command.add_argument("--only", default="", help="cases whose title contains this")
    command.add_argument("--tries", type=float, default=1.0, help="share of the tries of each case")
    command.add_argument("--no-kafka", action="store_true", help="leave Apache Kafka out")
    command.add_argument("--wait-quiet", type=float, default=0.0, help="seconds to wait for the neighbours, each time")
    command.add_argument("--raw", type=Path, help="rows of earlier runs, kept but for the cases measured now")
    command.add_argument("--out", type=Path, default=Path("build/joining.md"), help="where the table goes")


@contextlib.contextmanager
def _endpoints(args: argparse.Namespace) -> Iterator[dict[str, Endpoint]]:
    with contextlib.ExitStack() as stack:
        found: dict[str, Endpoint] = {}
        for peer, hold_ms in ((OFF, 0), (ON, HOLD_MS)):
            settings = {
                "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
                "TIDEGATE_HEARTBEAT_DELAY_MAX_MS": str(hold_ms),
            }
            cluster = stack.enter_context(Cluster(1, settings))
            found[peer] = Endpoint(cluster.bootstrap, cluster.pids)
        if not args.no_kafka:
            try:
                kafka = stack.enter_context(KafkaPeer())
                found[KAFKA] = Endpoint(kafka.bootstrap, kafka.pids)
            except PeerUnavailable as error:
                print(f"Apache Kafka is skipped: {error}", flush=True)
        yield found


def _raw(endpoint: Endpoint, case: Case, tries: int) -> dict[str, Any]:
    words = f"rebalance --members {case.members} --heartbeat-ms {case.heartbeat_ms} --tries {tries}"
    learn_s = min(LEARN_S, 6 * case.heartbeat_ms / 1_000)
    _, options = suite.parse(f"{words} --learn-s {learn_s}", quick=False)
    return suite.measured(endpoint, "rebalance", options)


async def _clients(endpoint: Endpoint, case: Case, tries: int) -> dict[str, Any]:
    client, name = CLIENTS[case.client], f"join-{case.client}-{time.monotonic_ns() // 1_000_000}"
    command = await asyncio.to_thread(client.prepare)
    await asyncio.to_thread(create_topic, endpoint.bootstrap, name, _PARTITIONS)
    group = ClientGroup(client, command, endpoint.bootstrap, name, name, _PARTITIONS)
    records = Records(endpoint.bootstrap, name, _PARTITIONS)
    loop, took = asyncio.get_running_loop(), []
    try:
        program, since_s = await group.program(), loop.time()
        late = case.members - 1
        for number in range(late):
            group.join(program, number)
        await group.expired(since_s)
        await asyncio.sleep(LEARN_S)
        for _ in range(tries):
            took.append(await group.joined(program, late))
            await asyncio.sleep(1)
            since_s = loop.time()
            await group.leave(late)
            await group.expired(since_s)
            await asyncio.sleep(4 + 6 * random.random())  # any moment between two heartbeats and two commits
    finally:
        await records.stop()
        await group.close()
    return {"tries": tries, **percentiles(took), "load": [os.getloadavg()[0]]}


def _measured(endpoint: Endpoint, case: Case, tries: int) -> dict[str, Any]:
    if not case.client:
        return _raw(endpoint, case, tries)
    try:
        return asyncio.run(_clients(endpoint, case, tries))
    except (MeasureFailed, PeerUnavailable, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(args: argparse.Namespace) -> int:
    """Measure every case at every endpoint, then write the page. 1 when a measure of ours failed."""
    cases = [case for case in CASES if args.only in case.title]
    rows: list[dict[str, Any]] = []
    with _endpoints(args) as peers:
        for endpoint in peers.values():  # the first rounds of a JVM, and of Python, are not what is measured
            suite.measured(endpoint, "groups", suite.parse("groups --groups 40 --members 5 --seconds 0.5", False)[1])
        for case in cases:
            for peer, endpoint in peers.items():
                wait_quiet(args.wait_quiet)
                tries = max(int(case.tries * args.tries), 2)
                rows.append({"case": case.title, "peer": peer, "tries": tries, **_measured(endpoint, case, tries)})
                print(json.dumps(rows[-1]), flush=True)
    failed = any("error" in row for row in rows if row["peer"] != KAFKA)
    rows = _with_earlier(rows, args.raw)
    if {row["case"] for row in rows} == {case.title for case in CASES}:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(_page(rows))
        print(f"written: {args.out}", flush=True)
    else:
        print(table(rows), flush=True)
    return int(failed)


def _with_earlier(rows: list[dict[str, Any]], raw: Path | None) -> list[dict[str, Any]]:
    """All rows by case, in the order of the cases; kept in `raw` where there is one."""
    if raw is None:
        return rows
    earlier = [json.loads(line) for line in raw.read_text().splitlines()] if raw.exists() else []
    measured = {row["case"] for row in rows}
    rows = [row for row in earlier if row["case"] not in measured] + rows
    order = [case.title for case in CASES]
    rows.sort(key=lambda row: order.index(row["case"]))
    raw.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a case: p50, p99 and longest of each endpoint, and the ratio of medians to Kafka's."""
    peers = [peer for peer in (KAFKA, OFF, ON) if any(row["peer"] == peer for row in rows)]
    head = ["group", "tries", *(f"{peer}: p50 / p99 / longest, ms" for peer in peers), "p50 to Kafka's, off and on"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for title in dict.fromkeys(row["case"] for row in rows):
        found = {row["peer"]: row for row in rows if row["case"] == title}
        cells = [_cell(found.get(peer, {})) for peer in peers]
        kafka = found.get(KAFKA, {}).get("p50_ms")
        ratios = [report.ratio(found.get(peer, {}).get("p50_ms"), kafka) for peer in (OFF, ON)]
        tries = str(next(iter(found.values()))["tries"])
        lines.append(f"| {' | '.join([title, tries, *cells, ', '.join(filter(None, ratios))])} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    if "p50_ms" not in row:
        return str(row.get("error", ""))[:80]
    return " / ".join(f"{row[key]:,.0f}" for key in ("p50_ms", "p99_ms", "max_ms"))


def _page(rows: Sequence[dict[str, Any]]) -> str:
    loads = [load for row in rows for load in row.get("load", ())]
    return f"""# One more member joins

Written by `python -m bench join-one`: from the new member's start until every member of the group has its new
assignment. Members learn of a rebalance from the answer to a heartbeat, which brokers delay until then
(docs/decisions/0019-delayed-heartbeats.md).

- Java, librdkafka and aiokafka: groups of five at default settings (heartbeats every 3 s, commits every 5 s), a record
  every 250 ms in each of {_PARTITIONS} partitions. The clients are in one process.
- raw: members that only join, sync and heartbeat, each on a connection of its own, all in one process; their
  heartbeats are not in step, so the last of 50 learns of a rebalance after nearly a whole interval.
- Endpoints run side by side on {report.machine()} and are measured in turn; load average
  {min(loads, default=0):.1f}-{max(loads, default=0):.1f}.

{table(rows)}
"""
