"""`tidegate topic ...`: list, create, change and delete topics, over Kafka's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from tidegate.cli.change_notice import Yes, cluster_of_brokers, cluster_of_redis, confirm_change
from tidegate.cli.command_group import command_group
from tidegate.cli.commands.completion import complete_topics
from tidegate.cli.failures import BAD_NEWS, CommandFailed
from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import Brokers, RedisServer, to_places
from tidegate.telemetry.visible import visible

topic = command_group("topic", "List, create, change and delete topics.")

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topics)]
Configs = Annotated[
    list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="Topic config; may be repeated.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only validate the request.")]


def _number(value: int) -> str:
    return f"{value:,}"


_LIST = [
    Column("topic", "TOPIC"),
    Column("partitions", "PARTITIONS", right=True),
    Column("records", "RECORDS", _number, right=True),
]
_PARTITIONS = [
    Column("partition", "PARTITION", right=True),
    Column("leader", "LEADER", right=True),
    Column("start", "START", right=True),
    Column("end", "END", right=True),
    Column("records", "RECORDS", _number, right=True),
    Column("error", "ERROR AT END", lambda value: value or ""),
]
_LEFT_OUT = [
    Column("partition", "PARTITION", right=True),
    Column("end", "END", right=True),
    Column("entry", "ENTRY"),
    Column("stops_appends", "STOPS APPENDS", lambda value: "yes" if value else "no"),
    Column("reason", "WHAT IT IS"),
]
_TRIMMED = [
    Column("partition", "PARTITION", right=True),
    Column("start", "START", lambda value: "" if value is None else str(value), right=True),
    Column("error", "ERROR"),
]
_COMPACTED = [
    Column("partition", "PARTITION", right=True),
    Column("offset", "COMPACTED TO", lambda value: "" if value is None else str(value), right=True),
    Column("records_dropped", "RECORDS DROPPED", lambda value: "" if value is None else _number(value), right=True),
    Column("bytes_before", "BYTES BEFORE", lambda value: "" if value is None else _number(value), right=True),
    Column("bytes_after", "BYTES AFTER", lambda value: "" if value is None else _number(value), right=True),
    Column("error", "ERROR"),
]
_CONFIGS = [Column("name", "CONFIG"), Column("value", "VALUE"), Column("source", "SET FOR")]


@topic.command("list")
@to_places
def list_topics(brokers: Brokers, output: Output = Form.TABLE) -> None:
    """List topics: partitions, log start and log end offsets."""
    from tidegate.cli.client import topic_requests
    from tidegate.cli.client.kafka_client import KafkaClient
    from tidegate.cli.output import write_rows

    async def observe() -> list[dict[str, Any]]:
        async with KafkaClient(brokers) as kafka:
            return await topic_requests.topic_rows(kafka)

    write_rows(output, _LIST, asyncio.run(observe()))


@topic.command()
@to_places
def describe(
    name: TopicName,
    brokers: Brokers,
    all_configs: Annotated[bool, typer.Option("--all", help="Include configs with default values.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """Describe a topic: leader and offsets of each partition, errors at the log end, configs.

    CSV contains only the partitions. KAFKA_STORAGE_ERROR at an end: see `tidegate redis check`.
    """
    from tidegate.cli.client import topic_requests
    from tidegate.cli.client.kafka_client import KafkaClient
    from tidegate.cli.output import write_rows, write_whole

    async def observe() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        async with KafkaClient(brokers) as kafka:
            found = await topic_requests.described(kafka, name)
            rows = await topic_requests.with_errors(
                kafka, found, await topic_requests.partition_rows(kafka, {name: found})
            )
            return rows, await topic_requests.configs(kafka, name, not all_configs)

    partitions, configs = asyncio.run(observe())
    if output in (Form.JSON, Form.YAML):
        write_whole(output, {"topic": name, "partitions": partitions, "configs": configs})
        return
    write_rows(output, _PARTITIONS, partitions)
    if output is Form.TABLE and configs:
        typer.echo()
        write_rows(output, _CONFIGS, configs)


@topic.command()
@to_places
def create(
    name: TopicName,
    brokers: Brokers,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=-1, help="Number of partitions; -1: the brokers' default.")
    ] = -1,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Create a topic."""
    from tidegate.cli.client import topic_requests
    from tidegate.cli.client.kafka_client import KafkaClient

    async def make() -> bool:
        async with KafkaClient(brokers) as kafka:
            return await topic_requests.create(kafka, name, partitions, _assigned(config), dry_run)

    if not dry_run:
        confirm_change(cluster_of_brokers(brokers), f"topic {name} is created", yes)
    if not asyncio.run(make()):
        if not if_not_exists:
            raise CommandFailed(f"topic {name} exists already")
        typer.echo(f"{name} is there already")
    else:
        typer.echo(f"{name} can be created" if dry_run else f"created {name}")


