"""Errors of quotas."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tidegate.errors import KafkaError


class ThrottlingQuotaExceeded(KafkaError):
    """The quota of controller mutations is used up (KIP-599)."""

    code = ErrorCode.throttling_quota_exceeded
