"""`tidegate group reset`, `evict` and `delete`: change groups, over Kafka's protocol only."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.change_notice import Yes, cluster_of_brokers, confirm_change
from tidegate.cli.commands.groups import GroupId
from tidegate.cli.failures import BAD_NEWS, CommandFailed
from tidegate.cli.output import Form, Output
from tidegate.cli.places import Brokers, to_places
from tidegate.telemetry.visible import visible


@to_places
def reset(
    group_id: GroupId,
    brokers: Brokers,
    topic: Annotated[list[str] | None, typer.Option(help="TOPIC or TOPIC:0,1; may be repeated.")] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All topics with committed offsets.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The log start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The log end.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="The committed offset, otherwise the log end.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="This offset.")] = None,
    shift_by: Annotated[int | None, typer.Option(help="Move by this number of records; negative moves back.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(help="The first record at or after this time, 2026-01-31T18:00:00.")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(help="The first record not older than this, P7D or PT1H30M.")
    ] = None,
    from_file: Annotated[Path | None, typer.Option(help="CSV: topic,partition,offset.")] = None,
    execute: Annotated[bool, typer.Option("--execute/--dry-run", help="Execute, or only print the plan.")] = False,
    fence: Annotated[bool, typer.Option("--fence", help="Remove all members in the same step.")] = False,
    undo: Annotated[
        Path | None, typer.Option(help="File for the old offsets.  [default: undo-GROUP-TIME.csv in this directory]")
    ] = None,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Move a group's offsets; without --execute nothing is changed.

    The group must be empty, or --fence removes its members in the same step; live members rejoin and continue from the
    new offsets. Prints the cluster before it changes anything, and prompts on a terminal. Exit code 1 if refused.
    """
    from tidegate.cli.client import group_reset
    from tidegate.cli.output import write_rows
    from tidegate.groups.reset_plan import Choice

    if from_file is not None and (topic or all_topics):
        raise CommandFailed("--from-file names its partitions itself: leave --topic and --all-topics out")
    offsets = None if from_file is None else group_reset.parse_file(from_file, group_id)
    choice = Choice(to_earliest, to_latest, to_current, to_offset, shift_by, to_datetime, by_duration, offsets)
    asked = group_reset.Asked(group_id, choice, tuple(topic or ()), all_topics, execute, fence, undo)
    if execute:
        confirm_change(cluster_of_brokers(brokers), f"the committed offsets of group {group_id} change", yes)
    done = asyncio.run(group_reset.reset(brokers, asked))
    write_rows(output, group_reset.COLUMNS, done.rows)
    for line in done.reported_text:
        typer.echo(visible(line), err=output is not Form.TABLE)
    if execute and done.undo is not None:
        where = f"{' --fence' if fence else ''}{brokers.as_typed()}"
        command = (
            f"tidegate group reset {shlex.quote(group_id)} --from-file {shlex.quote(str(done.undo))} --execute{where}"
        )
        typer.echo(f"undo: {visible(command)}", err=output is not Form.TABLE)
    if done.refused:
        raise typer.Exit(BAD_NEWS)


@to_places
def evict(
    group_id: GroupId,
    brokers: Brokers,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Member id, or instance id of a static member.")],
    reason: Annotated[
        str, typer.Option(help="Reason, recorded in the group's events.")
    ] = "removed by an administrator",
    yes: Yes = False,
) -> None:
    """Remove one member; the others rebalance. A live member rejoins."""
    from tidegate.cli.client import group_reset

    confirm_change(cluster_of_brokers(brokers), f"{member} is removed from group {group_id}", yes)
    typer.echo(visible(asyncio.run(group_reset.evict(brokers, group_id, member, reason))))


@to_places
def delete(
    group_id: GroupId,
    brokers: Brokers,
    yes: Yes = False,
) -> None:
    """Delete an empty group, its offsets and its id."""
    from tidegate.cli.client import group_reset

    change = f"group {group_id} and all its offsets are deleted"
    confirm_change(cluster_of_brokers(brokers), change, yes, always=True)
    asyncio.run(group_reset.delete(brokers, group_id))
    typer.echo(f"deleted {visible(group_id)}")


def add_to(group: typer.Typer) -> None:
    """Register the commands."""
    for command in (reset, evict, delete):
        group.command()(command)