@topic.command()
@to_places
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topics)],
    brokers: Brokers,
    yes: Yes = False,
) -> None:
    """Delete topics and all their records. Exit code 1 if one was not deleted."""
    from tidegate.cli.client import topic_requests
    from tidegate.cli.client.kafka_client import KafkaClient
    from tidegate.diagnosis.formatting import listed

    async def drop() -> dict[str, str]:
        async with KafkaClient(brokers) as kafka:
            return await topic_requests.delete(kafka, names)

    change = f"{listed(names)} and all records are deleted"
    confirm_change(cluster_of_brokers(brokers), change, yes, always=True)
    outcomes = asyncio.run(drop())
    for name, why in outcomes.items():
        typer.echo(f"tidegate: topic {name}: {visible(why)}" if why else f"deleted {name}", err=bool(why))
    if any(outcomes.values()):
        raise typer.Exit(BAD_NEWS)


@topic.command()
@to_places
def alter(
    name: TopicName,
    brokers: Brokers,
    config: Configs = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Reset this config to its default; may be repeated."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Set and unset configs of a topic; others are unchanged."""
    from tidegate.cli.client import topic_requests
    from tidegate.cli.client.kafka_client import KafkaClient

    async def change() -> None:
        async with KafkaClient(brokers) as kafka:
            await topic_requests.alter(kafka, name, _assigned(config), unset or (), dry_run)

    if not config and not unset:
        raise CommandFailed("nothing to change: --config NAME=VALUE or --unset NAME")
    if not dry_run:
        confirm_change(cluster_of_brokers(brokers), f"configs of topic {name} are changed", yes)
    asyncio.run(change())
    typer.echo(f"{name} can be altered" if dry_run else f"altered {name}")


@topic.command()
@to_places
def partitions(
    name: TopicName,
    count: Annotated[int, typer.Argument(min=1, help="New total number of partitions.")],
    brokers: Brokers,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Add partitions to a topic. New records with keys may go to other partitions than before."""
    from tidegate.cli.client import topic_requests
    from tidegate.cli.client.kafka_client import KafkaClient

    async def grow() -> None:
        async with KafkaClient(brokers) as kafka:
            await topic_requests.grow(kafka, name, count, dry_run)

    if not dry_run:
        confirm_change(cluster_of_brokers(brokers), f"topic {name} gets {count} partitions", yes)
    asyncio.run(grow())
    typer.echo(f"{name} can have {count} partitions" if dry_run else f"{name} has {count} partitions")


@topic.command()
@to_places
def trim(
    name: TopicName,
    brokers: Brokers,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this one; may be repeated. [default: all]"),
    ] = None,
    before: Annotated[
        int, typer.Option(min=-1, help="Delete the records below this offset; -1: all that may be read.")
    ] = -1,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Delete the oldest records of partitions. Exit code 1 if one was not trimmed."""
    from tidegate.cli.client import topic_requests
    from tidegate.cli.client.kafka_client import KafkaClient
    from tidegate.cli.output import write_rows

    async def delete_records() -> list[dict[str, Any]]:
        async with KafkaClient(brokers) as kafka:
            indexes = partition or sorted((await topic_requests.described(kafka, name)).leaders)
            return await topic_requests.trim(kafka, name, dict.fromkeys(indexes, before))

    of = f"partitions {', '.join(map(str, partition))}" if partition else "all partitions"
    what = "all records" if before < 0 else f"the records below offset {before}"
    confirm_change(cluster_of_brokers(brokers), f"{what} of {of} of {name} are deleted", yes, always=True)
    rows = asyncio.run(delete_records())
    write_rows(output, _TRIMMED, rows)
    if any(row["error"] for row in rows):
        raise typer.Exit(BAD_NEWS)


@topic.command()
@to_places
def compact(
    name: TopicName,
    server: RedisServer,
    partition: Annotated[int | None, typer.Argument(min=0, help="One partition.  [default: all]")] = None,
    org: Annotated[str, typer.Option(help="The topic's organisation.")] = "default",
    timeout: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="How long to wait for the brokers.")] = 600,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Compact partitions now, as far as `min.compaction.lag.ms` allows. Exit code 1 if one was not compacted.

    Prints the cluster before it changes anything, and prompts on a terminal. The request is stored in Redis, and any
    broker serves it: it waits 60 s, until the outcome of every append is known.
    """
    from tidegate.cli.client import compaction_requests
    from tidegate.cli.client.redis_access import connected
    from tidegate.cli.client.stray_entries import partitions as partitions_of
    from tidegate.cli.output import write_rows
    from tidegate.store.keys import ClusterKeys

    with connected(server) as client:
        named = [one for one in partitions_of(client, server.prefix) if (one.org, one.topic) == (org, name)]
        chosen = [one for one in named if partition in (None, one.index)]
        if not chosen:
            raise CommandFailed(f"there is no topic {name}" if not named else f"{name} has no partition {partition}")
        of = "all partitions" if partition is None else f"partition {partition}"
        change = f"of {of} of {name}, records with a later one of the same key are deleted"
        confirm_change(cluster_of_redis(server), change, yes)
        rows = compaction_requests.compact(client, ClusterKeys(server.prefix), chosen, timeout)
    write_rows(output, _COMPACTED, rows)
    if any(row["error"] for row in rows):
        raise typer.Exit(BAD_NEWS)


@topic.command()
@to_places
def repair(
    name: TopicName,
    server: RedisServer,
    partition: Annotated[int | None, typer.Argument(min=0, help="One partition.  [default: all]")] = None,
    org: Annotated[str, typer.Option(help="The topic's organisation.")] = "default",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the entries that would be removed.")] = False,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Remove stream entries that no broker appended, or that are damaged, so that produce and fetch work again.

    Copies the valid entries into a new stream, which replaces the log. Connects to Redis, not to brokers.
    """
    from tidegate.cli.client import log_repair
    from tidegate.cli.client.redis_access import connected, durable_change
    from tidegate.cli.client.stray_entries import partitions as partitions_of
    from tidegate.cli.output import write_rows

    with connected(server) as client:
        named = [one for one in partitions_of(client, server.prefix) if (one.org, one.topic) == (org, name)]
        chosen = [one for one in named if partition in (None, one.index)]
        if not chosen:
            raise CommandFailed(f"there is no topic {name}" if not named else f"{name} has no partition {partition}")
        examined = {one: log_repair.scan_partition(client, one) for one in chosen}
        bad = [one for one, scanned in examined.items() if scanned.strays or scanned.stopped]
        rows = [row for one in bad for row in log_repair.rows(one, examined[one])]
        write_rows(output, _LEFT_OUT, rows)
        if not bad:
            typer.echo(f"{name}: nothing to repair in {len(chosen)} partitions", err=True)
        elif not dry_run:
            confirm_change(cluster_of_redis(server), f"these entries are left out of {name}", yes, always=True)
            with durable_change(client, server, everywhere=True):
                for one in bad:
                    end, left_out = log_repair.repair(client, one)
                    typer.echo(f"{one}: repaired, ends at {end}, {len(left_out)} entries left out", err=True)


def _assigned(configs: Sequence[str] | None) -> dict[str, str]:
    found = {}
    for text in configs or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandFailed(f"--config {text}: not NAME=VALUE")
        found[name.strip()] = value
    return found
