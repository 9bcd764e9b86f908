"""The Kafka requests of the txn commands (KIP-664): transactions at their coordinators, producers at their leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client.group_requests import Place, by_topic
from tidegate.cli.client.kafka_client import KafkaClient, TopicLeaders, raise_for
from tidegate.cli.client.kafka_wire import request
from tidegate.cli.failures import CommandFailed
from tidegate.protocol.api_keys import ApiKey

ONGOING: Final = "Ongoing"
_TRANSACTION: Final = 1
"""Kind of coordinator in FindCoordinator."""
_TRIES: Final = 50
_PAUSE_S: Final = 0.2
_AGAIN: Final = frozenset(
    {
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)

_STATES: Final = "Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort"


async def listed(kafka: KafkaClient, states: Sequence[str] = (), older_than_ms: int = -1) -> list[dict[str, Any]]:
    """Every transactional id, in order; each broker lists those that it coordinates. Raises CommandFailed."""
    await kafka.topics([])
    rows = []
    for broker in kafka.listed:
        answer = await kafka.ask_broker(
            broker.node_id, ApiKey.LIST_TRANSACTIONS,
            state_filters=tuple(states), producer_id_filters=(), duration_filter=older_than_ms,
        )  # fmt: skip
        raise_for(answer.error_code, f"broker {broker.node_id}")
        if answer.unknown_state_filters:
            raise CommandFailed(f"there is no state {', '.join(answer.unknown_state_filters)}; there are {_STATES}")
        rows += [
            {
                "transactional_id": one.transactional_id,
                "state": one.transaction_state,
                "producer_id": one.producer_id,
                "coordinator": broker.node_id,
            }
            for one in answer.transaction_states
        ]
    return sorted(rows, key=lambda row: str(row["transactional_id"]))


async def described(kafka: KafkaClient, transactional_id: str) -> dict[str, Any]:
    """One transactional id; `partitions` are those of its transaction. Raises CommandFailed."""
    answer = await _at_coordinator(
        kafka, transactional_id, ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=(transactional_id,)
    )
    (one,) = answer.transaction_states
    if one.error_code is ErrorCode.transactional_id_not_found:
        raise CommandFailed(f"there is no transactional id {transactional_id}")
    raise_for(one.error_code, f"transactional id {transactional_id}")
    started = one.transaction_start_time
    return {
        "transactional_id": transactional_id,
        "state": one.transaction_state,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "timeout_ms": int(one.transaction_timeout.total_seconds() * 1000),
        "started": started.isoformat() if started.timestamp() > 0 else None,
        "partitions": [f"{topic.topic}-{index}" for topic in one.topics for index in topic.partitions],
    }


async def abort(kafka: KafkaClient, transactional_id: str) -> dict[str, Any]:
    """Abort a transaction as a new producer of its id does: the present one is fenced. Returns what it is then.

    Raises CommandFailed, also if the id does not exist or has no transaction.
    """
    before = await described(kafka, transactional_id)
    if before["state"] != ONGOING:
        raise CommandFailed(f"transactional id {transactional_id} has no transaction: it is {before['state']}")
    for _ in range(_TRIES):
        answer = await _at_coordinator(
            kafka, transactional_id, ApiKey.INIT_PRODUCER_ID,
            transactional_id=transactional_id, transaction_timeout=timedelta(milliseconds=before["timeout_ms"]),
            producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        if answer.error_code not in _AGAIN:
            raise_for(answer.error_code, f"transactional id {transactional_id}")
            return await described(kafka, transactional_id)
        await asyncio.sleep(_PAUSE_S)
    raise CommandFailed(f"the transaction of {transactional_id} is still being aborted")


# -- hanging transactions


async def hanging(kafka: KafkaClient, older_than_ms: int, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Transactions that are open in a partition, last written so long ago, and that no coordinator has in progress.

    Raises CommandFailed.
    """
    topics = await kafka.topics(names)
    found = await open_producers(kafka, topics)
    if not found:
        return []
    known = {(row["producer_id"], place) for row in await _in_progress(kafka) for place in row["partitions"]}
    oldest_ms = int(datetime.now(UTC).timestamp() * 1000) - older_than_ms
    return [
        {"topic": place[0], "partition": place[1], **row}
        for place, row in found
        if (row["producer_id"], f"{place[0]}-{place[1]}") not in known and row["last_timestamp_ms"] <= oldest_ms
    ]


