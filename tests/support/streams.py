"""Topologies and topics of streams groups in tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tidegate.groups.streams.topology import InternalTopic, Subtopology, Topology


@dataclasses.dataclass
class Topics:
    """Topics of a test."""

    counts: dict[str, int]
    version: int = 1

    def find(self, name: str) -> tuple[str, int] | None:
        return (f"id-{name}", self.counts[name]) if name in self.counts else None

    def name_of(self, topic_id: str) -> str | None:
        return topic_id.removeprefix("id-")

    def matching(self, regex: str, principal: str, host: str) -> Iterable[str]:
        return ()


def word_count(epoch: int = 0) -> Topology:
    """Lines to words, by a repartition topic; their counts in a store with a changelog."""
    return Topology(
        epoch,
        (
            Subtopology("0", ("lines",), repartition_sinks=("app-words-repartition",)),
            Subtopology(
                "1",
                repartition_sources=(InternalTopic("app-words-repartition", 0, (("cleanup.policy", "delete"),)),),
                changelogs=(InternalTopic("app-counts-changelog", 0, (("cleanup.policy", "compact"),)),),
            ),
        ),
    )


WORD_COUNT_TOPICS = {"lines": 4, "app-words-repartition": 4, "app-counts-changelog": 4}
