"""The API versions that the codec supports, and an object that overlays the fields of a response."""

from __future__ import annotations

from typing import Any, Final

VERSIONS: Final[dict[int, tuple[int, int]]] = {
    0: (3, 13),  # Produce
    1: (4, 18),  # Fetch
    2: (1, 10),  # ListOffsets
    3: (0, 13),  # Metadata
    8: (2, 10),  # OffsetCommit
    9: (1, 10),  # OffsetFetch
    10: (0, 6),  # FindCoordinator
    11: (0, 9),  # JoinGroup
    12: (0, 4),  # Heartbeat
    13: (0, 5),  # LeaveGroup
    14: (0, 5),  # SyncGroup
    15: (0, 6),  # DescribeGroups
    16: (0, 5),  # ListGroups
    18: (0, 4),  # ApiVersions
    19: (2, 7),  # CreateTopics
    20: (1, 6),  # DeleteTopics
    22: (0, 5),  # InitProducerId
    23: (2, 4),  # OffsetForLeaderEpoch
    32: (1, 4),  # DescribeConfigs
    33: (0, 2),  # AlterConfigs
    37: (0, 3),  # CreatePartitions
    42: (0, 2),  # DeleteGroups
    44: (0, 1),  # IncrementalAlterConfigs
    47: (0, 0),  # OffsetDelete
    60: (0, 2),  # DescribeCluster
}
"""API key -> supported versions, both inclusive: the versions common to Kafka 4.1 and kio, plus v10 of the offset
APIs."""


class Fields:
    """An object with the given attributes on top of another object's: `Fields(response, topics=())`."""

    def __init__(self, base: Any = None, /, **values: Any) -> None:
        self.__dict__.update(values)
        self.__dict__["_base"] = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_base"], name)

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.__dict__.items() if name != "_base"}
        return f"Fields({self.__dict__['_base']!r}, {shown!r})"
