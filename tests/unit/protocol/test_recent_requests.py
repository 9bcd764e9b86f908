"""Equal requests of several clients are decoded once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.log_broker import fetch_request
from tidegate.protocol import codec
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.primitives import Buffer, DecodeError
from tidegate.protocol.recent_requests import BODY_BYTES_MAX, REQUESTS_MAX, remembering


class Decoding:
    """A decoder that counts its calls; a body of zeros is malformed."""

    def __init__(self) -> None:
        self.count = 0
        self.decode = remembering(self._decode)

    def _decode(self, data: Buffer, start: int, end: int) -> Any:
        self.count += 1
        body = bytes(data[start:end])
        if not any(body):
            raise DecodeError("zeros")
        return [body]


def test_remembering_same_bytes_returns_same_request():
    decoding = Decoding()
    first, other = decoding.decode(b"--body", 2, 6), decoding.decode(b"body", 0, 4)

    assert first is other and first == [b"body"] and decoding.count == 1


def test_remembering_other_bytes_are_decoded():
    decoding = Decoding()

    assert [decoding.decode(body, 0, 4) for body in (b"body", b"bodz", b"body")] == [[b"body"], [b"bodz"], [b"body"]]
    assert decoding.count == 2


def test_remembering_long_body_is_decoded_each_time():
    decoding, body = Decoding(), b"b" * (BODY_BYTES_MAX + 1)

    assert decoding.decode(body, 0, len(body)) is not decoding.decode(body, 0, len(body))


def test_remembering_malformed_body_raises_each_time():
    decoding = Decoding()
    for _ in range(2):
        with pytest.raises(DecodeError):
            decoding.decode(bytes(4), 0, 4)


def test_remembering_many_bodies_is_bounded():
    decoding = Decoding()
    bodies = [number.to_bytes(4, "big") for number in range(1, REQUESTS_MAX + 2)]
    for body in bodies:
        decoding.decode(body, 0, 4)
    decoding.decode(bodies[0], 0, 4)

    assert decoding.count == REQUESTS_MAX + 2


@pytest.mark.parametrize("version", [0, 4, 12, 18])
def test_fetch_equal_bodies_are_one_frozen_request(version: int):
    body = (
        codec.written(codec.request_class(ApiKey.FETCH, version), fetch_request([], version=version))
        if version >= 4
        else bytes(16)
    )
    requests = [codec.decode(ApiKey.FETCH, version, body) for _ in range(2)]

    assert requests[0] is requests[1]
    with pytest.raises((AttributeError, TypeError)):
        requests[0].min_bytes = 7
