"""`tidegate group reset`, `evict` and `delete`: change groups, over Kafka's protocol only."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tidegate.admin.change_notice import Yes, cluster_of_brokers, confirm_change
from tidegate.admin.failures import BAD_NEWS
from tidegate.admin.group_commands import GroupId
from tidegate.admin.output import Form, Output
from tidegate.admin.places import Brokers, to_places


@to_places
def reset(
    group_id: GroupId,
    brokers: Brokers,
    topic: Annotated[list[str] | None, typer.Option(help="TOPIC or TOPIC:0,1; may be repeated.")] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All that the group committed for.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first record there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last record.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="What is committed, else latest.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="This offset.")] = None,
    shift_by: Annotated[int | None, typer.Option(help="So many records on; back if negative.")] = None,
    to_datetime: Annotated[str | None, typer.Option(help="The first record at or after, 2026-01-31T18:00:00.")] = None,
    by_duration: Annotated[str | None, typer.Option(help="The first record not older, P7D or PT1H30M.")] = None,
    from_file: Annotated[Path | None, typer.Option(help="CSV: topic,partition,offset.")] = None,
    execute: Annotated[bool, typer.Option("--execute/--dry-run", help="Do it, or only say what it would do.")] = False,
    fence: Annotated[bool, typer.Option("--fence", help="Remove the members first, if there are.")] = False,
    undo: Annotated[
        Path | None, typer.Option(help="Where to note what was.  [default: undo-GROUP-TIME.csv in this directory]")
    ] = None,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Move a group's offsets; without --execute nothing is changed.

    Offsets move while the group is empty. --fence removes its members and moves them in the same instant; members
    that are alive join again and go on from the new offsets. Names the cluster before it changes anything, and asks
    on a terminal. Exit code 1 where it was refused.
    """
    from tidegate.admin import group_reset
    from tidegate.admin.output import write_rows
    from tidegate.admin.reset_plan import Choice

    choice = Choice(to_earliest, to_latest, to_current, to_offset, shift_by, to_datetime, by_duration, from_file)
    asked = group_reset.Asked(group_id, choice, tuple(topic or ()), all_topics, execute, fence, undo)
    if execute:
        confirm_change(cluster_of_brokers(brokers), f"group {group_id} is to go on from other offsets", yes)
    done = asyncio.run(group_reset.reset(brokers, asked))
    write_rows(output, group_reset.COLUMNS, done.rows)
    for line in done.reported_text:
        typer.echo(line, err=output is not Form.TABLE)
    if execute and done.undo is not None:
        where = f"{' --fence' if fence else ''}{brokers.as_typed()}"
        command = (
            f"tidegate group reset {shlex.quote(group_id)} --from-file {shlex.quote(str(done.undo))} --execute{where}"
        )
        typer.echo(f"undo: {command}", err=output is not Form.TABLE)
    if done.refused:
        raise typer.Exit(BAD_NEWS)


@to_places
def evict(
    group_id: GroupId,
    brokers: Brokers,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Member id, or instance id of a static member.")],
    reason: Annotated[str, typer.Option(help="Goes into the group's events.")] = "removed by an administrator",
    yes: Yes = False,
) -> None:
    """Remove one member; the others rebalance. If it is alive it joins again."""
    from tidegate.admin import group_reset

    confirm_change(cluster_of_brokers(brokers), f"{member} is removed from group {group_id}", yes)
    typer.echo(asyncio.run(group_reset.evict(brokers, group_id, member, reason)))


@to_places
def delete(
    group_id: GroupId,
    brokers: Brokers,
    yes: Yes = False,
) -> None:
    """Delete an empty group, its offsets and its id."""
    from tidegate.admin import group_reset

    change = f"group {group_id} and all its offsets are deleted"
    confirm_change(cluster_of_brokers(brokers), change, yes, always=True)
    asyncio.run(group_reset.delete(brokers, group_id))
    typer.echo(f"deleted {group_id}")


def add_to(group: typer.Typer) -> None:
    """Register the commands."""
    for command in (reset, evict, delete):
        group.command()(command)
