"""Topics of format `record`: their offsets are times, so that a difference of two is no number of records."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client.kafka_client import KafkaClient
from tidegate.cli.client.kafka_wire import request
from tidegate.protocol.api_keys import ApiKey

_TOPIC: Final = 2
"""Kafka's config resource type of a topic."""
_FORMAT, _RECORD = "tidegate.format", "record"
_TOPICS_MAX: Final = 1_000
"""Of one request."""


async def record_topics(kafka: KafkaClient, names: Iterable[str]) -> set[str]:
    """Those of format record. A topic whose configs may not be described is taken for another. Raises CommandFailed."""
    part = request(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
    left, found = iter(sorted(set(names))), set[str]()
    while some := tuple(islice(left, _TOPICS_MAX)):
        resources = tuple(
            part(resource_type=_TOPIC, resource_name=name, configuration_keys=(_FORMAT,)) for name in some
        )
        answer = await kafka.ask(
            ApiKey.DESCRIBE_CONFIGS, resources=resources, include_synonyms=False, include_documentation=False
        )
        found |= {
            str(one.resource_name)
            for one in answer.results
            if one.error_code is ErrorCode.none
            and any(config.name == _FORMAT and config.value == _RECORD for config in one.configs)
        }
    return found


def record_count(start: int | None, end: int | None, is_record: bool) -> int | None:
    """Records from offset `start` to `end`; None if one of them is unknown, or the topic is of format record."""
    distance = None if start is None or end is None else max(end - start, 0)
    return None if is_record and distance else distance
