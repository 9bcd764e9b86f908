"""`tidegate tail`."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.commands.topics import TopicName
from tidegate.cli.failures import INTERRUPTED, CommandFailed
from tidegate.cli.output import Form, Output
from tidegate.cli.places import Brokers, to_places

if TYPE_CHECKING:
    from tidegate.cli.client.decoding import Decode
    from tidegate.cli.client.tail_reading import Found, Tail
    from tidegate.records.record import Record


@to_places
def tail(
    topic: TopicName,
    brokers: Brokers,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="earliest, latest, an offset, -N (the last N of each partition), 2026-01-31T18:00:00, or PT1H (ago).",
        ),
    ] = "-10",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new records as they arrive, until Ctrl-C.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Exit after this number of records.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Only records with this key.")] = None,
    grep: Annotated[
        str | None, typer.Option(help="Only records whose key, value or headers match this regular expression.")
    ] = None,
    decode: Annotated[
        str, typer.Option(help="auto, json, text or hex; data in another format falls back to the next one.")
    ] = "auto",
    headers: Annotated[bool, typer.Option("--headers/--no-headers", help="Show headers in the table.")] = True,
    output: Output = Form.TABLE,
) -> None:
    """Print records of a topic: time, partition, offset, key, value, headers.

    JSON has one object per line. Creates no topic and commits nothing. Ends with Ctrl-C, or when its output is closed.
    """
    from tidegate.cli.client.decoding import Decode
    from tidegate.cli.client.tail_reading import Tail

    wanted = PrintedRecords(key, grep)
    reading = Tail(brokers, topic, start, frozenset(partition or ()), follow)
    if decode not in list(Decode):
        raise CommandFailed(f"--decode {decode}: not {', '.join(Decode)}")
    show = Printer(topic, output, Decode(decode), headers)
    try:
        asyncio.run(_print(reading, wanted, count, show))
    except KeyboardInterrupt:
        raise typer.Exit(0 if follow else INTERRUPTED) from None


async def _print(reading: Tail, wanted: PrintedRecords, count: int | None, show: Printer) -> None:
    shown = 0
    async with aclosing(reading.records()) as records:
        async for found in _noted(reading, records):
            if wanted.takes(found.record):
                show(found)
                shown += 1
                if shown == count:
                    return


async def _noted(reading: Tail, records: AsyncGenerator[Found, None]) -> AsyncIterator[Found]:
    async for found in records:
        while reading.notes:
            typer.echo(f"tidegate: {reading.notes.pop(0)}", err=True)
        yield found


class PrintedRecords:
    """Selects the records to print."""

    def __init__(self, key: str | None, pattern: str | None) -> None:
        try:
            self._pattern = re.compile(pattern.encode()) if pattern is not None else None
        except re.error as error:
            raise CommandFailed(f"--grep {pattern}: {error}") from None
        self._key = key.encode() if key is not None else None

    def takes(self, record: Record) -> bool:
        """Whether to print the record."""
        if self._key is not None and record.key != self._key:
            return False
        if self._pattern is None:
            return True
        texts = [record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value))]
        return any(self._pattern.search(text) for text in texts if text is not None)


class Printer:
    """Prints records one by one, flushing after each."""

    def __init__(self, topic: str, form: Form, how: Decode, headers: bool) -> None:
        self._topic, self._form, self._how, self._headers = topic, form, how, headers
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._first = True

    def __call__(self, found: Found) -> None:
        """Print one record."""
        from tidegate.cli.client.decoding import as_row
        from tidegate.cli.output import as_csv, as_json, as_yaml, printable

        row = as_row(self._topic, found.partition, found.record, self._how)
        if self._form is Form.JSON:
            text = as_json(row) + "\n"
        elif self._form is Form.YAML:
            text = "---\n" + as_yaml(dict(row))
        elif self._form is Form.CSV:
            text = as_csv(list(row), printable([row]))
            text = text if self._first else text.partition("\n")[2]
        else:
            text = self._line(found)
        self._first = False
        sys.stdout.write(text)
        sys.stdout.flush()

    def _line(self, found: Found) -> str:
        from datetime import UTC, datetime

        from tidegate.cli.client.decoding import Decode, decode
        from tidegate.telemetry.visible import visible

        record = found.record
        moment = datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(" ", "milliseconds")[:23]
        place = f"{found.partition}@{record.offset}"
        parts = [str(decode(record.key, self._how)), str(decode(record.value, self._how))]
        if self._headers and record.headers:
            parts.append(" ".join(f"{name}={decode(value, Decode.AUTO)}" for name, value in record.headers))
        return "  ".join([self._dim(f"{moment} {place:<10}"), *map(visible, parts)]) + "\n"

    def _dim(self, text: str) -> str:
        return typer.style(text, dim=True) if self._colour else text
