"""build/benchmarks-pipeline.md: what Spark's reading costs, ours beside the connector's; the decoder beside parsers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, Final

from bench.decoder import FLOORS
from bench.jars import CONNECTOR_VERSION, KAFKA_VERSION
from bench.report import machine, shown
from bench.spark_topics import FEW, Work

CONNECTOR: Final = "connector"
SINKS: Final = ("noop", "parquet")
_ENGINES: Final = ("numpy", "numba")
_TARGETS: Final = {
    ("small", "noop"): (0.9, 1.2),
    ("small", "parquet"): (0.75, 1.0),
    ("large", "noop"): (0.5, 0.5),
    ("large", "parquet"): (0.6, 0.6),
}
"""Least ratios of rows a second to the connector's, with numpy and with numba."""

Row = dict[str, Any]


def best(rows: Iterable[Row], side: str, topic: str, sink: str) -> Row | None:
    """The quickest round of a measure."""
    found = [row for row in rows if (row["side"], row["topic"], row["sink"]) == (side, topic, sink)]
    return min(found, key=lambda row: float(row["seconds"]), default=None)


def _rate(row: Row) -> float:
    return float(row["rows"] / row["seconds"])


def _rows_per_cpu_s(row: Row) -> float:
    return float(row["rows"] / (row["spark_cpu_s"] + row["served_cpu_s"]))


def _line(rows: Sequence[Row], topic: str, title: str, sink: str, of: Callable[[Row], float]) -> str:
    peer = best(rows, CONNECTOR, topic, sink)
    cells = [f"{title}, {sink}", shown(of(peer)) if peer else ""]
    for engine, target in zip(_ENGINES, _TARGETS.get((topic, sink), (None, None)), strict=True):
        ours = best(rows, engine, topic, sink)
        ratio = of(ours) / of(peer) if ours and peer else None
        cells += [shown(of(ours)) if ours else "", f"{ratio:.2f}" if ratio else ""]
        if of is _rate:
            cells[-1] += f" (≥ {target})" if target and ratio else ""
    return f"| {' | '.join(cells)} |"


def _table(rows: Sequence[Row], read: Sequence[Work], of: Callable[[Row], float]) -> str:
    lines = ["| work | connector | numpy | ratio | numba | ratio |", "|---|---|---|---|---|---|"]
    lines += [_line(rows, work.topic, work.title, sink, of) for work, sink in product(read, SINKS)]
    return "\n".join(lines)


def _fixed_costs(rows: Sequence[Row]) -> str:
    lines = ["| | wall, s | CPU of Spark, s | CPU of what serves, s |", "|---|---|---|---|"]
    for side in (CONNECTOR, *_ENGINES):
        row = best(rows, side, FEW.topic, "noop")
        if row:
            lines.append(f"| {side} | {row['seconds']:.2f} | {row['spark_cpu_s']:.2f} | {row['served_cpu_s']:.2f} |")
    return "\n".join(lines)


def _archive(rows: Sequence[Row]) -> str:
    raw, decoded = best(rows, "numba", "raw", "archive"), best(rows, "numba", "small", "parquet")
    if raw is None or decoded is None:
        return "Not measured."
    by_cpu = _rows_per_cpu_s(raw) / _rows_per_cpu_s(decoded)
    return (
        f"The archive job stores the batches of 100 B records, as one micro-batch, at {shown(_rate(raw))} records/s, "
        f"{_rate(raw) / _rate(decoded):.1f} times the rate of decoded Parquet with numba "
        f"(the target is 2), {by_cpu:.1f} times by CPU."
    )


def _decoder(rows: Sequence[dict[str, Any]]) -> str:
    names = list(rows[0]["records_per_s"])
    lines = [f"| records/s | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        rates = (f"{row['records_per_s'][name]:,}" for name in names)
        lines.append(f"| {row['title']} | {' | '.join(rates)} |")
    return "\n".join(lines)


def page(rows: Sequence[Row], read: Sequence[Work], rounds: int, decoded: Sequence[dict[str, Any]]) -> str:
    """The page of one run."""
    loads = [float(row["load"]) for row in rows]
    topics = ", ".join(f"{work.rows:,} records of {work.title} in batches of {work.batch_records:,}" for work in read)
    floors = ", ".join(f"{floor:g} times {name}" for name, floor in FLOORS.items())
    return f"""# Benchmarks of the pipeline

Written by `python -m bench spark`. {machine()}, load average {min(loads):.1f} to {max(loads):.1f} while it ran.

## Reading topics, beside Spark's Kafka connector

The same batches are produced to Tidegate (one broker, one Valkey) and to Apache Kafka {KAFKA_VERSION} (one KRaft node,
1 GiB heap), two partitions each: {topics}.
Half of each value is random. One warm Spark session, `local[2]`, reads each topic whole as one micro-batch of a stream
with the trigger AvailableNow: by the connector (build {CONNECTOR_VERSION}, the newest there is for Spark 4) from Kafka,
and by `format("tidegate")` from Valkey. All share the machine's cores and take turns; the quickest of {rounds} round(s)
counts.

Rows a second of wall time, and their ratio to the connector's (the target in brackets):

{_table(rows, read, _rate)}

Rows a second of CPU, of Spark with its Python workers and of what serves it (Kafka; Valkey and the broker):

{_table(rows, read, _rows_per_cpu_s)}

Between JVM and Python rows cross a pipe: two processes take turns where the connector is one. So neighbours on the
machine take more of our wall time than of the connector's, and CPU is the fairer figure where they are loud.

## A query's fixed cost

A stream of 2,000 rows to `noop`, warm:

{_fixed_costs(rows)}

## The archive

{_archive(rows)}

## The decoder alone

CRC, decompression and Arrow columns, one core, over about 1 MiB of batches (`python -m bench decoder`): beside
kafka-python, an object a record in Python, and aiokafka's parser in C, each followed by Arrow columns of its lists.
The floors for 100 B with numpy, which `python -m bench decoder --check` holds: {floors}.

{_decoder(decoded)}
"""