async def open_producers(kafka: KafkaClient, topics: Mapping[str, TopicLeaders]) -> list[tuple[Place, dict[str, Any]]]:
    """The producers with an open transaction, by partition. Raises CommandFailed."""
    by_leader: dict[int, list[Place]] = {}
    for topic in topics.values():
        for index, leader in sorted(topic.leaders.items()):
            by_leader.setdefault(leader, []).append((topic.name, index))
    found = []
    for leader, places in sorted(by_leader.items()):
        part = request(ApiKey.DESCRIBE_PRODUCERS).TopicRequest
        asked = tuple(
            part(name=name, partition_indexes=tuple(partitions))
            for name, partitions in by_topic(dict.fromkeys(places)).items()
        )
        answer = await kafka.ask_broker(leader, ApiKey.DESCRIBE_PRODUCERS, topics=asked)
        for topic in answer.topics:
            for partition in topic.partitions:
                raise_for(partition.error_code, f"{topic.name}-{partition.partition_index}")
                found += [
                    ((topic.name, partition.partition_index), _producer(one))
                    for one in partition.active_producers
                    if one.current_txn_start_offset >= 0
                ]
    return sorted(found, key=lambda one: (one[0], one[1]["producer_id"]))


def _producer(one: Any) -> dict[str, Any]:
    return {
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "start_offset": one.current_txn_start_offset,
        "last_timestamp_ms": one.last_timestamp,
    }


async def _in_progress(kafka: KafkaClient) -> list[dict[str, Any]]:
    ids = [row["transactional_id"] for row in await listed(kafka)]
    return [one for one in [await described(kafka, each) for each in ids] if one["partitions"]]


async def abort_hanging(kafka: KafkaClient, topic: str, partition: int, start_offset: int) -> dict[str, Any]:
    """Write the abort marker of the transaction that begins at an offset of a partition. Raises CommandFailed."""
    topics = await kafka.topics([topic])
    if topic not in topics or partition not in topics[topic].leaders:
        raise CommandFailed(f"there is no partition {topic}-{partition}")
    leader = topics[topic].leaders[partition]
    only = TopicLeaders(topic, {partition: leader})
    rows = [row for _, row in await open_producers(kafka, {topic: only}) if row["start_offset"] == start_offset]
    if not rows:
        raise CommandFailed(f"no transaction of {topic}-{partition} begins at offset {start_offset}")
    (row,) = rows
    module = request(ApiKey.WRITE_TXN_MARKERS)
    marker = module.WritableTxnMarker(
        producer_id=row["producer_id"], producer_epoch=row["producer_epoch"], transaction_result=False,
        topics=(module.WritableTxnMarkerTopic(name=topic, partition_indexes=(partition,)),),
        coordinator_epoch=max(row["coordinator_epoch"], 0),
    )  # fmt: skip
    answer = await kafka.ask_broker(leader, ApiKey.WRITE_TXN_MARKERS, markers=(marker,))
    [result] = [one for marked in answer.markers for of in marked.topics for one in of.partitions]
    raise_for(result.error_code, f"{topic}-{partition}")
    return row


async def _at_coordinator(kafka: KafkaClient, key: str, /, api: ApiKey, **values: Any) -> Any:
    for _ in range(_TRIES):
        found = await kafka.ask(ApiKey.FIND_COORDINATOR, key=key, key_type=_TRANSACTION)
        if found.error_code not in _AGAIN:
            raise_for(found.error_code, f"transactional id {key}")
            return await kafka.ask_broker(found.node_id, api, **values)
        await asyncio.sleep(_PAUSE_S)
    raise CommandFailed(f"transactional id {key}: no coordinator is available")
