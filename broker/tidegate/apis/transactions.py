"""InitProducerId for idempotent producers. Transactional ids are refused: there are no transactions."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v6.request import InitProducerIdRequest
from kio.schema.init_producer_id.v6.response import InitProducerIdResponse
from kio.schema.types import ProducerId
from kio.static.primitive import i16, i32Timedelta

from tidegate.apis.call import Call
from tidegate.apis.registry import ApiKey, api
from tidegate.errors import InvalidRequest, InvalidTransactionTimeout, KafkaError, UnsupportedVersion

_NOT_THROTTLED: Final = i32Timedelta.parse(timedelta(0))
_MILLISECOND: Final = timedelta(milliseconds=1)
_TIMEOUT_MAX_MS: Final = 900_000
"""Kafka's default of `transaction.max.timeout.ms`."""


@api(ApiKey.INIT_PRODUCER_ID, first=0, last=5)
async def init_producer_id(call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Give an idempotent producer a new id with epoch 0 (KIP-98), whatever id and epoch it sends."""
    if request.transactional_id is not None:
        raise _refusal(request)
    producer_id = await call.context.producer_ids.take()
    return InitProducerIdResponse(
        throttle_time=_NOT_THROTTLED,
        error_code=ErrorCode.none,
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(0),
    )


def _refusal(request: InitProducerIdRequest) -> KafkaError:
    """The error for a transactional producer. Clients fail fatally, with this code's text."""
    if not request.transactional_id:
        return InvalidRequest("an empty transactional id")
    timeout_ms = request.transaction_timeout // _MILLISECOND
    if not 0 < timeout_ms <= _TIMEOUT_MAX_MS:
        return InvalidTransactionTimeout()
    return UnsupportedVersion("transactions are not served")
