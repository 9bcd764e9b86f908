"""Results to a page: each measure's medians, ours beside Kafka's, and the ratio."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import builds
from bench.jars import NEWEST_KAFKA_VERSION

_NOISY_CORES: Final = 0.6
_NOISY: Final = (
    "**The machine was not quiet.** Rates and times then say little: the kernel shares cores by thread, and a JVM "
    "has many where a broker has one. Compare server CPU, which neighbours change least."
)


class Figure(NamedTuple):
    """One figure of a measure, and whether more of it is better."""

    key: str
    unit: str
    more_is_better: bool


_RATE: Final = Figure("ops_per_s", "per s", True)
_CPU: Final = Figure("cpu_us_per_op", "server CPU µs each", False)
_P50: Final = Figure("p50_ms", "p50 ms", False)
_P99: Final = Figure("p99_ms", "p99 ms", False)
_MB: Final = Figure("mb_per_s", "MB/s", True)

FIGURES: Final[dict[str, tuple[Figure, ...]]] = {
    "produce": (_MB, _CPU),
    "batches": (_MB, _CPU),
    "consume": (_MB, _CPU),
    "latency": (_P50, _P99, _CPU),
    "groups": (
        Figure("total_s", "s until all are stable", False),
        _CPU,
        Figure("steady_cpu_us_per_heartbeat", "server CPU µs a heartbeat at rest", False),
    ),
    "rebalance": (_P50, Figure("max_ms", "longest ms", False), _CPU),
    "heartbeats": (_RATE, _CPU, _P50, _P99),
    "commits": (_RATE, _CPU, _P99),
    "offset-fetches": (_RATE, _CPU, _P99),
    "epoch-heartbeats": (_RATE, _CPU, _P50, _P99),
    "epoch-rebalance": (_P50, Figure("max_ms", "longest ms", False), _CPU),
    "share": (_RATE, _CPU),
    "fan-out": (_P50, _P99, _CPU),
    "transactions": (_RATE, _P50, _P99, _CPU),
    "consume-committed": (_MB, _CPU),
}


def _median(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [float(row[key]) for row in rows if row.get(key) is not None]
    return statistics.median(values) if values else None


def shown(value: float | None) -> str:
    """Three significant digits, thousands apart."""
    if value is None:
        return ""
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ratio(ours: float | None, theirs: float | None) -> str:
    """Ours over theirs."""
    return "" if ours is None or not theirs else f"{ours / theirs:.2f}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a measure and figure. The arrow says which way is better."""
    lines = ["| measure | figure | Tidegate | Kafka | ratio | |", "|---|---|---|---|---|---|"]
    for title in dict.fromkeys(row["title"] for row in rows):
        ours = [row for row in rows if row["title"] == title and row["peer"] == "tidegate"]
        theirs = [row for row in rows if row["title"] == title and row["peer"] == "kafka"]
        errors = sorted({f"{row['peer']}: {row['error']}" for row in ours + theirs if "error" in row})
        measure = (ours or theirs)[0]["measure"]
        for figure in FIGURES[measure]:
            left, right = _median(ours, figure.key), _median(theirs, figure.key)
            if left is None and right is None:
                continue
            arrow = "higher is better" if figure.more_is_better else "lower is better"
            cells = (title, figure.unit, shown(left), shown(right), ratio(left, right), arrow)
            lines.append(f"| {' | '.join(cells)} |")
        lines += [f"| {title} | failed | {error.replace('|', '/')[:120]} | | | |" for error in errors]
    return "\n".join(lines)


def machine() -> str:
    """The machine, in a line."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return f"{os.cpu_count()} cores ({model}), {platform.system()}, {builds.interpreter()}"


def page(
    rows: Sequence[dict[str, Any]],
    *,
    brokers: int,
    aof: bool,
    server: str = "one Valkey",
    kafka_version: str = NEWEST_KAFKA_VERSION,
) -> str:
    """build/benchmarks.md; docs/performance.md has the published figures. `server` names the build of Redis."""
    loads = [load for row in rows for load in row.get("load", ())]
    others = [row["other_cores"] for row in rows if "other_cores" in row]
    rounds = max((row["round"] for row in rows), default=0) + 1
    peers = {row["peer"] for row in rows}
    kept = "append-only file, fsync each second" if aof else "in memory"
    about = [
        f"Clients and servers share {machine()}. Both endpoints run all the time and are measured turn by turn, "
        f"{rounds} round(s), medians.",
        f"Tidegate: {brokers} broker process(es) and {server} ({kept}); server CPU is both together.",
        f"Apache Kafka {kafka_version}: one KRaft node, 1 GiB heap, default threads, no fsync (its default), "
        "`group.initial.rebalance.delay.ms=0`."
        if "kafka" in peers
        else "Apache Kafka was not measured: it could not be had on this machine.",
        f"Load average {min(loads, default=0):.1f}-{max(loads, default=0):.1f}; in the median window other processes "
        f"used {statistics.median(others or [0]):.1f} cores, at most {max(others, default=0):.1f}.",
    ]
    if max(others, default=0) > _NOISY_CORES:
        about.append(_NOISY)
    lines = "\n".join(f"- {line}" for line in about)
    return f"""# Benchmarks

Written by `make bench`.

{lines}

{table(rows)}

What each measure does: `python -m bench --help`, and the first lines of its function in `bench/`.
"""
