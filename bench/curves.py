"""How cost grows: members, connections, what is at rest, brokers, primaries. Writes tables and plots.

Each point is one measure on a cluster of its own, so that no point pays for what an earlier one left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import builds, suite
from bench.at_rest import measure_at_rest
from bench.cluster import Cluster
from bench.endpoint import Endpoint
from bench.primaries import Primaries
from bench.processes import wait_quiet
from bench.report import machine, shown

_SETTINGS: Final = {"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0", "TIDEGATE_GROUP_MAX_SIZE": "10000"}
_FORMING: Final = ("total_s", "s until stable"), ("cpu_us_per_op", "CPU µs a member"), (
    "steady_cpu_us_per_heartbeat", "CPU µs a heartbeat at rest",
)  # fmt: skip
_FLOOD: Final = ("ops_per_s", "per s"), ("cpu_us_per_op", "CPU µs each"), ("p99_ms", "p99 ms")
_REST: Final = ("commands_per_s", "Redis commands/s"), ("cores", "cores"), ("broker_mib", "broker MiB"), (
    "redis_mib", "Redis MiB",
)  # fmt: skip
_LOG: Final = ("mb_per_s", "MB/s"), ("cpu_us_per_op", "CPU µs each")


class Curve(NamedTuple):
    """One table: a command in which `{x}` is each of `points`, and the figures of a row; the second one is plotted."""

    title: str
    axis: str
    points: Sequence[int]
    command: str
    figures: Sequence[tuple[str, str]]


CURVES: Final = {
    "one-group": Curve(
        "Members of one group", "members", (10, 100, 1_000, 10_000), "groups --groups 1 --members {x}", _FORMING
    ),
    "many-groups": Curve(
        "Groups of 10 members", "groups", (1, 10, 100, 1_000), "groups --groups {x} --members 10", _FORMING
    ),
    "connections": Curve(
        "Heartbeats, one in flight on each connection", "connections", (10, 100, 1_000, 5_000),
        "heartbeats --connections {x} --depth 1", _FLOOD,
    ),
    "partitions": Curve(
        "Partitions at rest", "partitions", (1, 1_000, 10_000, 100_000), "at-rest --partitions {x}", _REST
    ),
    "groups-at-rest": Curve("Groups at rest", "groups", (1, 100, 1_000, 10_000), "at-rest --groups {x}", _REST),
    "transactional-ids": Curve(
        "Transactional ids without a transaction", "ids", (0, 1, 100, 10_000), "at-rest --transactional-ids {x}", _REST
    ),
}  # fmt: skip
SCALED: Final = (
    ("heartbeats", "heartbeats --connections 128 --depth 4", _FLOOD),
    ("commits", "commits --connections 128 --depth 4", _FLOOD),
    ("batches of 64 kB", "batches --megabytes 400 --batch-records 64 --size 1000", _LOG),
    ("consume 1 kB", "consume --megabytes 200 --size 1000", _LOG),
)
"""Measured with each number of brokers and primaries."""
_BROKERS: Final = (1, 2, 4)
_PRIMARIES: Final = (1, 3)


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of `curves`."""
    command.add_argument("--only", default="", help=f"some of {', '.join([*CURVES, 'brokers'])}, by comma")
    command.add_argument("--points-max", type=int, default=100_000, help="leave larger points out")
    command.add_argument("--seconds", type=float, default=4.0, help="length of each window")
    command.add_argument("--wait-quiet", type=float, default=0.0, help="seconds to wait for the neighbours, each time")
    command.add_argument("--out", type=Path, default=Path("build/curves.md"), help="where tables and plots go")


@contextlib.contextmanager
def running(brokers: int, primaries: int) -> Iterator[tuple[Endpoint, Cluster]]:
    """Brokers on one server, or on a Redis Cluster of several primaries."""
    with contextlib.ExitStack() as stack:
        if primaries == 1:
            cluster = stack.enter_context(Cluster(brokers, _SETTINGS))
            yield Endpoint(cluster.bootstrap, cluster.pids), cluster
            return
        servers = stack.enter_context(Primaries(primaries))
        cluster = stack.enter_context(Cluster(brokers, _SETTINGS, redis_url=servers.url))
        yield Endpoint(cluster.bootstrap, [*(broker.pid for broker in cluster.brokers), *servers.pids]), cluster


