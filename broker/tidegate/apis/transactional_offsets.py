"""AddOffsetsToTxn and TxnOffsetCommit: consumed offsets that are committed with a producer's transaction (KIP-447)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse
from kio.schema.errors import ErrorCode

from tidegate.apis import group_creation
from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.apis.slices import PARTITIONS, Slices
from tidegate.apis.transactional_produce import not_in_transaction
from tidegate.apis.transactions import FENCED_FROM, as_of, code_of, keys_of
from tidegate.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidGroupId,
    InvalidProducerEpoch,
    KafkaError,
    OffsetMetadataTooLarge,
)
from tidegate.groups import staged_offsets
from tidegate.groups.commits import Commit
from tidegate.groups.consumer.errors import StaleMemberEpoch
from tidegate.groups.offsets import entry_json, offset_field
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.versions import Fields
from tidegate.topics.model import Topic
from tidegate.transactions.errors import ConcurrentTransactions, ProducerFenced
from tidegate.transactions.model import State, Transaction

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest

_ABORTABLE_FROM: Final = 4
_ADDS_FROM: Final = 5
"""From this version on TxnOffsetCommit adds the group to the transaction by itself (KIP-890)."""
_IDS_FROM: Final = 6
_STAGE_TRIES: Final = 3


@api(ApiKey.ADD_OFFSETS_TO_TXN, first=0, last=4, error=at_top())
async def add_offsets_to_txn(call: Call, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """Add a group to a producer's transaction. v2: fencing."""
    keys, group = keys_of(call, request.transactional_id), call.store.group_keys(call.org, request.group_id)
    try:
        producer = request.producer_id, request.producer_epoch
        await call.context.transactions.add(call, keys, *producer, groups=(group.group_id,))
    except ProducerFenced as error:
        raise as_of(error, call.version >= FENCED_FROM) from None
    return AddOffsetsToTxnResponse(throttle_time=NO_TIME, error_code=ErrorCode.none)


@api(ApiKey.TXN_OFFSET_COMMIT, first=0, last=6, error=error_responses.txn_offset_commit)
async def txn_offset_commit(call: Call, request: Any) -> Any:
    """Stage offsets in a transaction. v3: the member's generation is checked (KIP-447), or its member epoch (KIP-848).

    v5: adds the group itself. v6: topics by id, and errors of members and groups by their own codes (KIP-1319).
    """
    by_id = call.version >= _IDS_FROM
    codes: dict[tuple[Any, int], ErrorCode] = {}
    entries, slices = list[str](), Slices()
    lease_ends_ms = call.context.broker_lease.ends_ms
    await call.context.catalog.refresh()  # an offset of a topic that was deleted, and possibly recreated, would be lost
    async for asked in slices.of(request.topics):
        label = asked.topic_id if by_id else asked.name
        topic = await _topic_of(call, label)
        absent = ErrorCode.unknown_topic_id if by_id and topic is None else ErrorCode.unknown_topic_or_partition
        async for one in slices.of(asked.partitions):
            place, metadata = (label, one.partition_index), one.committed_metadata or ""
            if topic is None or not 0 <= one.partition_index < topic.partition_count:
                codes[place] = absent
            elif metadata and not call.context.offsets.takes_metadata(metadata):
                codes[place] = OffsetMetadataTooLarge.code
            else:
                codes[place] = ErrorCode.none
                entries.append(offset_field(topic.name, one.partition_index))
                entries.append(entry_json(one.committed_offset, one.committed_leader_epoch, topic.topic_hex, metadata))
    code = ErrorCode.none
    try:
        await _stage(call, request, entries, lease_ends_ms)
    except ProducerFenced as error:
        code = InvalidProducerEpoch(error.message).code
    except (StaleMemberEpoch, GroupIdNotFound) as error:
        code = error.code if by_id else ErrorCode.illegal_generation
    except KafkaError as error:
        code = code_of(error)

    def result(asked: Any, index: int) -> ErrorCode:
        own = codes[asked.topic_id if by_id else asked.name, index]
        is_checked_last = own is OffsetMetadataTooLarge.code and code is not ErrorCode.none
        return code if own is ErrorCode.none or is_checked_last else own

    topics = []
    async for asked in slices.of(request.topics):
        partitions = [
            Fields(partition_index=one.partition_index, error_code=result(asked, one.partition_index))
            async for one in slices.of(asked.partitions)
        ]
        topics.append(Fields(name=asked.name, topic_id=asked.topic_id, partitions=tuple(partitions)))
    return Fields(throttle_time=NO_TIME, topics=tuple(topics))


async def _topic_of(call: Call, label: Any) -> Topic | None:
    """The topic of a name, or of an id (None is the zero id)."""
    if isinstance(label, str):
        return await call.context.catalog.find(call.org, label)
    return None if label is None else await call.context.catalog.find_by_id(call.org, label)


async def _stage(call: Call, request: Any, entries: list[str], lease_ends_ms: int) -> None:
    """Confirm the transaction, then stage: by another order a late request would stage behind its transaction's end."""
    if not request.group_id:
        raise InvalidGroupId
    coordinator, keys = call.context.transactions, keys_of(call, request.transactional_id)
    group_keys = call.store.group_keys(call.org, request.group_id)
    group_id, producer_id, epoch = request.group_id, request.producer_id, request.producer_epoch
    for attempt in range(1, _STAGE_TRIES + 1):
        if call.version >= _ADDS_FROM:
            one = await coordinator.add_with(keys, producer_id, epoch, groups=(group_id,))
        else:
            one = await coordinator.find(keys, producer_id, epoch)
            if one.state is not State.ONGOING or group_id not in one.groups:
                raise not_in_transaction(call.version >= _ABORTABLE_FROM)
            # the producer's next transaction has the same epoch
            coordinator.records.refuse_late(keys, call, one.start_ms, at_any_age=attempt > 1)
        if not entries:
            return
        if request.generation_id < 0:
            await group_creation.admit(call, group_keys)
        try:
            async with call.context.logs.durability.confirmed(call.store.node(group_keys.group)):
                await _stage_in_parts(call, request, entries, one, lease_ends_ms)
        except ConcurrentTransactions:  # the transaction ended in between: ask again
            if attempt == _STAGE_TRIES:
                raise
        else:
            return


async def _stage_in_parts(call: Call, request: Any, entries: list[str], one: Transaction, lease_ends_ms: int) -> None:
    """Stage the entries; the first part that is refused ends it, and the request's partitions have that error.

    What was staged before is not withdrawn: the client sends the request again, or aborts, after any error.
    """
    keys = call.store.group_keys(call.org, request.group_id)
    for first in range(0, len(entries), 2 * PARTITIONS):
        if call.client.closed:
            raise CoordinatorNotAvailable("the client has left")  # it may stage newer ones elsewhere by now
        part = entries[first : first + 2 * PARTITIONS]
        who = request.generation_id, request.member_id, request.group_instance_id
        commit = Commit(*who, part, arrived_s=call.arrived_s)
        await staged_offsets.stage(call.store, keys, commit, one.producer_id, one.ended_ms, lambda: lease_ends_ms)
