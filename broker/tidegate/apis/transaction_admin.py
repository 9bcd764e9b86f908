"""ListTransactions, DescribeTransactions, DescribeProducers (KIP-664), WriteTxnMarkers: requests of administrators."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tidegate.apis.bounded_answers import each_once
from tidegate.apis.call import Call
from tidegate.apis.named_topics import NamedTopic, as_now, topics_of
from tidegate.apis.registry import api
from tidegate.apis.slices import Slices, each, in_slices
from tidegate.apis.topic_rights import may
from tidegate.apis.transactions import code_of, keys_of
from tidegate.cluster.placement import coordinator_of
from tidegate.errors import InvalidProducerEpoch, KafkaError, NotLeaderOrFollower, UnknownTopicOrPartition
from tidegate.log.outgoing import KnownTransaction
from tidegate.log.producers_table import ProducerState
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import EPOCH, NO_DATETIME, NO_TIME, at_top
from tidegate.protocol.versions import Fields
from tidegate.records.control import Marker, MarkerType
from tidegate.regular_expressions import compile_regex
from tidegate.security.acls import Operation, ResourceType
from tidegate.security.authorizer import Requester
from tidegate.topics.catalog import Topic
from tidegate.topics.names import CONSUMER_OFFSETS
from tidegate.transactions.completion import append_marker
from tidegate.transactions.errors import TransactionalIdNotFound, TransactionCoordinatorFenced
from tidegate.transactions.listing import ListedTransaction, used_shards
from tidegate.transactions.listing import list_transactions as list_transactions_of
from tidegate.transactions.model import State

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
    from kio.schema.list_transactions.v2.request import ListTransactionsRequest
    from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest

_AT_ONCE: Final = 16
"""Partitions of one WriteTxnMarkers whose producers are read at the same time."""
_NONE_OPEN: Final = KnownTransaction()
_MILLISECOND: Final = timedelta(milliseconds=1)
_STATES: Final = frozenset({*(one.value for one in State), "Dead", "PrepareEpochFence"})


# -- transactional ids


@api(
    ApiKey.LIST_TRANSACTIONS,
    first=0,
    last=2,
    answers_large=True,
    error=at_top(unknown_state_filters=(), transaction_states=()),
)
async def list_transactions(call: Call, request: ListTransactionsRequest) -> Any:
    """Transactional ids that this broker is named for. v1: started longer ago. v2: a pattern of the whole id."""
    pattern = compile_regex(request.transactional_id_pattern) if request.transactional_id_pattern else None
    unknown = [name async for name in in_slices(request.state_filters) if name not in _STATES]
    found = await _selected(call, request)
    if pattern is not None:  # it can take milliseconds for each
        found = await asyncio.to_thread(lambda: [one for one in found if pattern.fullmatch(one.transactional_id)])
    states = [
        Fields(transactional_id=one.transactional_id, producer_id=one.producer_id, transaction_state=one.state)
        async for one in in_slices(found)
    ]
    return Fields(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(unknown),
        transaction_states=tuple(states),
    )


async def _selected(call: Call, request: ListTransactionsRequest) -> list[ListedTransaction]:
    """The transactional ids that this broker is named for, the client may describe, and the filters select."""
    states = {name async for name in in_slices(request.state_filters)}
    producer_ids = {producer_id async for producer_id in in_slices(request.producer_id_filters)}
    duration_ms, now_ms = int(request.duration_filter), call.store.clock.now_ms()

    def selects(one: ListedTransaction) -> bool:
        return (
            (not states or one.state in states)
            and (not producer_ids or one.producer_id in producer_ids)
            and (duration_ms < 0 or now_ms - one.start_ms > duration_ms)
        )

    listed = await list_transactions_of(call.store, call.org, await _named_shards(call))
    return [one async for one in in_slices(listed) if selects(one) and _may_describe(call, one.transactional_id)]


def _may_describe(call: Call, transactional_id: str) -> bool:
    authorizer = call.context.security.authorizer if call.context.security is not None else None
    requester = Requester(call.client.principal, call.client.host, call.org)
    return authorizer is None or authorizer.allows(
        requester, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
    )


async def _named_shards(call: Call) -> list[int]:
    """Shards with transactional ids whose named coordinator is this broker: clients ask every broker."""
    broker_lease, listener = call.context.broker_lease, call.client.listener
    brokers, own = broker_lease.nameable(listener), broker_lease.shown_node_id(listener)
    return [shard for shard in await used_shards(call.store) if coordinator_of(shard, brokers).node_id == own]


@api(ApiKey.DESCRIBE_TRANSACTIONS, first=0, last=0, answers_large=True, error=error_responses.describe_transactions)
async def describe_transactions(call: Call, request: DescribeTransactionsRequest) -> Any:
    """State, producer and partitions of transactional ids."""
    states = await each_once(request.transactional_ids, partial(_described, call), _undescribed)
    return Fields(throttle_time=NO_TIME, transaction_states=tuple(states))


async def _described(call: Call, transactional_id: str) -> Any:
    one = await call.context.transactions.records.read(keys_of(call, transactional_id))
    if one is None:
        raise TransactionalIdNotFound
    topics: dict[str, set[int]] = {}
    for partition in sorted(one.partitions):
        topics.setdefault(partition.topic, set()).add(partition.partition)
    for group in one.groups:
        topics.setdefault(CONSUMER_OFFSETS, set()).add(call.store.stored_group_keys(call.org, group).shard_keys.shard)
    permitted = {topic: indexes for topic, indexes in topics.items() if may(call, Operation.DESCRIBE, topic)}
    return Fields(
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=one.state.value,
        transaction_timeout=one.timeout_ms * _MILLISECOND,
        transaction_start_time=NO_DATETIME if one.start_ms < 0 else EPOCH + one.start_ms * _MILLISECOND,
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        topics=tuple(Fields(topic=topic, partitions=tuple(sorted(indexes))) for topic, indexes in permitted.items()),
    )


def _undescribed(transactional_id: str, error: KafkaError) -> Any:
    return Fields(
        error_code=code_of(error), transactional_id=transactional_id, transaction_state="", producer_id=0,
        transaction_timeout=timedelta(0), transaction_start_time=EPOCH, producer_epoch=0, topics=(),
    )  # fmt: skip


# -- partitions


@api(ApiKey.DESCRIBE_PRODUCERS, first=0, last=0, answers_large=True, error=error_responses.describe_producers)
async def describe_producers(call: Call, request: DescribeProducersRequest) -> Any:
    """The idempotent and transactional producers of partitions, with their open transactions."""
    slices = Slices()
    places = [
        (asked.name, index)
        async for asked in slices.of(request.topics)
        async for index in slices.of(asked.partition_indexes)
    ]
    found = iter(await each_once(places, partial(_producers, call), _without_producers, beyond=NotLeaderOrFollower))
    topics = [
        Fields(name=asked.name, partitions=tuple(islice(found, len(asked.partition_indexes))))
        async for asked in slices.of(request.topics)
    ]
    return Fields(throttle_time=NO_TIME, topics=tuple(topics))


async def _producers(call: Call, place: tuple[str, int]) -> Any:
    name, index = place
    topic = await call.context.catalog.find(call.org, name)
    if topic is None or not 0 <= index < topic.partition_count:
        raise UnknownTopicOrPartition
    found = tuple(
        Fields(
            producer_id=producer_id,
            producer_epoch=state.epoch,
            last_sequence=state.batches[-1].last_sequence if state.batches else -1,
            last_timestamp=state.last_timestamp,
            coordinator_epoch=state.coordinator_epoch,
            current_txn_start_offset=state.transaction_start,
        )
        for producer_id, state in (await call.context.logs.partition(topic, index).read_producers()).items()
    )
    return Fields(partition_index=index, error_code=ErrorCode.none, error_message=None, active_producers=found)


def _without_producers(place: tuple[str, int], error: KafkaError) -> Any:
    _, index = place
    return Fields(partition_index=index, error_code=code_of(error), error_message=error.message, active_producers=())


@api(ApiKey.WRITE_TXN_MARKERS, first=1, last=2, error=error_responses.write_txn_markers)
async def write_txn_markers(call: Call, request: WriteTxnMarkersRequest) -> Any:
    """End a producer's transaction in partitions, as an administrator: for one that no coordinator ends any more.

    The transactions are those that are open before the first marker: a producer may begin others meanwhile.
    """
    topics = [(marker, asked) for marker in request.markers for asked in marker.topics]
    named = await topics_of(call, {asked.name: None for _, asked in topics})

    def places() -> Iterator[tuple[WritableTxnMarker, NamedTopic, int]]:
        return ((marker, named[asked.name], index) for marker, asked in topics for index in asked.partition_indexes)

    opened = await each(places(), partial(_open_transaction, call), _AT_ONCE)
    marked = iter([
        Fields(partition_index=index, error_code=await _mark(call, marker, topic, index, found))
        async for (marker, topic, index), found in in_slices(zip(places(), opened, strict=True))
    ])  # fmt: skip
    answered = iter([
        Fields(name=asked.name, partitions=tuple(islice(marked, len(asked.partition_indexes))))
        async for _, asked in in_slices(topics)
    ])  # fmt: skip
    markers = [
        Fields(producer_id=marker.producer_id, topics=tuple(islice(answered, len(marker.topics))))
        async for marker in in_slices(request.markers)
    ]
    return Fields(markers=tuple(markers))


async def _open_transaction(
    call: Call, place: tuple[WritableTxnMarker, NamedTopic, int]
) -> KnownTransaction | KafkaError:
    asked, topic, index = place
    try:
        state = await _producer(call, asked, as_now(call, topic), index)
    except KafkaError as error:
        return error
    return _NONE_OPEN if state is None else KnownTransaction(state.transaction_start, state.ended_ms)


async def _producer(call: Call, asked: WritableTxnMarker, topic: Topic, index: int) -> ProducerState | None:
    if not 0 <= index < topic.partition_count:
        raise UnknownTopicOrPartition
    return (await call.context.logs.partition(topic, index).read_producers()).get(asked.producer_id)


async def _mark(
    call: Call, asked: WritableTxnMarker, named: NamedTopic, index: int, ended: KnownTransaction | KafkaError
) -> ErrorCode:
    try:
        call.refuse_if_gone()
        if isinstance(ended, KafkaError):
            raise ended.with_traceback(None)
        topic = as_now(call, named)
        state = await _producer(call, asked, topic, index)
        if state is not None:
            if asked.coordinator_epoch < state.coordinator_epoch:
                raise TransactionCoordinatorFenced
            must_bump = asked.transaction_version >= 2 and state.transaction_start >= 0
            if must_bump and asked.producer_epoch <= state.epoch:
                raise InvalidProducerEpoch("the marker of a transaction has a raised epoch")
        kind = MarkerType.COMMIT if asked.transaction_result else MarkerType.ABORT
        marker = Marker(asked.producer_id, asked.producer_epoch, kind, -1, asked.coordinator_epoch)
        await append_marker(call.context.logs, topic, index, marker, ended)
    except KafkaError as error:
        return code_of(error)
    return ErrorCode.none
