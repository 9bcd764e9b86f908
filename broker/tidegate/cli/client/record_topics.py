"""Topics of format `record`: their offsets are times, so that a difference of two is no number of records."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client.group_requests import Place
from tidegate.cli.client.kafka_client import KafkaClient
from tidegate.cli.client.kafka_wire import request
from tidegate.protocol.api_keys import ApiKey

_TOPIC: Final = 2
"""Kafka's config resource type of a topic."""
_FORMAT, _RECORD = "tidegate.format", "record"
_TOPICS_MAX: Final = 1_000
"""Of one request."""
_TIME_OFFSET_MIN: Final = 1 << 48
"""Offsets of format record that Redis's clock gave are above it: it is the year 2004 with the fewest bits for the
sequence. A topic of another format gets there after nine years of a million records a second."""


async def record_topics(kafka: KafkaClient, ends: Mapping[Place, int]) -> set[str]:
    """Those of format record among the topics of these partitions, by their configs.

    One whose configs may not be described is taken for one if an end offset may be a time. Raises CommandFailed.
    """
    last: dict[str, int] = {}
    for (topic, _), end in ends.items():
        last[topic] = max(end, last.get(topic, 0))
    part = request(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
    left, found = iter(sorted(last)), set[str]()
    while some := tuple(islice(left, _TOPICS_MAX)):
        resources = tuple(
            part(resource_type=_TOPIC, resource_name=name, configuration_keys=(_FORMAT,)) for name in some
        )
        answer = await kafka.ask(
            ApiKey.DESCRIBE_CONFIGS, resources=resources, include_synonyms=False, include_documentation=False
        )
        found |= {str(one.resource_name) for one in answer.results if _is_record(one, last[str(one.resource_name)])}
    return found


def _is_record(described: Any, end: int) -> bool:
    if described.error_code is not ErrorCode.none:
        return end >= _TIME_OFFSET_MIN
    return any(config.name == _FORMAT and config.value == _RECORD for config in described.configs)


def record_count(start: int | None, end: int | None, is_record: bool) -> int | None:
    """Records from offset `start` to `end`; None if one of them is unknown, or the topic is of format record."""
    distance = None if start is None or end is None else max(end - start, 0)
    return None if is_record and distance else distance
