"""The ready topics of every organisation, as a broker caches them, with their effective configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from tidegate.settings import Settings
from tidegate.topics import configs
from tidegate.topics.model import Record, Topic, TopicState

TOPICS_AT_ONCE: Final = 100
"""Topics whose configs are computed before the event loop runs other work: 0.1 ms each."""


class CachedTopics:
    """By organisation and name, and by organisation and id. A field names both: `org/name`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topics: dict[str, dict[str, Topic]] = {}
        self._by_id: dict[tuple[str, UUID], Topic] = {}

    def get(self, org: str, name: str) -> Topic | None:
        """A ready topic in the cache."""
        of_org = self._topics.get(org)
        return None if of_org is None else of_org.get(name)

    def by_id(self, org: str, topic_id: UUID) -> Topic | None:
        """A ready topic in the cache, by its id."""
        return self._by_id.get((org, topic_id))

    def topics(self, org: str) -> list[Topic]:
        """The ready topics of an organisation, in order of name; for any thread."""
        of_org = self._topics.get(org, {}).copy()
        return [of_org[name] for name in sorted(of_org)]

    def topic_count(self, org: str) -> int:
        """How many these are."""
        return len(self._topics.get(org, ()))

    def all_topics(self) -> list[Topic]:
        """The ready topics of every organisation."""
        return list(self._by_id.values())

    def add(self, field: str, record: Record, overrides: Mapping[str, str]) -> None:
        """Add or replace the topic of a record; one that is not ready is not added."""
        if record.state is not TopicState.READY:
            return
        org, name = field.split("/", 1)
        config = configs.effective(self._settings, overrides)
        self._put(
            Topic(org, name, record.topic_id, record.partitions, record.format, record.state.value, overrides, config)
        )

    def remove(self, field: str) -> Topic | None:
        """Remove and return a topic, if it is there."""
        org, name = field.split("/", 1)
        topic = self._topics.get(org, {}).pop(name, None)
        if topic is not None:
            del self._by_id[org, topic.topic_id]
        return topic

    def apply_defaults(self, topics: Iterable[Topic]) -> None:
        """Compute the configs of topics again, of those that are still in the cache as they are given."""
        for topic in topics:
            if self.by_id(topic.org, topic.topic_id) is topic:
                self._put(replace(topic, config=configs.effective(self._settings, topic.overrides)))

    def _put(self, topic: Topic) -> None:
        self._topics.setdefault(topic.org, {})[topic.name] = topic
        self._by_id[topic.org, topic.topic_id] = topic
