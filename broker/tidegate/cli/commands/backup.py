"""`tidegate backup ...`: what a cluster consists of beside its records, in one file. Goes to Redis; brokers may run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidegate.cli.change_notice import Yes, confirm_change
from tidegate.cli.command_group import command_group
from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import RedisServer, to_places
from tidegate.telemetry.visible import visible

backup = command_group("backup", "Groups, offsets, topics, users, access rules, quotas and configs in one file.")

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]

_NAMES: Final = {
    "topic": "topics",
    "segments": "slices of archive indexes",
    "group": "groups",
    "offsets": "slices of offsets",
    "user": "users",
    "acl": "access rules",
    "quota": "quotas",
    "config": "configs of brokers and client metrics",
}
_MADE = [Column("what", "WHAT"), Column("count", "LINES", right=True)]
_RESTORED = [
    Column("what", "WHAT"),
    Column("restored", "RESTORED", right=True),
    Column("present", "PRESENT", right=True),
]


@backup.command()
@to_places
def create(file: BackupFile, server: RedisServer, output: Output = Form.TABLE) -> None:
    """Write a backup of the cluster, without its records. The file has credentials: only its owner may read it."""
    from collections import Counter

    from tidegate.cli.client.backup_contents import ClusterReader
    from tidegate.cli.client.backup_file import HEADER, BackupWriter
    from tidegate.cli.client.redis_access import connected
    from tidegate.cli.output import write_rows
    from tidegate.cli.progress import progress

    counts: Counter[str] = Counter()
    with connected(server) as client, progress(f"writing {file}") as report:
        reader = ClusterReader(client, server.prefix)
        with BackupWriter(file) as writer:
            for line in reader.lines():
                writer.write(line)
                counts[line["kind"]] += 1
                report(counts.total(), 0)
            writer.complete()
    _warn(reader.warnings)
    del counts[HEADER]
    write_rows(output, _MADE, [{"what": _NAMES[kind], "count": counts[kind]} for kind in _NAMES])


@backup.command()
@to_places
def verify(file: BackupFile, output: Output = Form.TABLE) -> None:
    """Read a whole backup and print what it contains; exit code 2 if it is damaged."""
    from tidegate.cli.client.backup_file import verify as verify_file
    from tidegate.cli.output import write_rows

    found = verify_file(file)
    typer.echo(visible(_described(found)), err=True)
    write_rows(output, _MADE, [{"what": _NAMES[kind], "count": found.counts[kind]} for kind in _NAMES])


@backup.command()
@to_places
def restore(
    file: BackupFile,
    server: RedisServer,
    into_existing: Annotated[
        bool, typer.Option("--into-existing", help="Add what a cluster lacks; what it has stays as it is.")
    ] = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Restore a backup into a Redis without a cluster. If interrupted, repeat it: no broker starts before."""
    from tidegate.cli.client.backup_file import verify as verify_file
    from tidegate.cli.client.backup_restore import Restore
    from tidegate.cli.client.redis_access import connected, durable_change
    from tidegate.cli.output import write_rows
    from tidegate.cli.progress import progress

    found = verify_file(file)
    with connected(server) as client:
        restoring = Restore(client, server.prefix, found)
        target = f"Redis {server.shown}, prefix {server.prefix}"
        confirm_change(target, f"{_described(found)} is restored{' into its cluster' if into_existing else ''}", yes)
        with durable_change(client, server, everywhere=True):
            if into_existing:
                restoring.join_existing()
            else:
                restoring.begin()
            with progress(f"restoring {file}") as report:
                restoring.run(report)
            if not into_existing:
                restoring.end()
    _warn(restoring.warnings)
    made, present = restoring.made, restoring.present
    rows = [{"what": _NAMES[kind], "restored": made[kind], "present": present[kind]} for kind in _NAMES]
    write_rows(output, _RESTORED, rows)


def _described(found: Any) -> str:
    header = found.header
    begun = datetime.fromtimestamp(header["begun_ms"] / 1000, UTC)
    return f"{found.path}: the backup of cluster {header['cluster_id']} begun at {begun:%Y-%m-%d %H:%M:%S} UTC"


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        typer.echo(f"tidegate: {visible(warning)}", err=True)
