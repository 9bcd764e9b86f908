"""What the tables of the jobs must say of the incidents that `bench/incidents.py` made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset

STORMS: Final = {"crash-loop": "session_timeout", "twins": "static_flapping", "slow-poll": "slow_poll"}
"""Group -> the pattern of whoever is to blame."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that should have been found, and what was."""

    what: str
    found: bool
    reported: str


Row = Mapping[str, Any]


def table(folder: Path, name: str) -> list[Row]:
    """The rows of a table; none where a job wrote none. For one run that ended well, without what failed tasks left."""
    if not list((folder / name).rglob("*.parquet")):
        return []
    rows: list[Row] = pyarrow.dataset.dataset(folder / name, partitioning="hive").to_table().to_pylist()
    return rows


def claims(folder: Path, produced: int, generations: Mapping[str, int]) -> list[Claim]:
    """Each, in the order in which people care."""
    storms, commits, lag = (table(folder, name) for name in ("storms", "commits", "lag"))
    return [
        *(_storm(group, pattern, storms) for group, pattern in STORMS.items()),
        _stuck(lag),
        _silence(commits),
        _back(commits),
        _quiet([*storms, *commits, *(row for row in lag if row["stuck"])]),
        _every_generation(table(folder, "timeline"), generations),
        _all_records(table(folder, "usage"), produced),
    ]


def _storm(group: str, pattern: str, rows: Iterable[Row]) -> Claim:
    own = [row for row in rows if row["group"] == group]
    opened, closed = ([row for row in own if row["change"] == change] for change in ("opened", "closed"))
    last = closed[-1] if closed else {"culprits": [], "generations": 0, "first_at": None, "last_at": None}
    blamed = [f"{one['member']}: {one['pattern']}" for one in last["culprits"]]
    right = any(one["pattern"] == pattern for one in last["culprits"])
    reported = f"{len(opened)} opened, {len(closed)} closed, {last['generations']} generations, {'; '.join(blamed)}"
    return Claim(f"storm of {group}", bool(opened) and len(opened) == len(closed) and right, reported)


def _stuck(rows: Iterable[Row]) -> Claim:
    own = [row for row in rows if row["group"] == "stuck" and row["stuck"]]
    partitions = {row["partition"] for row in own}
    reported = f"{len(partitions)}, up to {max((row['lag_last'] for row in own), default=0)} behind"
    return Claim("partitions of stuck are stuck", len(partitions) == 4, reported)


def _silence(rows: Iterable[Row]) -> Claim:
    own = [row for row in rows if row["group"] == "stuck" and row["anomaly"] == "silence"]
    return Claim(
        "commits of stuck stopped",
        len(own) == 1,
        "; ".join(f"since {row['since_at']:%H:%M:%S}, {row['mean']:.1f} an interval before" for row in own),
    )


def _back(rows: Iterable[Row]) -> Claim:
    own = [row for row in rows if row["group"] == "rewinds" and row["anomaly"] == "back"]
    right = len(own) == 4 and all(row["from_offset"] > row["to_offset"] == 1 for row in own)
    return Claim(
        "commits of rewinds went back",
        right,
        "; ".join(f"{row['topic']}-{row['partition']} {row['from_offset']} to {row['to_offset']}" for row in own),
    )


def _quiet(rows: Iterable[Row]) -> Claim:
    reported = [str(dict(row)) for row in rows if row["group"] == "steady"]
    return Claim("nothing of steady", not reported, "; ".join(reported))


def _every_generation(rows: Iterable[Row], generations: Mapping[str, int]) -> Claim:
    """Each is one row, but for the first ones of a group's life none is missing."""
    observed: dict[str, list[int]] = {group: [] for group in generations}
    for row in rows:
        observed[row["group"]].append(row["generation"])
    wrong = [group for group, last in generations.items() if sorted(observed[group]) != list(range(1, last + 1))]
    moved = sum(row["moved_partitions"] or 0 for row in rows)
    reported = f"{sum(map(len, observed.values()))} in {len(observed)} groups, {moved} partitions moved"
    return Claim(
        "every generation once", not wrong, "; ".join([reported, *(f"{one}: {observed[one]}" for one in wrong)])
    )


def _all_records(rows: Iterable[Row], produced: int) -> Claim:
    own = [row for row in rows if row["topic"] == "orders"]
    records, fetched = (sum(row[name] for row in own) for name in ("records", "fetched_bytes"))
    held = max((row["redis_byte_hours"] for row in own), default=0)
    return Claim(
        "every record produced is in the usage",
        records == produced and fetched > 0 and held > 0,
        f"{records} of {produced}, {fetched} bytes fetched",
    )
