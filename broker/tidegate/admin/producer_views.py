"""Idempotent producers of a topic, from the logs' producer state."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tidegate.apis.call import BrokerContext
from tidegate.errors import UnknownTopicOrPartition
from tidegate.log.producers_table import ProducerState

PARTITIONS_MAX: Final = 100
"""Maximum partitions per response: a log that is not loaded must be read from its last snapshot on."""
PRODUCERS_MAX: Final = 1_000
"""Maximum producers per partition, most recently active first."""
NOTE: Final = "This version serves no transactions, so no producer has one open."

_AT_ONCE: Final = 8


async def producers(
    context: BrokerContext, org: str, topic: str, first: int = 0, count_max: int = PARTITIONS_MAX
) -> dict[str, Any]:
    """Idempotent producers of the topic's partitions from `first` on.

    Raises UnknownTopicOrPartition, StoreUnavailable.
    """
    found = await context.catalog.find(org, topic)
    if found is None:
        raise UnknownTopicOrPartition
    gate = asyncio.Semaphore(_AT_ONCE)

    async def refresh(index: int) -> dict[str, Any]:
        async with gate:
            view = await context.logs.partition(found, index).refresh()
            return _partition(index, view.end, dict(view.producers))

    indexes = range(first, min(found.partition_count, first + count_max))
    return {
        "topic": topic,
        "partition_count": found.partition_count,
        "partitions": await asyncio.gather(*map(refresh, indexes)),
        "note": NOTE,
    }


def _partition(index: int, end: int, states: dict[int, ProducerState]) -> dict[str, Any]:
    latest = sorted(states.items(), key=lambda one: (-one[1].last_active_ms, one[0]))
    return {
        "partition": index,
        "log_end": end,
        "producer_count": len(states),
        "producers": [_producer(producer_id, state) for producer_id, state in latest[:PRODUCERS_MAX]],
    }


def _producer(producer_id: int, state: ProducerState) -> dict[str, Any]:
    last = state.batches[-1] if state.batches else None
    return {
        "producer_id": producer_id,
        "epoch": state.epoch,
        "last_sequence": last.last_sequence if last else None,
        "last_base_offset": last.base_offset if last else None,
        "last_timestamp_ms": last.timestamp if last else None,
        "last_active_ms": state.last_active_ms,
    }
