"""The Kafka requests of the topic commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client.kafka_client import EARLIEST, LATEST, KafkaClient, TopicLeaders, error_at
from tidegate.cli.client.kafka_wire import request
from tidegate.cli.client.record_topics import record_count, record_topics
from tidegate.cli.failures import CommandFailed
from tidegate.protocol.api_keys import ApiKey

_TIMEOUT: Final = timedelta(seconds=30)
_TOPIC: Final = 2
"""Kafka's config resource type of a topic."""
_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""
_SOURCES: Final = {1: "topic", 2: "broker", 3: "cluster", 4: "broker", 5: "default", 6: "logger"}


async def described(kafka: KafkaClient, name: str) -> TopicLeaders:
    """A topic. Raises CommandFailed when it does not exist."""
    found = await kafka.topics([name])
    if name not in found:
        raise CommandFailed(f"there is no topic {name}")
    return found[name]


async def partition_rows(kafka: KafkaClient, topics: Mapping[str, TopicLeaders]) -> list[dict[str, Any]]:
    """Each partition: leader, log start, end, number of records (None when unavailable), in order."""
    places = [(topic.name, index) for topic in topics.values() for index in sorted(topic.leaders)]
    starts = await kafka.offsets_known(dict.fromkeys(places, EARLIEST), topics)
    ends = await kafka.offsets_known(dict.fromkeys(places, LATEST), topics)
    of_format_record = await record_topics(kafka, ends)
    rows = []
    for name, index in places:
        start, end = starts.get((name, index)), ends.get((name, index))
        rows.append(
            {
                "topic": name,
                "partition": index,
                "leader": topics[name].leaders[index],
                "start": start,
                "end": end,
                "records": record_count(start, end, name in of_format_record),
            }
        )
    return rows


async def with_errors(kafka: KafkaClient, topic: TopicLeaders, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the error that a consumer at the end gets, None for none."""

    async def error(row: dict[str, Any]) -> str | None:
        if row["end"] is None:
            return None
        return await error_at(kafka, (topic.name, row["partition"]), row["leader"], row["end"])

    found = [await error(row) for row in rows]
    return [{**row, "error": one} for row, one in zip(rows, found, strict=True)]


async def topic_rows(kafka: KafkaClient) -> list[dict[str, Any]]:
    """Each topic: number of partitions, of records, and of partitions whose records are unknown."""
    topics = await kafka.topics()
    by_topic: dict[str, list[dict[str, Any]]] = {name: [] for name in sorted(topics)}
    for row in await partition_rows(kafka, topics):
        by_topic[row["topic"]].append(row)
    return [
        {
            "topic": name,
            "partitions": len(rows),
            "records": _total([row["records"] for row in rows if row["records"] is not None], len(rows)),
            "unknown": sum(row["records"] is None for row in rows),
        }
        for name, rows in by_topic.items()
    ]


def _total(known: Sequence[int], partition_count: int) -> int | None:
    """The records of a topic; None where only empty partitions are known."""
    return sum(known) if any(known) or len(known) == partition_count else None


async def configs(kafka: KafkaClient, name: str, own_only: bool) -> list[dict[str, Any]]:
    """A topic's configs: all, or those set on the topic."""
    part = request(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
    resource = part(resource_type=_TOPIC, resource_name=name, configuration_keys=None)
    answer = await kafka.ask(
        ApiKey.DESCRIBE_CONFIGS, resources=(resource,), include_synonyms=False, include_documentation=False
    )
    (result,) = answer.results
    _check(result, f"topic {name}")
    rows = [
        {"name": one.name, "value": one.value, "source": _SOURCES.get(one.config_source, str(one.config_source))}
        for one in sorted(result.configs, key=lambda one: str(one.name))
    ]
    return [row for row in rows if row["source"] == "topic" or not own_only]


async def create(
    kafka: KafkaClient, name: str, partitions: int, overrides: Mapping[str, str], validate_only: bool
) -> bool:
    """Create a topic; -1 partitions for the brokers' default. False when it exists already."""
    module = request(ApiKey.CREATE_TOPICS)
    configs = tuple(module.CreatableTopicConfig(name=key, value=value) for key, value in overrides.items())
    topic = module.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=-1, assignments=(), configs=configs
    )
    answer = await kafka.ask(ApiKey.CREATE_TOPICS, topics=(topic,), timeout=_TIMEOUT, validate_only=validate_only)
    (result,) = answer.topics
    if result.error_code is ErrorCode.topic_already_exists:
        return False
    _check(result, f"topic {name}")
    return True


async def delete(kafka: KafkaClient, names: Sequence[str]) -> dict[str, str]:
    """Delete topics; topic -> error message, "" on success."""
    part = request(ApiKey.DELETE_TOPICS).DeleteTopicState
    topics = tuple(part(name=name, topic_id=None) for name in names)
    answer = await kafka.ask(ApiKey.DELETE_TOPICS, topics=topics, timeout=_TIMEOUT)
    return {one.name: _why(one) for one in answer.responses}


async def trim(kafka: KafkaClient, name: str, before: Mapping[int, int]) -> list[dict[str, Any]]:
    """Delete the records below an offset of each partition, -1 for all; partition, new start, and error or "".

    Each leader is asked for its own.
    """
    topic = await described(kafka, name)
    if missing := sorted(before.keys() - topic.leaders.keys()):
        raise CommandFailed(f"{name} has no partition {missing[0]}")
    module = request(ApiKey.DELETE_RECORDS)
    rows = []
    for leader in sorted({topic.leaders[index] for index in before}):
        asked = tuple(
            module.DeleteRecordsPartition(partition_index=index, offset=offset)
            for index, offset in sorted(before.items())
            if topic.leaders[index] == leader
        )
        part = module.DeleteRecordsTopic(name=name, partitions=asked)
        answer = await kafka.ask_broker(leader, ApiKey.DELETE_RECORDS, topics=(part,), timeout=_TIMEOUT)
        for one in answer.topics[0].partitions:
            why = "" if one.error_code is ErrorCode.none else one.error_code.name.upper()
            rows.append({"partition": one.partition_index, "start": None if why else one.low_watermark, "error": why})
    return sorted(rows, key=lambda row: int(row["partition"]))


async def grow(kafka: KafkaClient, name: str, count: int, validate_only: bool) -> None:
    """Increase a topic to `count` partitions."""
    part = request(ApiKey.CREATE_PARTITIONS).CreatePartitionsTopic
    answer = await kafka.ask(
        ApiKey.CREATE_PARTITIONS,
        topics=(part(name=name, count=count, assignments=None),),
        timeout=_TIMEOUT,
        validate_only=validate_only,
    )
    (result,) = answer.results
    _check(result, f"topic {name}")


async def alter(
    kafka: KafkaClient, name: str, values: Mapping[str, str], unset: Iterable[str], validate_only: bool
) -> None:
    """Set and unset single configs (KIP-339)."""
    module = request(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    changes = [(key, _SET, value) for key, value in values.items()] + [(key, _DELETE, None) for key in unset]
    parts = tuple(module.AlterableConfig(name=key, config_operation=what, value=value) for key, what, value in changes)
    resource = module.AlterConfigsResource(resource_type=_TOPIC, resource_name=name, configs=parts)
    answer = await kafka.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=(resource,), validate_only=validate_only)
    (result,) = answer.responses
    _check(result, f"topic {name}")


def _why(result: Any) -> str:
    return "" if result.error_code is ErrorCode.none else result.error_message or result.error_code.name.upper()


def _check(result: Any, what: str) -> None:
    if why := _why(result):
        raise CommandFailed(f"{what}: {why}")
