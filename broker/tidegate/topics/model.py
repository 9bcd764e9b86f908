"""What a topic is, and where it is on its way from made to gone."""

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
    """Only `READY` topics are shown to clients.

    CREATING  its name and id are taken; its partitions are being made   -> READY
    READY     served; it may be growing (`wanted` above `partitions`)    -> DELETING
    DELETING  its partitions and committed offsets are being removed     -> gone

    Each step may be repeated, so any broker that finds a topic under way finishes it.
    """

    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as clients of this broker see it now."""

    org: str
    name: str
    topic_id: UUID
    partition_count: int
    format: str
    state: str
    overrides: Mapping[str, str]
    config: TopicConfig
    topic_hex: str = field(init=False)
    """The id as key names have it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "topic_hex", self.topic_id.hex)


@dataclass(frozen=True, slots=True)
class Record:
    """A topic's line in the catalogue. `wanted` is where a growing topic will end; `config` counts changes of it."""

    topic_id: UUID
    partitions: int
    wanted: int
    format: str
    state: TopicState
    config: int

    @classmethod
    def parse(cls, text: bytes) -> Self:
        """Read what the scripts write (`redis_scripts/lib/topic.lua`)."""
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
        """Whether there are steps left for somebody to do."""
        return self.state is not TopicState.READY or self.wanted > self.partitions