def _point(command: str, args: argparse.Namespace, brokers: int = 1, primaries: int = 1) -> dict[str, Any]:
    """One measure on a new cluster."""
    wait_quiet(args.wait_quiet)
    with running(brokers, primaries) as (endpoint, cluster):
        if command.startswith("at-rest"):
            return measure_at_rest(endpoint, cluster, command, args.seconds)
        name, options = suite.parse(f"{command} --seconds {args.seconds}", quick=False)
        return suite.measured(endpoint, name, options)


def table(axis: str, rows: Sequence[tuple[str, dict[str, Any]]], figures: Sequence[tuple[str, str]]) -> str:
    """A row a point."""
    lines = [f"| {axis} | {' | '.join(name for _, name in figures)} |", "|---" * (len(figures) + 1) + "|"]
    for label, row in rows:
        cells = [shown(row.get(key)) for key, _ in figures]
        if "error" in row:
            cells[0] = f"failed: {str(row['error']).replace('|', '/')[:100]}"
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(title: str, axis: str, rows: Sequence[tuple[str, dict[str, Any]]], figure: tuple[str, str]) -> str:
    """A Mermaid chart of one figure; points are equally far apart. Empty where fewer than two were measured."""
    points = [(label, float(row[figure[0]])) for label, row in rows if row.get(figure[0]) is not None]
    if len(points) < 2:
        return ""
    labels, values = ", ".join(f'"{label}"' for label, _ in points), ", ".join(f"{value:g}" for _, value in points)
    top = max(value for _, value in points) * 1.1 or 1
    return "\n".join(
        (
            "```mermaid", "xychart-beta", f'    title "{title}"', f'    x-axis "{axis}" [{labels}]',
            f'    y-axis "{figure[1]}" 0 --> {top:.3g}', f"    line [{values}]", "```",
        )
    )  # fmt: skip


def _report(title: str, axis: str, rows: list[tuple[str, dict[str, Any]]], figures: Sequence[tuple[str, str]]) -> str:
    parts = (f"### {title}", table(axis, rows, figures), plot(title, axis, rows, figures[1]))
    return "\n\n".join(part for part in parts if part)


def _rows(points: Sequence[tuple[str, Callable[[], dict[str, Any]]]], title: str) -> list[tuple[str, dict[str, Any]]]:
    rows = []
    for label, run in points:
        rows.append((label, run()))
        print(json.dumps({"curve": title, "point": label, **rows[-1][1]}), flush=True)
    return rows


def main(args: argparse.Namespace) -> int:
    """Measure, print each point as a JSON line, write the page. 1 when a point failed."""
    chosen = args.only.split(",") if args.only else [*CURVES, "brokers"]
    pages, failed = [], False
    for name in (name for name in CURVES if name in chosen):
        curve = CURVES[name]
        points = [
            (f"{x:,}", partial(_point, curve.command.format(x=x), args)) for x in curve.points if x <= args.points_max
        ]
        rows = _rows(points, curve.title)
        failed |= any("error" in row for _, row in rows)
        pages.append(_report(curve.title, curve.axis, rows, curve.figures))
    if "brokers" in chosen:
        for title, command, figures in SCALED:
            points = [
                (f"{brokers} x {primaries}", partial(_point, command, args, brokers, primaries))
                for primaries, brokers in itertools.product(_PRIMARIES, _BROKERS)
            ]
            rows = _rows(points, title)
            failed |= any("error" in row for _, row in rows)
            pages.append(_report(f"{title}, brokers x primaries", "brokers x primaries", rows, figures))
    with running(1, 1) as (_, cluster):
        about = f"{machine()}; {builds.server(cluster.redis_port)}. One broker unless stated otherwise."
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n\n".join(["# Curves", "Written by `python -m bench curves`.", about, *pages]) + "\n")
    print(f"written: {args.out}", flush=True)
    return 1 if failed else 0
