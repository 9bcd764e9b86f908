"""What `python -m bench cold` measured, as a page of the documents."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

_READS: Final = (
    ("`pread` of the row group's bytes", "pread"),
    ("the reader of segments, footer kept", "reader"),
    ("Fetch, round trip, row group read from the file", "fetch"),
    ("the same Fetch again, row group kept by the broker", "fetch again"),
)


def page(rows: Sequence[dict[str, Any]], args: argparse.Namespace) -> str:
    """The page, from the lines of every step."""
    steps = {row["step"]: row for row in rows}
    fetch = steps["fetch"]
    return f"""# Cold reads

Written by `python -m bench cold --records {args.records} --codec {args.codec} --out build/cold-reads.md`: {args.records:,} records of
{args.size} bytes in {args.partitions} partitions, a tenth produced by aiokafka, the rest by librdkafka; {args.brokers} brokers and one Valkey on
{os.cpu_count()} cores that they share with the clients and with other work. The job `archive` archives;
`local.retention.bytes` then leaves a tenth in Redis, and the brokers are restarted, so that they keep nothing.

{_table(("", "records in Redis", "Redis, MB", "seconds"), _stages(steps))}

## From offset 0, in a group

Every record carries its partition's offset; each client had each record once and in order.

{_table(("Client", "seconds", "thousand records/s", "cold reads", "MB of them", "row groups read", "CPU of brokers and Redis, µs a record", "load"), _readers(rows))}

## One fetch of about 1 MiB

{fetch["reads"]} row groups in random order: `pread` and the reader in turn, then the fetches; the files are in the page
cache. A fetch brings {fetch["mean_fetch_bytes"]:,} bytes.

{_table(("", "p50, ms", "p99, ms"), ((title, _ms(fetch, name, "p50_ms"), _ms(fetch, name, "p99_ms")) for title, name in _READS))}

The reader takes {fetch["ratio_p50"]} times as long as `pread`, p50 to p50; the median of each pair's ratio is
{fetch["ratio_each_p50"]}. The target is 3 at most.
"""  # noqa: E501


def _stages(steps: dict[str, dict[str, Any]]) -> Iterable[tuple[object, ...]]:
    produced, archived, trimmed = steps["produce"], steps["archive"], steps["trim"]
    files = f"archived: {archived['segments']} segments, {archived['file_bytes'] / 1e6:.0f} MB"
    for title, held, took in (
        ("produced", produced, produced),
        (files, produced, archived),
        ("trimmed", trimmed, trimmed),
    ):
        yield title, f"{held['records_in_redis']:,}", f"{held['redis_mb']:.0f}", f"{took['seconds']:.0f}"


def _readers(rows: Sequence[dict[str, Any]]) -> Iterable[tuple[object, ...]]:
    for row in rows:
        if row["step"] == "read":
            rate, cold_mb = f"{row['ops_per_s'] / 1e3:.0f}", f"{row['cold_bytes'] / 1e6:.0f}"
            counts = f"{row['cold_reads']:.0f}", cold_mb, f"{row['row_groups_read']:.0f}"
            yield row["client"], f"{row['seconds']:.0f}", rate, *counts, f"{row['cpu_us_per_op']:.2f}", row["load"][1]


def _ms(fetch: dict[str, Any], name: str, at: str) -> str:
    return f"{fetch[name][at]:.2f}"


def _table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    ruled = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in ruled)
