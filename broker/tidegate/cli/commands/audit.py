"""`tidegate audit`: the security audit of the cluster, from Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import RedisServer, to_places

_PAGE = 500
_FOLLOW_S = 1.0

_LIST = [
    Column("time", "TIME"),
    Column("who", "WHO"),
    Column("org", "ORGANISATION"),
    Column("host", "FROM"),
    Column("what", "WHAT"),
    Column("resources", "OF", ", ".join),
    Column("status", "STATUS"),
    Column("detail", "DETAIL"),
]


@to_places
def audit(
    server: RedisServer,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10_000, help="Newest events to print.")] = 50,
    user: Annotated[str | None, typer.Option(help="Only events of this principal, such as User:alice.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only what was denied or failed.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events as JSON lines, until Ctrl-C.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """Print the brokers' security audit, oldest event first; JSON has the form of OCSF."""
    from tidegate.audit.reading import EventFilter
    from tidegate.cli.client.redis_access import connected
    from tidegate.cli.output import write_rows
    from tidegate.store.keys import ClusterKeys

    stream, wanted = ClusterKeys(server.prefix).audit_events, EventFilter(user or "", failed)
    with connected(server) as client:
        newest = client.xrevrange(stream, count=1)
        found = []
        for event in _newest_first(client, stream):
            if wanted.matches(event):
                found.append(event)
            if len(found) == count:
                break
        found.reverse()
        if output is Form.JSON:
            typer.echo(json.dumps(found, indent=2))
        else:
            write_rows(output, _LIST, [_row(event) for event in found])
        after = newest[0][0] if newest else b"0-0"
        while follow:
            entries = client.xrange(stream, b"(" + after, "+", count=_PAGE)
            after = entries[-1][0] if entries else after
            for event in _events(entries):
                if wanted.matches(event):
                    typer.echo(json.dumps(event))
            time.sleep(_FOLLOW_S)


def _newest_first(client: Any, stream: str) -> Iterator[dict[str, Any]]:
    before = b"+"
    while entries := client.xrevrange(stream, before, "-", count=_PAGE):
        yield from _events(entries)
        before = b"(" + entries[-1][0]


def _events(entries: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> Iterator[dict[str, Any]]:
    from tidegate.audit.reading import event_of
    from tidegate.store.foreign_entries import UNREADABLE

    for entry_id, fields in entries:
        try:
            yield event_of(fields)
        except UNREADABLE:
            typer.echo(f"tidegate: no broker wrote the entry {entry_id.decode()}: left out", err=True)


def _row(event: dict[str, Any]) -> dict[str, Any]:
    from tidegate.audit.reading import row

    shown = row(event)
    return shown | {
        "time": datetime.fromtimestamp(shown["time_ms"] / 1000, UTC).isoformat(timespec="milliseconds"),
        "status": shown["status"] if shown["count"] == 1 else f"{shown['status']} x{shown['count']}",
    }
