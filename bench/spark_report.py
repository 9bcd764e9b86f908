"""build/benchmarks-pipeline.md: what Spark's reading costs, ours beside the connector's; the decoder beside parsers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from statistics import median
from typing import Any, Final

from bench.decoder import FLOORS
from bench.jars import CONNECTOR_VERSION, NEWEST_KAFKA_VERSION
from bench.report import machine
from bench.spark_topics import FEW, Work

CONNECTOR: Final = "connector"
COLD: Final = "archive"
"""The source where it reads the archive's files, with numba."""
ARCHIVE: Final = "archive"
"""As a sink: the job that writes them."""
TOPIC: Final = "topic"
"""As a sink: a topic, of the connector or ours."""
SINKS: Final = ("noop", "parquet")
_OURS: Final = ("numpy", "numba", COLD)
_TARGET: Final = 1.2
"""Least ratio of rows a second to the connector's, at no more CPU."""

Row = dict[str, Any]


def _medians(rows: Iterable[Row], side: str, topic: str, sink: str) -> Row | None:
    """Of a measure's rounds, each figure by itself."""
    found = [row for row in rows if (row["side"], row["topic"], row["sink"]) == (side, topic, sink)]
    if not found:
        return None
    return {
        "rounds": len(found),
        "rows_per_s": median(row["rows"] / row["seconds"] for row in found),
        "cpu_us": median((row["spark_cpu_s"] + row["served_cpu_s"]) / row["rows"] * 1e6 for row in found),
        "seconds": median(row["seconds"] for row in found),
        "spark_cpu_s": median(row["spark_cpu_s"] for row in found),
        "served_cpu_s": median(row["served_cpu_s"] for row in found),
        "load": median(row["load"] for row in found),
    }


def _line(rows: Sequence[Row], work: Work, sink: str, figure: str, digits: int) -> str | None:
    measured = {side: _medians(rows, side, work.topic, sink) for side in (CONNECTOR, *_OURS)}
    peer = measured[CONNECTOR]
    if all(each is None for each in measured.values()):
        return None
    cells = [f"{work.title}, {sink}", f"{peer[figure]:,.{digits}f}" if peer else ""]
    for side in _OURS:
        ours = measured[side]
        ratio = f" ({ours[figure] / peer[figure]:.2f})" if ours and peer else ""
        cells.append(f"{ours[figure]:,.{digits}f}{ratio}" if ours else "")
    if figure == "rows_per_s":
        cells.append(f"{median(each['load'] for each in measured.values() if each):.0f}")
    return f"| {' | '.join(cells)} |"


def _table(rows: Sequence[Row], read: Sequence[Work], figure: str, digits: int) -> str:
    load = ("load",) if figure == "rows_per_s" else ()
    heads = ("records, partitions, sink", CONNECTOR, *_OURS, *load)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += filter(None, (_line(rows, work, sink, figure, digits) for work, sink in product(read, SINKS)))
    return "\n".join(lines)


def _missed(rows: Sequence[Row], read: Sequence[Work]) -> str:
    """How many measures reach the target, by the better of both engines."""
    reached = total = cheaper = 0
    for work, sink in product(read, SINKS):
        peer = _medians(rows, CONNECTOR, work.topic, sink)
        ours = [found for side in _OURS[:2] if (found := _medians(rows, side, work.topic, sink))]
        if peer and ours:
            total += 1
            reached += max(each["rows_per_s"] for each in ours) >= _TARGET * peer["rows_per_s"]
            cheaper += min(each["cpu_us"] for each in ours) <= peer["cpu_us"]
    return f"{reached} of {total} reach {_TARGET} times the connector's rows a second; {cheaper} at no more CPU."


def _fixed_costs(rows: Sequence[Row]) -> str:
    lines = ["| | wall, s | CPU of Spark, s | CPU of what serves, s |", "|---|---|---|---|"]
    for side in (CONNECTOR, *_OURS[:2]):
        row = _medians(rows, side, FEW.topic, "noop")
        if row:
            lines.append(f"| {side} | {row['seconds']:.2f} | {row['spark_cpu_s']:.2f} | {row['served_cpu_s']:.2f} |")
    return "\n".join(lines)


