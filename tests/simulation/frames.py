"""Bytes that members write by hand: their frequent requests, and the blobs that they exchange through the broker."""

from __future__ import annotations

import struct
from typing import Final

_OFFSET_COMMIT: Final = 8
_API_VERSIONS: Final = 18
_ASSIGNMENT: Final = struct.Struct(">hih")


def commit_frame(
    client_id: str,
    group_id: str,
    generation: int,
    member_id: str,
    instance_id: str | None,
    topic: str,
    entries: list[tuple[int, int]],
) -> bytes:
    """OffsetCommit v7 without its correlation id; `entries` are partition and offset."""
    parts = [struct.pack(">hhi", _OFFSET_COMMIT, 7, 0), text_field(client_id), text_field(group_id)]
    parts += [struct.pack(">i", generation), text_field(member_id), text_field(instance_id)]
    parts += [struct.pack(">i", 1), text_field(topic), struct.pack(">i", len(entries))]
    parts += [struct.pack(">iqih", index, offset, -1, 0) for index, offset in entries]
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


def versions_frame(client_id: str, software: str) -> bytes:
    """ApiVersions v3 without its correlation id: the client's software (KIP-511)."""
    body = struct.pack(">hhi", _API_VERSIONS, 3, 0) + text_field(client_id) + b"\0"
    for text in (software, "4.1.0"):
        body += bytes([len(text) + 1]) + text.encode()
    return struct.pack(">i", len(body) + 1) + body + b"\0"


def text_field(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else struct.pack(">h", len(text)) + text.encode()


def pack_assignment(topic: str, partitions: tuple[int, ...]) -> bytes:
    """ConsumerProtocolAssignment v0 of one topic."""
    name = topic.encode()
    body = struct.pack(f">hih{len(name)}si{len(partitions)}i", 0, 1, len(name), name, len(partitions), *partitions)
    return body + struct.pack(">i", -1)


def unpack_assignment(blob: bytes) -> tuple[int, ...]:
    """The partitions of an assignment; none where the leader left the member out."""
    if not blob:
        return ()
    _, _, size = _ASSIGNMENT.unpack_from(blob)
    (count,) = struct.unpack_from(">i", blob, _ASSIGNMENT.size + size)
    return struct.unpack_from(f">{count}i", blob, _ASSIGNMENT.size + size + 4)
