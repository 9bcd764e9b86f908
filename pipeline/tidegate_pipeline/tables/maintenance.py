"""`tidegate pipeline maintain`: the formats' own maintenance of tables, once or again and again."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.command import seconds
from tidegate_pipeline.jobs.summary import result_lines
from tidegate_pipeline.settings import load
from tidegate_pipeline.tables.folder import form_of


def run_maintenance(tables: Sequence[str], every: str | None, config: Path | None, *, as_json: bool) -> None:
    """Each table in turn, to the end or to SIGTERM or SIGINT. Raises UsageError, PipelineError."""
    keep, interval_s = timedelta(seconds=load(config).archive.gc_grace), None if every is None else seconds(every)
    stop = threading.Event()
    if interval_s is not None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
    while True:
        for reported in _maintained(tables, keep):
            typer.echo(json.dumps(reported) if as_json else "\n".join(result_lines(reported)))
        if interval_s is None or stop.wait(interval_s):
            return


def _maintained(tables: Sequence[str], keep: timedelta) -> Iterator[dict[str, Any]]:
    for table in tables:
        if "/" not in table and table.count(".") >= 2:
            from tidegate_pipeline.tables.iceberg_upkeep import maintain

            yield maintain(table, keep)
            continue
        form = form_of(table)
        if form is None:
            raise UsageError(f"there is no table at {table}; Iceberg: catalog.namespace.table")
        if form != "delta":
            raise UsageError(
                f"{table} is not a Delta table; Parquet by Spark has clean copies: tidegate pipeline compact"
            )
        from tidegate_pipeline.tables.compaction import rewrite

        yield rewrite(table, keep)
