"""The topic and the states of its life cycle."""

from __future__ import annotations

import enum
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from tidegate.topics.configs import TopicConfig


class TopicState(enum.StrEnum):
    """Only `READY` topics are visible to clients.

    CREATING  its name and id are reserved; its partitions are being created  -> READY
    READY     served; it may be growing (`wanted` above `partitions`)         -> DELETING
    DELETING  its partitions and committed offsets are being deleted          -> removed

    Each step is idempotent, so any broker can complete an unfinished topic.
    """

    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Topic:
    """A ready topic in this broker's cache."""

    org: str
    name: str
    topic_id: UUID
    partition_count: int
    format: str
    state: str
    overrides: Mapping[str, str]
    config: TopicConfig
    topic_hex: str = field(init=False)
    """The id as it is written in key names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic_hex", self.topic_id.hex)


@dataclass(frozen=True, slots=True)
class Record:
    """A topic's record in the catalog. `wanted` is the target count of partitions; `config` counts config changes."""

    topic_id: UUID
    partitions: int
    wanted: int
    format: str
    state: TopicState
    config: int

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Parse what the scripts write (`redis_scripts/lib/topic.lua`)."""
        values = json.loads(text)
        return cls(
            uuid.UUID(hex=values["id"]),
            values["partitions"],
            values["wanted"],
            values["format"],
            TopicState(values["state"]),
            values["config"],
        )

    @property
    def under_way(self) -> bool:
        """Whether steps remain."""
        return self.state is not TopicState.READY or self.wanted > self.partitions
