"""`tidegate group ...`: list, inspect and explain groups."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from tidegate.cli.command_group import command_group
from tidegate.cli.commands.completion import complete_groups
from tidegate.cli.failures import BAD_NEWS
from tidegate.cli.output import Form, Output
from tidegate.cli.places import AdminHttp, Brokers, to_places
from tidegate.telemetry.visible import visible

group = command_group("group", "List, inspect, explain and change consumer groups.")

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=complete_groups)]
Org = Annotated[str, typer.Option(help="Organisation.")]


@group.command("list")
@to_places
def list_groups(
    brokers: Brokers,
    admin: AdminHttp,
    troubled: Annotated[bool, typer.Option("--troubled", help="Only groups with trouble.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """List groups, those with problems first."""
    from tidegate.cli.client import group_reads
    from tidegate.cli.commands import group_tables
    from tidegate.cli.output import write_rows

    rows, missing = asyncio.run(group_reads.listing(brokers, admin))
    for what in missing:
        typer.echo(f"tidegate: {visible(what)}", err=True)
    write_rows(output, group_tables.LIST, [row for row in rows if row["trouble"] or not troubled])


@group.command()
@to_places
def show(group_id: GroupId, admin: AdminHttp, org: Org = "default", output: Output = Form.TABLE) -> None:
    """Show a group: identity, state and since when, cause of the last rebalance, protocol."""
    from tidegate.cli.client import admin_client
    from tidegate.cli.commands import group_tables
    from tidegate.cli.output import write_one

    found = asyncio.run(admin_client.get(admin, group_id, "", org))
    write_one(output, group_tables.facts(found), group_tables.pairs(found))


@group.command()
@to_places
def members(group_id: GroupId, admin: AdminHttp, org: Org = "default", output: Output = Form.TABLE) -> None:
    """List members: client, last contact, phase in the current rebalance, assigned partitions."""
    from tidegate.cli.client import admin_client
    from tidegate.cli.commands import group_tables
    from tidegate.cli.output import write_rows

    found = asyncio.run(admin_client.get(admin, group_id, "", org))
    write_rows(output, group_tables.MEMBERS, group_tables.member_rows(found))


@group.command()
@to_places
def lag(
    group_id: GroupId,
    brokers: Brokers,
    admin: AdminHttp,
    output: Output = Form.TABLE,
) -> None:
    """List partitions: committed offset, log end, lag, owner, age of the commit."""
    from tidegate.cli.client import group_reads
    from tidegate.cli.commands import group_tables
    from tidegate.cli.output import write_rows

    rows, missing = asyncio.run(group_reads.lag(brokers, admin, group_id))
    if missing:
        typer.echo(f"tidegate: {visible(missing)}", err=True)
    write_rows(output, group_tables.LAG, rows)


@group.command()
@to_places
def history(
    group_id: GroupId,
    admin: AdminHttp,
    events: Annotated[bool, typer.Option("--events", help="List events instead of rebalances.")] = False,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=10_000, help="Maximum number of rows.")] = 20,
    org: Org = "default",
    output: Output = Form.TABLE,
) -> None:
    """List rebalances with their causes and durations, newest first."""
    from tidegate.cli.client import admin_client
    from tidegate.cli.commands import group_tables
    from tidegate.cli.output import write_rows

    found = asyncio.run(admin_client.get(admin, group_id, "history", org, count=str(count)))
    if events:
        write_rows(output, group_tables.EVENTS, found["events"])
    else:
        write_rows(output, group_tables.HISTORY, found["rebalances"])


@group.command()
@to_places
def explain(
    admin: AdminHttp,
    group_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[GROUP]",
            help="The group's id.  [default: every group with trouble]",
            autocompletion=complete_groups,
        ),
    ] = None,
    org: Org = "default",
    output: Output = Form.TABLE,
) -> None:
    """Explain why a group is stuck: missing members, since when, the cause, what to do.

    Exit code 1 if it finds a problem.
    """
    from tidegate.cli.client import admin_client
    from tidegate.cli.commands import group_tables
    from tidegate.cli.output import write_findings, write_rows, write_whole

    found = asyncio.run(admin_client.explain(admin, group_id, org))
    findings = [{"group": one["group"], **finding} for one in found for finding in one["findings"]]
    if output in (Form.JSON, Form.YAML):
        write_whole(output, found[0] if group_id is not None else found)
    elif output is Form.CSV:
        write_rows(output, group_tables.FINDINGS, findings)
    else:
        for place, one in enumerate(found):
            typer.echo("\n" if place else "", nl=False)
            write_findings(one["summary"], one["findings"])
        if not found:
            typer.echo("Nothing is wrong with any group.")
    if any(finding["severity"] != "note" for finding in findings):
        raise typer.Exit(BAD_NEWS)
