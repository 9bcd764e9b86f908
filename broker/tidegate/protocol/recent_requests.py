"""Requests whose bytes are often the same, decoded once: the Fetch requests of clients that read the same records.

A body has neither correlation id nor client id, so all readers at one offset of one partition send the same bytes.
Decoded requests are immutable: all of these clients may share one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.primitives import Buffer

OFTEN_EQUAL: Final = frozenset({ApiKey.FETCH})
"""APIs whose requests are often equal to those of other clients."""
BODY_BYTES_MAX: Final = 512
"""Longer bodies are decoded each time: a few partitions have space."""
REQUESTS_MAX: Final = 128
"""Requests of one version; when they are that many, all are dropped. At most about 1 MB."""

Decoder = Callable[[Buffer, int, int], Any]
"""(bytes, start of the body, end of the frame) -> request. Raises DecodeError."""


def remembering(decode: Decoder) -> Decoder:
    """The same decoder, which returns the same request for the same bytes."""
    recent: dict[bytes, Any] = {}

    def decode_once(data: Buffer, start: int, end: int) -> Any:
        if end - start > BODY_BYTES_MAX:
            return decode(data, start, end)
        body = bytes(data[start:end])
        request = recent.get(body)
        if request is None:
            if len(recent) >= REQUESTS_MAX:
                recent.clear()
            request = recent[body] = decode(body, 0, len(body))
        return request

    return decode_once
