"""`tidegate round-trip`: produces a record, consumes it, commits its offset as a group and reads that back."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Annotated, Any, Final, TypeVar

import typer

from tidegate.cli.change_notice import Yes, cluster_of_brokers, confirm_change
from tidegate.cli.failures import CommandFailed
from tidegate.cli.output import Column, Form, Output, write_rows
from tidegate.cli.places import Brokers, to_places

TOPIC: Final = "tidegate-round-trip"
_RETENTION_MS: Final = 3_600_000
_TIMEOUT: Final = timedelta(seconds=10)
_ACKS_ALL: Final = -1
_COLUMNS: Final = [Column("step", "STEP"), Column("result", "RESULT"), Column("took_ms", "MS", right=True)]

Answer = TypeVar("Answer")


class Steps:
    """The completed steps and their durations."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    async def step(self, name: str, request: Awaitable[Answer], describe: Callable[[Answer], str]) -> Answer:
        """Await a step. `describe` formats its result."""
        started = time.perf_counter()
        answer = await request
        took_ms = round((time.perf_counter() - started) * 1000, 1)
        self.rows.append({"step": name, "result": describe(answer), "took_ms": took_ms})
        return answer


@to_places
def round_trip(
    brokers: Brokers,
    topic: Annotated[str, typer.Option(help="Topic, created if missing, with a retention of one hour.")] = TOPIC,
    yes: Yes = False,
    output: Output = Form.TABLE,
) -> None:
    """Test the cluster: produce a record, consume it, commit its offset as a group.

    Prints the cluster before it changes anything, and prompts on a terminal. Exit code 2 if a step fails. The topic is
    kept, the group is deleted.
    """
    change = f"topic {topic} is created unless it exists, and gets a record"
    confirm_change(cluster_of_brokers(brokers), change, yes)
    write_rows(output, _COLUMNS, asyncio.run(there_and_back(brokers, topic)))


async def there_and_back(brokers: Brokers, topic: str) -> list[dict[str, Any]]:
    """Run all steps; returns each with its result and duration in ms. Raises CommandFailed when a step fails."""
    from tidegate.cli.client import group_operations, topic_requests
    from tidegate.cli.client.kafka_client import KafkaClient

    steps, group_id, value = Steps(), f"{TOPIC}-{uuid.uuid4().hex}", uuid.uuid4().bytes
    async with KafkaClient(brokers, TOPIC) as kafka:
        made = topic_requests.create(kafka, topic, 1, {"retention.ms": str(_RETENTION_MS)}, validate_only=False)
        await steps.step("topic", made, lambda new: f"{topic}, {'created' if new else 'exists'}")
        offset = await steps.step("produced", _produce(kafka, topic, value), lambda at: f"offset {at}")
        await steps.step("consumed", _consume(brokers, topic, offset, value), lambda size: f"the same {size} bytes")
        committing = _commit(kafka, group_id, topic, offset + 1)
        await steps.step("committed", committing, lambda at: f"offset {at}, in a new group")
        await steps.step("deleted", group_operations.delete(kafka, group_id), lambda _: "the group")
    return steps.rows


async def _produce(kafka: Any, topic: str, value: bytes) -> int:
    """The offset of the record, acknowledged by all in-sync replicas."""
    from tidegate.cli.client.kafka_client import raise_for
    from tidegate.cli.client.kafka_wire import request
    from tidegate.cli.client.topic_requests import described
    from tidegate.protocol.api_keys import ApiKey
    from tidegate.records.build import NewRecord, build_batch

    module = request(ApiKey.PRODUCE)
    batch = build_batch([NewRecord(value, timestamp=time.time_ns() // 1_000_000)])
    data = module.TopicProduceData(name=topic, partition_data=(module.PartitionProduceData(index=0, records=batch),))
    leader = (await described(kafka, topic)).leaders[0]
    answer = await kafka.ask_broker(leader, ApiKey.PRODUCE, acks=_ACKS_ALL, timeout=_TIMEOUT, topic_data=(data,))
    (partition,) = answer.responses[0].partition_responses
    raise_for(partition.error_code, f"{topic} 0")
    return int(partition.base_offset)


async def _consume(brokers: Brokers, topic: str, offset: int, value: bytes) -> int:
    """Consume the record and compare it with the produced one; returns its size, bytes."""
    from tidegate.cli.client.tail_reading import Tail

    reading = Tail(brokers, topic, str(offset), frozenset({0}), follow=True)
    try:
        async with asyncio.timeout(_TIMEOUT.total_seconds()), aclosing(reading.records()) as records:
            async for found in records:
                if found.record.offset == offset and found.record.value == value:
                    return len(value)
    except TimeoutError:
        pass
    raise CommandFailed(f"{topic} 0: offset {offset} was acknowledged and is not read in {_TIMEOUT.seconds} s")


async def _commit(kafka: Any, group_id: str, topic: str, offset: int) -> int:
    """The committed offset as the group's coordinator returns it."""
    from tidegate.cli.client import group_operations
    from tidegate.cli.client.kafka_client import raise_for

    for code in (await group_operations.commit(kafka, group_id, {(topic, 0): (offset, "")})).values():
        raise_for(code, f"group {group_id}")
    committed: int = (await group_operations.committed(kafka, group_id)).get((topic, 0), -1)
    if committed != offset:
        raise CommandFailed(f"group {group_id}: committed {offset}, fetched {committed}")
    return committed
