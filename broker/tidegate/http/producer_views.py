"""Producers with an id of a topic, from the logs' producer state, and an organisation's transactions."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from tidegate.apis.call import BrokerContext
from tidegate.errors import UnknownTopicOrPartition
from tidegate.log.producers_table import ProducerState
from tidegate.log.record_format.record_log import RecordLog
from tidegate.transactions.listing import list_transactions, used_shards
from tidegate.transactions.model import State

PARTITIONS_MAX: Final = 100
"""Maximum partitions per response: a log that is not loaded must be read from its last snapshot on."""
PRODUCERS_MAX: Final = 1_000
"""Maximum producers per partition, most recently active first."""
TRANSACTIONS_MAX: Final = 1_000
"""Maximum transactional ids per response."""

_AT_ONCE: Final = 8


async def producers(
    context: BrokerContext, org: str, topic: str, first: int = 0, count_max: int = PARTITIONS_MAX
) -> dict[str, Any]:
    """Idempotent producers of the topic's partitions from `first` on.

    Raises UnknownTopicOrPartition, StoreUnavailable.
    """
    await context.catalog.refresh()
    found = await context.catalog.find(org, topic)
    if found is None:
        raise UnknownTopicOrPartition
    gate = asyncio.Semaphore(_AT_ONCE)

    async def refresh(index: int) -> dict[str, Any]:
        async with gate:
            log = context.logs.partition(found, index)
            if isinstance(log, RecordLog):
                return _partition(index, (await log.end_offset()).log_end_offset, await log.read_producers())
            state = await log.refresh()
            return _partition(index, state.end, dict(state.producers))

    indexes = range(first, min(found.partition_count, first + count_max))
    return {
        "topic": topic,
        "partition_count": found.partition_count,
        "partitions": await asyncio.gather(*map(refresh, indexes)),
    }


async def transactions(context: BrokerContext, org: str) -> dict[str, Any]:
    """The organisation's transactional ids: those with a transaction in progress first, the oldest of them at the top.

    Raises StoreUnavailable.
    """
    listed = await list_transactions(context.store, org, await used_shards(context.store))
    listed.sort(key=lambda one: (one.state != State.ONGOING, one.start_ms, one.transactional_id))
    rows = [
        {
            "transactional_id": one.transactional_id,
            "state": one.state,
            "producer_id": one.producer_id,
            "started_ms": one.start_ms if one.start_ms >= 0 else None,
        }
        for one in listed[:TRANSACTIONS_MAX]
    ]
    return {"transactions": rows, "total": len(listed)}


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
        "transaction_start_offset": state.transaction_start if state.transaction_start >= 0 else None,
    }
