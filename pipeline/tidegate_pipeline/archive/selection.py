"""Which topics and partitions a verb is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.redis_access import Client
from tidegate_pipeline.topics import Condition, Topic, read_topics

COPIED: Final = (Condition("remote.storage.enable", "true"), Condition("remote.log.copy.disable", "true", wanted=False))
"""The topic configs (KIP-405, KIP-950) of topics that are archived unless others are named."""


def chosen(topics: Mapping[str, Topic], wanted: Sequence[str]) -> list[Topic]:
    """The topics that names and patterns (`orders-*`) mean; all where there are none. Raises UsageError."""
    found = {name: topic for name, topic in topics.items() if not wanted}
    for pattern in wanted:
        matching = {name: topic for name, topic in topics.items() if fnmatchcase(name, pattern)}
        if not matching:
            raise UsageError(f"no topic {pattern}")
        found |= matching
    return [found[name] for name in sorted(found)]


def places(topics: Iterable[Topic]) -> list[Place]:
    """Every partition of these topics."""
    return [
        Place(topic.org, topic.name, topic.topic_id, partition)
        for topic in topics
        for partition in range(topic.partition_count)
    ]


def highest_fence(client: Client, prefix: str, org: str) -> int:
    """The number of the archive query that started last, wherever it left one; 0 where none did."""
    with client.pipeline(transaction=False) as pipe:
        for place in places(read_topics(client, prefix, org).values()):
            pipe.hget(place.keys(prefix).archive, "fence")
        return max((int(fence) for fence in pipe.execute() if fence), default=0)
