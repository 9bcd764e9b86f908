"""InitProducerId, AddPartitionsToTxn, EndTxn: producers' requests to the coordinator of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.end_txn.v5.response import EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16

from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.apis.slices import Slices
from tidegate.errors import (
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTransactionTimeout,
    KafkaError,
    StoreUnavailable,
    UnknownTopicOrPartition,
)
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.versions import Fields
from tidegate.store.keys import TransactionKeys
from tidegate.transactions.errors import OperationNotAttempted, ProducerFenced, TransactionAbortable
from tidegate.transactions.model import NO_EPOCH, NO_PRODUCER_ID, TIMEOUT_MAX_MS, State, TransactionPartition

if TYPE_CHECKING:
    from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction
    from kio.schema.end_txn.v5.request import EndTxnRequest
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

_MILLISECOND: Final = timedelta(milliseconds=1)
FENCED_FROM: Final = 2
"""From this version on EndTxn, AddPartitionsToTxn and AddOffsetsToTxn answer PRODUCER_FENCED."""
_INIT_FENCED_FROM: Final = 4
_BUMPS_FROM: Final = 5


def keys_of(call: Call, transactional_id: str) -> TransactionKeys:
    """The keys of a transactional id. Raises InvalidRequest for an empty one."""
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty")
    return call.context.transactions.records.keys(call.org, transactional_id)


def as_of(error: Exception, fenced: bool) -> Exception:
    """The error for a version: those before `fenced` know INVALID_PRODUCER_EPOCH only."""
    if isinstance(error, ProducerFenced) and not fenced:
        return InvalidProducerEpoch(error.message)
    return error


# -- InitProducerId


@api(ApiKey.INIT_PRODUCER_ID, first=0, last=5, error=at_top(producer_id=-1, producer_epoch=-1))
async def init_producer_id(call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """A producer's id and epoch (KIP-98). v3: its own id and epoch, to continue after an error (KIP-360). v4: fencing.

    Without a transactional id: a new id with epoch 0, whatever id and timeout the client sends. v6 would add two-phase
    commit (KIP-939), which is not served.
    """
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise InvalidRequest("producer id and epoch are given together or not at all")
    producer_id, epoch = (await call.context.producer_ids.take(), 0) if request.transactional_id is None else (-1, -1)
    if request.transactional_id is not None:
        try:
            producer_id, epoch = await _initialise(call, request)
        except ProducerFenced as error:
            raise as_of(error, call.version >= _INIT_FENCED_FROM) from None
    return InitProducerIdResponse(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(epoch),
    )


async def _initialise(call: Call, request: InitProducerIdRequest) -> tuple[int, int]:
    keys = keys_of(call, request.transactional_id or "")
    timeout_ms = request.transaction_timeout // _MILLISECOND
    if not 0 < timeout_ms <= TIMEOUT_MAX_MS:
        raise InvalidTransactionTimeout()
    producer_id, epoch = int(request.producer_id), int(request.producer_epoch)
    return await call.context.transactions.initialise(call, keys, timeout_ms, producer_id, epoch)


# -- AddPartitionsToTxn


@api(ApiKey.ADD_PARTITIONS_TO_TXN, first=0, last=5, error=error_responses.add_partitions_to_txn)
async def add_partitions_to_txn(call: Call, request: AddPartitionsToTxnRequest) -> Any:
    """Add partitions to a producer's transaction, all or none. v2: fencing. v4: several transactions (KIP-890)."""
    slices = Slices()
    results = [
        Fields(transactional_id=one.transactional_id, topic_results=await _add_partitions(call, one, slices))
        async for one in slices.of(request.transactions)
    ]
    return Fields(throttle_time=NO_TIME, error_code=ErrorCode.none, results_by_transaction=tuple(results))


async def _add_partitions(call: Call, transaction: AddPartitionsToTxnTransaction, slices: Slices) -> tuple[Any, ...]:
    """The result of each partition of one transaction."""
    topics: Sequence[Any] = transaction.topics
    producer_id, epoch = transaction.producer_id, transaction.producer_epoch
    refused: dict[tuple[str, int], ErrorCode] = {}
    partitions: dict[tuple[str, int], TransactionPartition] = {}
    code = ErrorCode.none
    outside: set[TransactionPartition] = set()
    try:
        async for asked in slices.of(topics):
            topic = await call.context.catalog.find(call.org, asked.name)
            async for index in slices.of(asked.partitions):
                if topic is None or not 0 <= index < topic.partition_count:
                    refused[asked.name, index] = UnknownTopicOrPartition.code
                else:
                    partitions[asked.name, index] = TransactionPartition(asked.name, index, topic.topic_hex)
        if not refused:
            keys, coordinator = keys_of(call, transaction.transactional_id), call.context.transactions
            if transaction.verify_only:
                one = await coordinator.find(keys, producer_id, epoch)
                outside = set(partitions.values()).difference(one.partitions if one.state is State.ONGOING else ())
            else:
                await coordinator.add(call, keys, producer_id, epoch, partitions.values())
    except KafkaError as error:
        code = code_of(as_of(error, call.version >= FENCED_FROM))

    def result(name: str, index: int) -> ErrorCode:
        if refused:
            return refused.get((name, index), OperationNotAttempted.code)
        return TransactionAbortable.code if partitions.get((name, index)) in outside else code

    answered = []
    async for asked in slices.of(topics):
        results = [
            Fields(partition_index=index, partition_error_code=result(asked.name, index))
            async for index in slices.of(asked.partitions)
        ]
        answered.append(Fields(name=asked.name, results_by_partition=tuple(results)))
    return tuple(answered)


def code_of(error: Exception) -> ErrorCode:
    """The code of a part of a request; retriable if the store is unavailable."""
    if isinstance(error, StoreUnavailable) or not isinstance(error, KafkaError):
        return ErrorCode.coordinator_not_available
    return error.code


# -- EndTxn


@api(ApiKey.END_TXN, first=0, last=5, error=at_top(producer_id=-1, producer_epoch=-1))
async def end_txn(call: Call, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort. v2: fencing. v5: the epoch is raised, and returned for the next transaction (KIP-890)."""
    bumps = call.version >= _BUMPS_FROM
    try:
        producer_id, epoch = await call.context.transactions.end(
            call,
            keys_of(call, request.transactional_id),
            request.producer_id,
            request.producer_epoch,
            is_commit=request.committed,
            bumps=bumps,
        )
    except ProducerFenced as error:
        raise as_of(error, call.version >= FENCED_FROM) from None
    return EndTxnResponse(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        producer_id=ProducerId(producer_id if bumps else NO_PRODUCER_ID),
        producer_epoch=i16(epoch if bumps else NO_EPOCH),
    )
