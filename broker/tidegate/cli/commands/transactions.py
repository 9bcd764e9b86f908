"""`tidegate txn ...`: list, describe and abort transactions, and find hanging ones, over Kafka's protocol."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from tidegate.cli.change_notice import Yes, cluster_of_brokers, confirm_change
from tidegate.cli.command_group import command_group
from tidegate.cli.commands.completion import complete_topics
from tidegate.cli.failures import BAD_NEWS, CommandFailed
from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import Brokers, to_places

txn = command_group("txn", "List, describe and abort transactions; find hanging ones.")

TransactionalId = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID", help="The producer's transactional.id.")]

_LIST = [
    Column("transactional_id", "TRANSACTIONAL ID"),
    Column("state", "STATE"),
    Column("producer_id", "PRODUCER ID", right=True),
    Column("coordinator", "COORDINATOR", right=True),
]
_DESCRIBED = [
    Column("transactional_id", "TRANSACTIONAL ID"),
    Column("state", "STATE"),
    Column("producer_id", "PRODUCER ID", right=True),
    Column("producer_epoch", "EPOCH", right=True),
    Column("timeout_ms", "TIMEOUT MS", right=True),
    Column("started", "STARTED", lambda value: value or ""),
    Column("partitions", "PARTITIONS", ", ".join),
]
_HANGING = [
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("start_offset", "START OFFSET", right=True),
    Column("producer_id", "PRODUCER ID", right=True),
    Column("producer_epoch", "EPOCH", right=True),
    Column("last_timestamp_ms", "LAST WRITE MS", right=True),
]


@txn.command("list")
@to_places
def list_transactions(
    brokers: Brokers,
    state: Annotated[list[str] | None, typer.Option(help="Only this state, as Ongoing; may be repeated.")] = None,
    older_than_ms: Annotated[
        int, typer.Option(min=-1, help="Only transactions in progress for longer than this; -1: all.")
    ] = -1,
    output: Output = Form.TABLE,
) -> None:
    """List transactional ids with the state of their last transaction."""
    from tidegate.cli.client import transaction_requests
    from tidegate.cli.client.kafka_client import KafkaClient
    from tidegate.cli.output import write_rows

    async def observe() -> list[dict[str, Any]]:
        async with KafkaClient(brokers) as kafka:
            return await transaction_requests.listed(kafka, state or (), older_than_ms)

    write_rows(output, _LIST, asyncio.run(observe()))


@txn.command()
@to_places
def describe(name: TransactionalId, brokers: Brokers, output: Output = Form.TABLE) -> None:
    """Describe a transactional id: its producer, and the partitions of its transaction."""
    from tidegate.cli.client import transaction_requests
    from tidegate.cli.client.kafka_client import KafkaClient
    from tidegate.cli.output import write_rows, write_whole

    async def observe() -> dict[str, Any]:
        async with KafkaClient(brokers) as kafka:
            return await transaction_requests.described(kafka, name)

    found = asyncio.run(observe())
    if output in (Form.JSON, Form.YAML):
        write_whole(output, found)
    else:
        write_rows(output, _DESCRIBED, [found])


@txn.command("find-hanging")
@to_places
def find_hanging(
    brokers: Brokers,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="Only this topic; may be repeated.  [default: all]", autocompletion=complete_topics),
    ] = None,
    older_than_ms: Annotated[
        int,
        typer.Option(min=0, help="Only those that wrote nothing for this long; transaction.max.timeout.ms or more."),
    ] = 900_000,
    output: Output = Form.TABLE,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end. Exit code 1 if there are any.

    Consumers with read_committed stop at them; `tidegate txn abort-hanging` ends them.
    """
    from tidegate.cli.client import transaction_requests
    from tidegate.cli.client.kafka_client import KafkaClient
    from tidegate.cli.output import write_rows

    async def observe() -> list[dict[str, Any]]:
        async with KafkaClient(brokers) as kafka:
            return await transaction_requests.hanging(kafka, older_than_ms, topic or None)

    rows = asyncio.run(observe())
    write_rows(output, _HANGING, rows)
    if rows:
        raise typer.Exit(BAD_NEWS)


@txn.command()
@to_places
def abort(name: TransactionalId, brokers: Brokers, yes: Yes = False) -> None:
    """Abort the transaction of a transactional id. Its producer is fenced and must be started again."""
    from tidegate.cli.client import transaction_requests
    from tidegate.cli.client.kafka_client import KafkaClient

    async def end() -> dict[str, Any]:
        async with KafkaClient(brokers) as kafka:
            return await transaction_requests.abort(kafka, name)

    change = f"the transaction of {name} is aborted and its producer fenced"
    confirm_change(cluster_of_brokers(brokers), change, yes, always=True)
    typer.echo(f"{name} is {asyncio.run(end())['state']}")


@txn.command("abort-hanging")
@to_places
def abort_hanging(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topics)],
    partition: Annotated[int, typer.Argument(min=0, help="The partition.")],
    start_offset: Annotated[int, typer.Argument(min=0, help="Where the transaction begins, as find-hanging lists it.")],
    brokers: Brokers,
    yes: Yes = False,
) -> None:
    """Abort a hanging transaction in one partition, by its marker."""
    from tidegate.cli.client import transaction_requests
    from tidegate.cli.client.kafka_client import KafkaClient

    async def end() -> dict[str, Any]:
        async with KafkaClient(brokers) as kafka:
            return await transaction_requests.abort_hanging(kafka, topic, partition, start_offset)

    if not topic:
        raise CommandFailed("a topic is missing")
    change = f"the transaction that begins at offset {start_offset} of {topic}-{partition} is aborted"
    confirm_change(cluster_of_brokers(brokers), change, yes, always=True)
    typer.echo(f"aborted the transaction of producer {asyncio.run(end())['producer_id']}")
