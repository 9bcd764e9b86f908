"""Write throttle_time_ms into an encoded response body: bodies are encoded without, because few are throttled."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tidegate.protocol import codec
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import is_old

_INT32: Final = struct.Struct(">i")
_MS_MAX: Final = 2**31 - 1
_FIRST_VERSIONS: Final = {ApiKey.PRODUCE: 1, ApiKey.FETCH: 1}
"""First version that has the field, where versions are served that the codec does not have."""
_LAST: Final = {
    ApiKey.PRODUCE: 9,
    ApiKey.CREATE_DELEGATION_TOKEN: 2,
    ApiKey.RENEW_DELEGATION_TOKEN: 2,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 2,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 2,
}
"""APIs whose last field it is -> the first flexible version, which ends with a byte for tags."""
_API_BYTES: Final = 6
_API_BYTES_FLEXIBLE: Final = 7
_API_VERSIONS_FLEXIBLE: Final = 3

Body = bytes | bytearray | memoryview


def with_throttle_time(api_key: int, version: int, body: Body | Sequence[Body], throttle_ms: int) -> list[Body]:
    """The body with its throttle time; unchanged if this version has none."""
    buffers = [body] if isinstance(body, Body) else list(body)
    if not _has_field(api_key, version):
        return buffers
    index, position = _position(api_key, version, buffers)
    changed = bytearray(buffers[index])
    _INT32.pack_into(changed, position, min(throttle_ms, _MS_MAX))
    buffers[index] = changed
    return buffers


def _has_field(api_key: int, version: int) -> bool:
    if is_old(api_key, version):
        return version >= _FIRST_VERSIONS.get(api_key, version + 1)
    return "throttle_time" in codec.response_class(api_key, version).__dataclass_fields__


def _position(api_key: int, version: int, buffers: Sequence[Body]) -> tuple[int, int]:
    """Which buffer has the field, and where: it is the first field but for these."""
    if api_key in _LAST:  # nothing is tagged
        end = len(buffers[-1]) - (1 if version >= _LAST[ApiKey(api_key)] else 0)
        return len(buffers) - 1, end - _INT32.size
    if api_key == ApiKey.API_VERSIONS:  # behind the list of APIs
        return 0, _behind_apis(version, buffers[0])
    return 0, 2 if api_key == ApiKey.OFFSET_DELETE else 0


def _behind_apis(version: int, body: Body) -> int:
    at = 2
    if version < _API_VERSIONS_FLEXIBLE:
        return at + _INT32.size + int(_INT32.unpack_from(body, at)[0]) * _API_BYTES
    count = shift = 0
    while True:
        count |= (body[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if body[at - 1] < 0x80:
            return at + (count - 1) * _API_BYTES_FLEXIBLE
