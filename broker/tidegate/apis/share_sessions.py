"""What ShareFetch and ShareAcknowledge have in common: their checks, the session, the acknowledgements (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.slices import in_slices
from tidegate.apis.topic_rights import may
from tidegate.errors import (
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    StoreUnavailable,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    from_code,
)
from tidegate.groups.configs import SHARE_RECORD_LOCK_DURATION_MS
from tidegate.groups.share.acknowledgements import Acknowledgement, RequestedBatch, checked
from tidegate.groups.share.sessions import SharePartition, ShareSession
from tidegate.security.acls import Operation
from tidegate.store.keys import GroupKeys
from tidegate.topics.model import Topic

if TYPE_CHECKING:
    from kio.schema.share_acknowledge.v2.request import ShareAcknowledgeRequest
    from kio.schema.share_fetch.v2.request import ShareFetchRequest

RENEWS_FROM: Final = 2
"""Version from which on locks can be renewed (KIP-1222)."""

Acknowledged = dict[SharePartition, KafkaError | None]
"""The outcome of the acknowledgements of each share-partition."""


def member_of(call: Call, request: ShareFetchRequest | ShareAcknowledgeRequest) -> tuple[GroupKeys, str]:
    """The group and the member id of a request. Raises InvalidRequest if one is not named."""
    group_id, member_id = request.group_id or "", request.member_id or ""
    if not group_id.strip():
        raise InvalidRequest("the group id is blank")
    if not member_id.strip():
        raise InvalidRequest("the member id is blank")
    return call.store.group_keys(call.org, group_id), member_id


def follow_connection(call: Call) -> None:
    """End the share sessions of the call's connection when it is closed."""
    sessions, connection_id = call.context.shares.sessions, call.client.connection_id
    if not call.client.has_share_session:
        call.client.has_share_session = True
        call.client.when_closed(lambda: sessions.close_connection(connection_id))


def named(
    request: ShareFetchRequest | ShareAcknowledgeRequest,
) -> Iterator[tuple[SharePartition, Sequence[RequestedBatch]]]:
    """The partitions that a request names, with what it acknowledges of them."""
    return (
        (SharePartition(topic.topic_id, partition.partition_index), partition.acknowledgement_batches)
        for topic in request.topics
        if topic.topic_id is not None
        for partition in topic.partitions
    )


async def find_topic(call: Call, partition: SharePartition) -> Topic:
    """The topic of a partition that the client may read.

    Raises UnknownTopicId, UnknownTopicOrPartition, TopicAuthorizationFailed, StoreUnavailable.
    """
    topic = await call.context.catalog.find_by_id(call.org, partition.topic_id)
    if topic is None:
        raise UnknownTopicId
    if not may(call, Operation.READ, topic.name):
        raise TopicAuthorizationFailed
    if not 0 <= partition.index < topic.partition_count:
        raise UnknownTopicOrPartition
    return topic


async def acknowledge(
    call: Call, session: ShareSession, asked: Iterable[tuple[SharePartition, Sequence[RequestedBatch]]], renews: bool
) -> Acknowledged:
    """Apply acknowledgements, those of many partitions in slices.

    Returns the outcome of each share-partition, as durable as `durability` says.
    """
    results: Acknowledged = {}
    valid: list[tuple[SharePartition, str, Sequence[Acknowledgement]]] = []
    async for partition, batches in in_slices(asked):
        try:
            await find_topic(call, partition)
            acknowledgements = checked(batches, allows_renewal=renews and call.version >= RENEWS_FROM)
        except KafkaError as error:
            results[partition] = _storage_error(error)
        else:
            results[partition] = None
            found = session.partitions.get(partition)
            valid.append((partition, "" if found is None else found.epoch, acknowledgements))
    if valid:
        records = call.context.shares.records
        try:
            session.lock_ms, codes = await records.acknowledge_proved(session.keys, session.acquirer, valid)
        except StoreUnavailable as error:
            results |= {partition: _storage_error(error) for partition, _, _ in valid}
        else:
            async for (partition, _, _), code in in_slices(zip(valid, codes, strict=True)):
                results[partition] = None if code == ErrorCode.none.value else from_code(code)
    return results


def _storage_error(error: KafkaError) -> KafkaError:
    return KafkaStorageError(error.message) if isinstance(error, StoreUnavailable) else error


def lock_duration(session: ShareSession) -> int:
    """How long its group's locks last, ms, as far as the session knows."""
    return session.lock_ms or SHARE_RECORD_LOCK_DURATION_MS
