"""SaslHandshake and SaslAuthenticate: a client proves who it is (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import api
from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.error_shapes import NO_TIME, at_top
from tidegate.protocol.versions import Fields
from tidegate.security.errors import IllegalSaslState, SaslAuthenticationFailed

if TYPE_CHECKING:
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

REFUSAL_DELAY_S: Final = 0.1
"""Kafka's connection.failed.authentication.delay.ms: it slows down guessing."""


@api(ApiKey.SASL_HANDSHAKE, first=1, last=1, safe_late=True, error=at_top(mechanisms=()))
async def sasl_handshake(call: Call, request: SaslHandshakeRequest) -> Any:
    """Choose a mechanism. v0 is not served: its tokens follow without Kafka's framing."""
    session = call.client.sasl
    if session is None:
        return Fields(error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    code = ErrorCode.none
    try:
        session.handshake(request.mechanism)
    except KafkaError as error:
        code = error.code
    return Fields(error_code=code, mechanisms=tuple(session.offered))


@api(ApiKey.SASL_AUTHENTICATE, first=0, last=2, safe_late=True, error=at_top(auth_bytes=b"", session_lifetime=NO_TIME))
async def sasl_authenticate(call: Call, request: SaslAuthenticateRequest) -> Any:
    """One message of the mechanism. v1: the session's lifetime (KIP-368). A refusal closes the connection."""
    try:
        if call.client.sasl is None:
            raise IllegalSaslState("this listener has no SASL")
        answer, lifetime_ms = await call.client.sasl.authenticate(bytes(request.auth_bytes))
    except StoreUnavailable:
        # Clients take every error code here for wrong credentials and give up; a closed connection they retry.
        call.close("authentication failed: Redis is not available")
        raise
    except KafkaError as error:
        if isinstance(error, SaslAuthenticationFailed):
            await asyncio.sleep(REFUSAL_DELAY_S)
        return Fields(
            error_code=error.code, error_message=error.message, auth_bytes=b"", session_lifetime=datetime.timedelta(0)
        )
    return Fields(
        error_code=ErrorCode.none,
        error_message=None,
        auth_bytes=answer,
        session_lifetime=datetime.timedelta(milliseconds=lifetime_ms),
    )
