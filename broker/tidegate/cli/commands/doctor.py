"""`tidegate doctor`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.failures import BAD_NEWS, DONE, FAILED, CommandFailed
from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import AdminHttp, Brokers, RedisServer, to_places
from tidegate.cli.progress import progress
from tidegate.telemetry.visible import visible

if TYPE_CHECKING:
    from tidegate.cli.doctor.run import Report


@to_places
def doctor(
    brokers: Brokers,
    admin: AdminHttp,
    redis: RedisServer,
    tries: Annotated[
        int, typer.Option(min=1, max=100, help="Connections to each address; several reveal a load balancer.")
    ] = 4,
    no_redis: Annotated[bool, typer.Option("--no-redis", help="Do not check Redis.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """Check what a Kafka client on this machine would see, and report problems.

    Resolves and connects to every advertised address, compares who answers there with who should, and looks
    at Redis where an address of it is known (--redis-url, TIDEGATE_REDIS_URL, a running `tidegate dev`). Redis and the
    admin HTTP (--admin) list the addresses of all other listeners too; those are probed as well.

    Exit code 0: fine; 1: warnings; 2: problems.
    """
    from tidegate.cli.doctor import run
    from tidegate.cli.doctor.finding import Severity

    if brokers.missing:
        raise CommandFailed(brokers.missing)
    with progress("addresses") as reported:
        asked = run.Asked(
            brokers, admin if admin.given else None, redis if redis.given and not no_redis else None, tries
        )
        report = asyncio.run(run.run_checks(asked, reported))
    _write(output, report)
    raise typer.Exit({None: DONE, Severity.WARNING: BAD_NEWS, Severity.PROBLEM: FAILED}[report.worst])


_ADDRESSES = [
    Column("node_id", "NODE", right=True),
    Column("listener", "LISTENER"),
    Column("address", "ADDRESS"),
    Column("ips", "RESOLVES TO", " ".join),
    Column("tls", "TLS", lambda value: "yes" if value else "no"),
    Column("answers", "ANSWERS"),
    Column("median_ms", "MS", right=True),
]
_FINDINGS = [Column(name, name.upper()) for name in ("severity", "kind", "where", "sentence", "evidence", "advice")]


def _write(output: Form, report: Report) -> None:
    from tidegate.cli.doctor import run
    from tidegate.cli.output import write_findings, write_rows, write_whole
    from tidegate.diagnosis.formatting import counted

    findings = [one.described() for one in report.findings]
    if output is Form.CSV:
        write_rows(output, _FINDINGS, findings)
    elif output is not Form.TABLE:
        write_whole(output, run.as_json(report))
    else:
        for line in run.rebalances(report):
            typer.echo(visible(line))
        if report.observed.advertised:
            typer.echo()
            write_rows(output, _ADDRESSES, run.address_rows(report))
        bad = sum(one["severity"] != "note" for one in findings)
        typer.echo()
        write_findings(f"{counted(bad, 'finding')} to fix." if bad else "Nothing is wrong from here.", findings)
