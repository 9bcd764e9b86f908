"""Strings above 32,767 bytes are refused in every version, as Kafka refuses them; the connection is closed."""

from __future__ import annotations

import pytest

from tests.kit.wire import encode_request, request
from tidegate.protocol.codec import decode
from tidegate.protocol.primitives import STRING_BYTES_MAX, DecodeError

HEARTBEAT, FIND_COORDINATOR, DELETE_GROUPS = 12, 10, 42
_HEADER = 4 + 8 + 2 + len("raw") + 1


def _body(api_key: int, version: int, text: str) -> bytes:
    fields = {
        HEARTBEAT: {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": text},
        FIND_COORDINATOR: {"key_type": 0, "coordinator_keys": [text]},
        DELETE_GROUPS: {"groups_names": [text]},
    }
    return encode_request(request(api_key, version, **fields[api_key]), 1)[_HEADER:]


@pytest.mark.parametrize(("api_key", "version"), [(HEARTBEAT, 4), (FIND_COORDINATOR, 4), (DELETE_GROUPS, 2)])
@pytest.mark.parametrize("character", ["x", "ä"])
def test_decode_string_length_is_bounded(api_key: int, version: int, character: str) -> None:
    longest = character * (STRING_BYTES_MAX // len(character.encode()))
    assert decode(api_key, version, _body(api_key, version, longest))
    with pytest.raises(DecodeError, match=r"a string of \d+ bytes"):
        decode(api_key, version, _body(api_key, version, longest + character))
