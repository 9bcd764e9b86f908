"""Encodes a Metadata response, v0-13, in chunks: large topics are encoded some hundred partitions at a time.

Everything but partitions is encoded by the schema's encoder with an empty array, and split at that array.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pkgutil import resolve_name
from struct import Struct
from typing import Any, Final

from kio.serial import entity_writer

from tidegate.protocol.primitives import length

_FLEXIBLE_FROM: Final = 9
_TOPIC_OPERATIONS_FROM: Final = 8
_CLUSTER_OPERATIONS: Final = range(8, 11)
_ERROR_CODE_FROM: Final = 13
_OFFLINE_FROM: Final = 5
_LEADER_EPOCH_FROM: Final = 7
_ONE: Final = 2
"""The length of an array with one element in flexible versions."""

_V0: Final = Struct(">hiiiiii").pack
_V5: Final = Struct(">hiiiiiii").pack
_V7: Final = Struct(">hiiiiiiii").pack
_V9: Final = Struct(">hiiiBiBiBB").pack


class TopicWriter:
    """Encodes the chunks of one response. A partition has one replica, its leader, in sync; none is offline."""

    __slots__ = ("_flexible", "_version", "_write")

    def __init__(self, version: int) -> None:
        self._version = version
        self._flexible = version >= _FLEXIBLE_FROM
        self._write = entity_writer(resolve_name(f"kio.schema.metadata.v{version}.response:MetadataResponseTopic"))

    def topic(self, topic: Any) -> bytes:
        """A whole topic, from any object with the newest version's fields."""
        buffer = io.BytesIO()
        self._write(buffer, topic)
        return buffer.getvalue()

    def around_partitions(self, topic: Any, partition_count: int) -> tuple[bytes, bytes]:
        """The bytes before and after the partitions of a topic that has an empty partition array."""
        after = (4 if self._version >= _TOPIC_OPERATIONS_FROM else 0) + self._flexible
        return self._around(self.topic(topic), after, partition_count)

    def around_topics(self, body: bytes, topic_count: int) -> tuple[bytes, bytes]:
        """The bytes before and after the topics of a response that has an empty topic array."""
        after = 4 if self._version in _CLUSTER_OPERATIONS else 0
        after += (2 if self._version >= _ERROR_CODE_FROM else 0) + self._flexible
        return self._around(body, after, topic_count)

    def _around(self, written: bytes, after: int, count: int) -> tuple[bytes, bytes]:
        end = len(written) - after
        start = end - (1 if self._flexible else 4)
        assert written[start:end] == length(0, self._flexible), "an empty array is where the parts belong"
        return written[:start] + length(count, self._flexible), written[end:]

    def partitions(self, first: int, leaders: Sequence[int], epoch: int) -> bytes:
        """Partitions from `first` on, each with its leader."""
        version = self._version
        numbered = enumerate(leaders, first)
        if self._flexible:
            return b"".join([_V9(0, i, one, epoch, _ONE, one, _ONE, one, 1, 0) for i, one in numbered])
        if version >= _LEADER_EPOCH_FROM:
            return b"".join([_V7(0, i, one, epoch, 1, one, 1, one, 0) for i, one in numbered])
        if version >= _OFFLINE_FROM:
            return b"".join([_V5(0, i, one, 1, one, 1, one, 0) for i, one in numbered])
        return b"".join([_V0(0, i, one, 1, one, 1, one) for i, one in numbered])
