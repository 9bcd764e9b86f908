"""Rows of the jobs' tables, read without Spark: only files that its sink committed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tidegate_pipeline.archive.listing import committed_files
from tidegate_pipeline.archive.segment_writer import ArchiveFolder
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.settings import PipelineSettings

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

Row = dict[str, Any]


def parse_time(text: str | None, default: datetime) -> datetime:
    """A time as people give it: ISO 8601, UTC where it names no zone, or `90m`: so long ago. Raises UsageError."""
    if text is None:
        return default
    if ago := re.fullmatch(r"(\d+)([smhd])", text):
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        reported = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"not a time: {text} (2026-11-21T18:00, or 90m for 90 minutes ago)") from None
    return reported.replace(tzinfo=reported.tzinfo or UTC)


def read_rows(
    settings: PipelineSettings,
    table: str,
    time_columns: Sequence[str],
    since: datetime,
    until: datetime,
    wanted: Mapping[str, str],
) -> list[Row]:
    """The rows of a table between two times with these values, in the order of time. Raises UsageError.

    A row's time is the first of `time_columns` that it has.
    """
    from pyarrow import compute, dataset, schema, timestamp, types

    archive = ArchiveFolder.open(settings.archive.path)
    try:
        paths = [_below(archive, file["path"]) for file in committed_files(archive, table)]
    except UsageError:
        raise UsageError(f"no table {table} in {settings.archive.path}: tidegate pipeline {table} writes it") from None
    in_utc = timestamp("us", "UTC")  # what Spark writes as INT96 comes without a zone, and is
    time = compute.coalesce(*(compute.field(name).cast(in_utc) for name in time_columns))
    condition = (time >= since) & (time <= until)
    for name, value in wanted.items():
        condition &= compute.field(name) == value
    found = dataset.dataset(paths, filesystem=archive.filesystem, format="parquet").to_table(filter=condition)
    fields = [one.with_type(in_utc) if types.is_timestamp(one.type) else one for one in found.schema]
    found = found.cast(schema(fields)).sort_by([(name, "ascending") for name in time_columns])
    rows: list[Row] = found.to_pylist()
    if not rows:
        named = "".join(f", {name} {value}" for name, value in wanted.items())
        raise UsageError(f"nothing in the table {table} from {since:%F %T} to {until:%F %T} UTC{named}")
    return rows


def _below(archive: ArchiveFolder, uri: str) -> str:
    """A path of Spark's as the archive's filesystem takes it."""
    parts = urlsplit(uri)
    return unquote(parts.path) if archive.is_local else parts.netloc + unquote(parts.path)
