"""Error codes that only share groups use (KIP-932)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tidegate.errors import KafkaError


class InvalidRecordState(KafkaError):
    """A record is not acquired by the member, or its acquisition lock has expired (KIP-932)."""

    code = ErrorCode.invalid_record_state


class ShareSessionNotFound(KafkaError):
    """This broker has no such share session; the client opens a new one (KIP-932)."""

    code = ErrorCode.share_session_not_found


class InvalidShareSessionEpoch(KafkaError):
    """The share session epoch is not the next one (KIP-932)."""

    code = ErrorCode.invalid_share_session_epoch


class ShareSessionLimitReached(KafkaError):
    """This broker, or this connection, has as many share sessions as it may have (KIP-932)."""

    code = ErrorCode.share_session_limit_reached


class UnsupportedForMessageFormat(KafkaError):
    """The format of the topic's log does not support the request."""

    code = ErrorCode.unsupported_for_message_format
