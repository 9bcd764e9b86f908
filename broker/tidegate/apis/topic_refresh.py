"""Topic lookups of the offset APIs, with a refresh when this broker's cached topics may be outdated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.topics.model import Topic

logger = structlog.get_logger()

NAMES_UNTIL = 9
"""The last version in which OffsetCommit and OffsetFetch use topic names; later ones use ids."""

Label = str | UUID | None
"""A topic's name, or from v10 on its id, in an answer."""


def label_of(call: Call, wanted: Any) -> Label:
    """The name or id of a requested topic in the answer."""
    label: Label = wanted.name if call.version <= NAMES_UNTIL else wanted.topic_id
    return label


def topic_of(call: Call, label: Label) -> Topic | None:
    """The cached topic."""
    catalog, org = call.context.catalog, call.client.org
    if isinstance(label, str):
        return catalog.get(org, label)
    return None if label is None else catalog.by_id(org, label)


async def refresh_again(call: Call, labels: Iterable[Label]) -> None:
    """Refresh topics that are not cached, or cached with other properties. Raises StoreUnavailable."""
    catalog, names = call.context.catalog, [label for label in labels if isinstance(label, str)]
    if not names or any(catalog.get(call.org, name) is not None for name in names):
        await catalog.refresh()
    else:
        for name in names:
            await catalog.find(call.org, name)


def unknown_topics(call: Call, topics: Iterable[Any]) -> set[Label]:
    """Requested topics that this broker has not cached, or has cached with fewer partitions."""
    missing = set()
    for wanted in topics:
        label = label_of(call, wanted)
        topic = topic_of(call, label)
        if topic is None or any(not 0 <= one.partition_index < topic.partition_count for one in wanted.partitions):
            missing.add(label)
    return missing


def code_of(error: Exception, away: ErrorCode) -> int:
    """The code of an exception; `away` if the store is unavailable."""
    if isinstance(error, StoreUnavailable):
        return away.value
    if isinstance(error, KafkaError):
        return error.code.value
    logger.error("offsets_failed", exc_info=error)
    return ErrorCode.unknown_server_error.value
