"""Error codes that only streams groups use (KIP-1071)."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tidegate.errors import KafkaError


class StreamsInvalidTopology(KafkaError):
    """The topology of the application contradicts itself (KIP-1071)."""

    code = ErrorCode.streams_invalid_topology
