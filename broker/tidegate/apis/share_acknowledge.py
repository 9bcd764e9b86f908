"""ShareAcknowledge: acknowledgements without a fetch (KIP-932)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import inline_api
from tidegate.apis.share_sessions import (
    Acknowledged,
    acknowledge,
    follow_connection,
    lock_duration,
    member_of,
    named,
)
from tidegate.apis.slices import SLICE
from tidegate.groups.share.errors import InvalidShareSessionEpoch
from tidegate.groups.share.sessions import FINAL_EPOCH, FIRST_EPOCH, ShareSession
from tidegate.log.offload import ENCODED
from tidegate.protocol import codec, error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME
from tidegate.protocol.versions import Fields

if TYPE_CHECKING:
    from kio.schema.share_acknowledge.v2.request import ShareAcknowledgeRequest

logger = structlog.get_logger()


@inline_api(
    ApiKey.SHARE_ACKNOWLEDGE, first=1, last=2, away=ErrorCode.kafka_storage_error, error=error_responses.share_records
)
def share_acknowledge(call: Call, request: ShareAcknowledgeRequest) -> None:
    """Acknowledge records, and end the session with epoch -1. v2: renew locks (KIP-1222)."""
    (keys, member_id), epoch = member_of(call, request), request.share_session_epoch
    sessions = call.context.shares.sessions
    if epoch == FIRST_EPOCH:
        raise InvalidShareSessionEpoch("only ShareFetch opens a share session")
    if epoch == FINAL_EPOCH:
        session = sessions.close(keys, member_id)
    else:
        session = sessions.proceed(keys, member_id, epoch, call.client.connection_id)
        follow_connection(call)
    call.answer_later(_acknowledge(call, request, session), request)


async def _acknowledge(call: Call, request: ShareAcknowledgeRequest, session: ShareSession) -> None:
    results = await acknowledge(call, session, named(request), request.is_renew_ack)
    if request.share_session_epoch == FINAL_EPOCH:
        await call.context.shares.close_session(session)
    lock_ms = lock_duration(session)
    if len(results) > SLICE:
        call.reply(await ENCODED.run(_encoded, call.version, results, lock_ms))
    else:
        call.reply(_encoded(call.version, results, lock_ms))


def _encoded(version: int, results: Acknowledged, lock_ms: int) -> bytes:
    return codec.encode(ApiKey.SHARE_ACKNOWLEDGE, version, _response(results, lock_ms))


def _response(results: Acknowledged, lock_ms: int) -> Any:
    topics: dict[Any, list[Any]] = {}
    for partition, error in results.items():
        topics.setdefault(partition.topic_id, []).append(
            Fields(
                partition_index=partition.index,
                error_code=ErrorCode.none if error is None else error.code,
                error_message=None if error is None else error.message,
                current_leader=Fields(leader_id=-1, leader_epoch=-1),
            )
        )
    return Fields(
        throttle_time=NO_TIME,
        error_code=ErrorCode.none,
        error_message=None,
        acquisition_lock_timeout=timedelta(milliseconds=lock_ms),
        responses=tuple(Fields(topic_id=topic_id, partitions=tuple(found)) for topic_id, found in topics.items()),
        node_endpoints=(),
    )