def _archive(rows: Sequence[Row], read: Sequence[Work]) -> str:
    lines = ["| records, partitions | records/s | times decoded Parquet | by CPU |", "|---|---|---|---|"]
    for work in read:
        raw, decoded = (_medians(rows, "numba", work.topic, sink) for sink in (ARCHIVE, "parquet"))
        if raw and decoded:
            ratio, by_cpu = raw["rows_per_s"] / decoded["rows_per_s"], decoded["cpu_us"] / raw["cpu_us"]
            lines.append(f"| {work.title} | {raw['rows_per_s']:,.0f} | {ratio:.1f} | {by_cpu:.1f} |")
    return "\n".join(lines)


def _writes(rows: Sequence[Row], written: Sequence[Work]) -> str:
    lines = [
        "| records of 8 tasks | connector, rows/s | ours, rows/s | ratio | connector, us | ours, us | load |",
        "|---|---|---|---|---|---|---|",
    ]
    for work in written:
        peer, ours = (_medians(rows, side, work.topic, TOPIC) for side in (CONNECTOR, "numpy"))
        if peer and ours:
            lines.append(
                f"| {work.title} | {peer['rows_per_s']:,.0f} | {ours['rows_per_s']:,.0f} | "
                f"{ours['rows_per_s'] / peer['rows_per_s']:.2f} | {peer['cpu_us']:.2f} | {ours['cpu_us']:.2f} | "
                f"{ours['load']:.0f} |"
            )
    return "\n".join(lines)


def _decoder(rows: Sequence[dict[str, Any]]) -> str:
    names = list(rows[0]["records_per_s"])
    lines = [f"| records/s | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        rates = (f"{row['records_per_s'][name]:,}" for name in names)
        lines.append(f"| {row['title']} | {' | '.join(rates)} |")
    return "\n".join(lines)


def page(rows: Sequence[Row], read: Sequence[Work], written: Sequence[Work], decoded: Sequence[dict[str, Any]]) -> str:
    """The page of what was measured of `read` and `written`."""
    read = [work for work in read if any(row["topic"] == work.topic for row in rows)]
    loads = [float(row["load"]) for row in rows]
    rounds = {found["rounds"] for work in read if (found := _medians(rows, "numba", work.topic, "noop"))}
    counts = ", ".join(sorted({f"{row['rows']:,}" for row in rows if row["topic"] != FEW.topic}))
    floors = ", ".join(f"{floor:g} times {name}" for name, floor in FLOORS.items())
    return f"""# Benchmarks of the pipeline

Written by `python -m bench spark`. {machine()}, load average {min(loads):.1f} to {max(loads):.1f} while it ran.

## Reading topics, beside Spark's Kafka connector

The same batches are produced to Tidegate (one broker, one Valkey) and to Apache Kafka {NEWEST_KAFKA_VERSION} (one KRaft
node, 1 GiB heap): {counts} records, half of each value random. One warm Spark session, `local[2]`, reads each topic
whole as one micro-batch of a stream with the trigger AvailableNow: by the connector (build {CONNECTOR_VERSION}, the
newest there is for Spark 4) from Kafka, by `format("tidegate")` from Valkey with numpy and with numba, and from the
archive's files with numba. All share the machine's cores and take turns; medians of {min(rounds)} to {max(rounds)}
rounds.

Rows a second of wall time, and their ratio to the connector's (target: {_TARGET}). {_missed(rows, read)}

{_table(rows, read, "rows_per_s", 0)}

CPU of a row in microseconds, of Spark with its Python workers and of what serves it (Kafka; Valkey and the broker):

{_table(rows, read, "cpu_us", 2)}

Between JVM and Python rows cross a socket: two processes take turns where the connector is one. So neighbours on the
machine take more of our wall time than of the connector's, and CPU is the fairer figure where they are loud.

## Writing topics, beside the connector

A batch query of {written[0].partitions} tasks writes to as many partitions, each side to its own broker, in turns; CPU
in microseconds a row.

{_writes(rows, written)}

## A query's fixed cost

A stream of 2,000 rows to `noop`, warm:

{_fixed_costs(rows)}

## The archive

The job `archive` stores batches as they are, here as one micro-batch; the target is 2 times the rate of decoded Parquet
with numba:

{_archive(rows, read)}

## The decoder alone

CRC, decompression and Arrow columns, one core, over about 1 MiB of batches (`python -m bench decoder`): beside
kafka-python, an object a record in Python, and aiokafka's parser in C, each followed by Arrow columns of its lists.
The floors for 100 B with numpy, which `python -m bench decoder --check` holds: {floors}.

{_decoder(decoded)}
"""
