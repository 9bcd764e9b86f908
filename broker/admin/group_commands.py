"""`tidegate group ...`: look at groups, and ask why they do what they do.

Exit codes: 0 done; 1 done and the answer is bad news (`explain` found trouble, a change was refused); 2 not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, Final, TypeVar

import typer

from broker.admin.output import Form

BAD_NEWS: Final = 1

group = typer.Typer(
    name="group",
    help="Consumer groups: look, explain, repair.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Value = TypeVar("Value")

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]
Bootstrap = Annotated[
    str | None, typer.Option(help="Brokers, host:port,...  [default: a running `tidegate dev`, else 127.0.0.1:9092]")
]
Admin = Annotated[
    str | None,
    typer.Option(help="Admin HTTP of brokers, host:port,...  [default: a running `tidegate dev`, else 127.0.0.1:8080]"),
]
Org = Annotated[str, typer.Option(help="The organisation.")]
Output = Annotated[Form, typer.Option("-o", "--output", help="table, json or csv.")]


def bootstrap_of(given: str | None) -> str:
    """Where brokers are."""
    from broker.admin import running

    cluster = running.find() if given is None else None
    return given or (cluster.bootstrap if cluster else "127.0.0.1:9092")


def admin_of(given: str | None) -> str:
    """Where the admin HTTP is."""
    from broker.admin import running

    cluster = running.find() if given is None else None
    return given or (",".join(cluster.admin) if cluster else "http://127.0.0.1:8080")


def run(work: Coroutine[Any, Any, Value]) -> Value:
    """Run a command; what fails is one line and exit code 2."""
    from broker.admin.cli import reporting

    found: list[Value] = []
    reporting(lambda: found.append(asyncio.run(work)))
    return found[0]


@group.command("list")
def list_groups(
    troubled: Annotated[bool, typer.Option("--troubled", help="Only groups with trouble.")] = False,
    bootstrap: Bootstrap = None,
    admin: Admin = None,
    output: Output = Form.TABLE,
) -> None:
    """Every group, those with trouble first."""
    from broker.admin import group_reads, group_tables
    from broker.admin.output import write_rows

    rows, missing = run(group_reads.listing(bootstrap_of(bootstrap), admin_of(admin)))
    for what in missing:
        typer.echo(f"tidegate: {what}", err=True)
    write_rows(output, group_tables.LIST, [row for row in rows if row["trouble"] or not troubled])


@group.command()
def show(group_id: GroupId, admin: Admin = None, org: Org = "default", output: Output = Form.TABLE) -> None:
    """Who a group is, its state and since when, why it last rebalanced, what its members agreed on."""
    from broker.admin import admin_client, group_tables
    from broker.admin.output import as_csv, write_json, write_pairs

    found = run(admin_client.get(admin_of(admin), group_id, "", org))
    if output is Form.TABLE:
        write_pairs(group_tables.pairs(found))
        return
    facts = group_tables.facts(found)
    if output is Form.JSON:
        write_json(facts)
    else:
        typer.echo(as_csv(list(facts), [facts]), nl=False)


@group.command()
def members(group_id: GroupId, admin: Admin = None, org: Org = "default", output: Output = Form.TABLE) -> None:
    """Each member: who, when last heard, what it does in this round, what it owns."""
    from broker.admin import admin_client, group_tables
    from broker.admin.output import write_rows

    found = run(admin_client.get(admin_of(admin), group_id, "", org))
    write_rows(output, group_tables.MEMBERS, group_tables.member_rows(found))


@group.command()
def lag(
    group_id: GroupId,
    bootstrap: Bootstrap = None,
    admin: Admin = None,
    output: Output = Form.TABLE,
) -> None:
    """Each partition: committed, end, lag, owner, age of the commit."""
    from broker.admin import group_reads, group_tables
    from broker.admin.output import write_rows

    rows, missing = run(group_reads.lag(bootstrap_of(bootstrap), admin_of(admin), group_id))
    if missing:
        typer.echo(f"tidegate: ages of commits are not known: {missing}", err=True)
    write_rows(output, group_tables.LAG, rows)


@group.command()
def history(
    group_id: GroupId,
    events: Annotated[bool, typer.Option("--events", help="Every event instead of rebalances.")] = False,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=10_000, help="How many.")] = 20,
    admin: Admin = None,
    org: Org = "default",
    output: Output = Form.TABLE,
) -> None:
    """Rebalances with their causes and durations, newest first."""
    from broker.admin import admin_client, group_tables
    from broker.admin.output import write_rows

    found = run(admin_client.get(admin_of(admin), group_id, "history", org, count=str(count)))
    if events:
        write_rows(output, group_tables.EVENTS, found["events"])
    else:
        write_rows(output, group_tables.HISTORY, found["rebalances"])


@group.command()
def explain(
    group_id: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="The group's id.  [default: every group with trouble]")
    ] = None,
    admin: Admin = None,
    org: Org = "default",
    output: Output = Form.TABLE,
) -> None:
    """Why is this group stuck? Who is missing, since when, what caused it, what to do.

    Exit code 1 where something is wrong.
    """
    from broker.admin import admin_client, group_tables
    from broker.admin.output import write_findings, write_json, write_rows

    found = run(admin_client.explain(admin_of(admin), group_id, org))
    findings = [{"group": one["group"], **finding} for one in found for finding in one["findings"]]
    if output is Form.JSON:
        write_json(found[0] if group_id is not None else found)
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
