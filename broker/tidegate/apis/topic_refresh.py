"""What handlers of offsets ask of the catalogue, and do when this broker may know a topic no more or not yet."""

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
"""OffsetCommit and OffsetFetch name topics up to this version; later ones have their ids."""

Label = str | UUID | None
"""What an answer calls a topic: its name, or from v10 on its id."""


def label_of(call: Call, wanted: Any) -> Label:
    """What a topic of a request is called in the answer."""
    label: Label = wanted.name if call.version <= NAMES_UNTIL else wanted.topic_id
    return label


def topic_of(call: Call, label: Label) -> Topic | None:
    """A topic as this broker knows it."""
    catalog, org = call.context.catalog, call.client.org
    if isinstance(label, str):
        return catalog.get(org, label)
    return None if label is None else catalog.by_id(org, label)


async def refresh_again(call: Call, labels: Iterable[Label]) -> None:
    """Ask the store about topics that this broker does not know, or knows otherwise. Raises StoreUnavailable."""
    catalog, names = call.context.catalog, [label for label in labels if isinstance(label, str)]
    if not names or any(catalog.get(call.org, name) is not None for name in names):
        await catalog.refresh()
    else:
        for name in names:
            await catalog.find(call.org, name)


def code_of(error: Exception, away: ErrorCode) -> int:
    """The code of a failure; `away` where it is the store that does not answer."""
    if isinstance(error, StoreUnavailable):
        return away.value
    if isinstance(error, KafkaError):
        return error.code.value
    logger.error("offsets_failed", exc_info=error)
    return ErrorCode.unknown_server_error.value
