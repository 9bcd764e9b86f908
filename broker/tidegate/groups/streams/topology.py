"""The topology of a Kafka Streams application: what its tasks and its internal topics are, given the topics that exist.

A subtopology has as many tasks as the largest of its source topics has partitions. Repartition topics are written by
one subtopology and read by another; a changelog topic has one partition for each task.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

from tidegate.groups.consumer.topics import Topics
from tidegate.groups.held_bytes import text_bytes
from tidegate.groups.streams.errors import StreamsInvalidTopology

SHOWN_MAX: Final = 3
"""Topics that a message or a log entry names."""


class StatusCode(enum.IntEnum):
    """What a member is informed about with each answer while it holds."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4


Status = tuple[StatusCode, str]
"""A code and its detail."""


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that the coordinator creates; 0 partitions are as many as the topology needs."""

    name: str
    partition_count: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A connected part of the topology; the topics of a copartition group have the same number of partitions."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    changelogs: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[frozenset[str], ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """All topics that its tasks read."""
        return (*self.source_topics, *(topic.name for topic in self.repartition_sources))

    @property
    def internal_topics(self) -> tuple[InternalTopic, ...]:
        """The topics that the coordinator creates for it."""
        return (*self.repartition_sources, *self.changelogs)

    @property
    def topic_count(self) -> int:
        """Topics that it reads and writes."""
        return len(self.source_topics) + len(self.repartition_sinks) + len(self.internal_topics)

    @property
    def held_bytes(self) -> int:
        """Memory of it, about."""
        names = self.subtopology_id, self.source_topics, self.repartition_sinks, self.copartition_groups
        own = 2_000 + text_bytes(names)
        return own + sum(300 + text_bytes(topic.name) + text_bytes(topic.configs) for topic in self.internal_topics)


@dataclass(frozen=True, slots=True)
class Topology:
    """The topology that the first member of a group brought."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]
    source_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """In order: topics that the application reads and that somebody else creates."""
    topic_count: int = field(init=False, repr=False, compare=False)
    """Topics of all subtopologies; one that two of them have counts twice."""
    held_bytes: int = field(init=False, repr=False, compare=False)
    """Memory of the topology, about; in a group also of the tasks and topics that it was configured with."""
    _by_id: Mapping[str, Subtopology] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = sorted({name for one in self.subtopologies for name in one.source_topics})
        object.__setattr__(self, "source_names", tuple(names))
        object.__setattr__(self, "topic_count", sum(one.topic_count for one in self.subtopologies))
        object.__setattr__(self, "held_bytes", sum(one.held_bytes for one in self.subtopologies))
        by_id = {one.subtopology_id: one for one in reversed(self.subtopologies)}  # the first of an id
        object.__setattr__(self, "_by_id", by_id)

    def find(self, subtopology_id: str) -> Subtopology | None:
        """The subtopology with an id."""
        return self._by_id.get(subtopology_id)

    @property
    def source_topics(self) -> set[str]:
        """Topics that the application reads and that somebody else creates."""
        return set(self.source_names)

    @property
    def topics(self) -> set[str]:
        """The names of all topics in the topology."""
        internal = {topic.name for one in self.subtopologies for topic in one.internal_topics}
        return self.source_topics | internal | {name for one in self.subtopologies for name in one.repartition_sinks}


@dataclass(frozen=True, slots=True)
class Configured:
    """A topology with the topics that there are. It is ready if there is no status."""

    status: Status | None = None
    tasks: Mapping[str, int] = field(default_factory=dict)
    """Subtopology id -> number of tasks."""
    missing: tuple[InternalTopic, ...] = ()
    """Internal topics to create, with their numbers of partitions."""


def check(topology: Topology) -> None:
    """Raises StreamsInvalidTopology for what no set of topics makes right."""
    written = {name for one in topology.subtopologies for name in one.repartition_sinks}
    read_by: dict[str, str] = {}
    for one in topology.subtopologies:
        if not one.sources:
            raise StreamsInvalidTopology(f"the subtopology {one.subtopology_id} has no source topics")
        for topic in one.changelogs:
            if topic.partition_count != 0:
                raise StreamsInvalidTopology(f"the changelog topic {topic.name} must not have a number of partitions")
        for topic in one.repartition_sources:
            if topic.partition_count == 0 and topic.name not in written:
                raise StreamsInvalidTopology(f"no subtopology writes to the repartition topic {topic.name}")
        for name in one.sources:
            if read_by.setdefault(name, one.subtopology_id) != one.subtopology_id:
                raise StreamsInvalidTopology(f"two subtopologies read the topic {name}")
    repartition = {topic.name for one in topology.subtopologies for topic in one.repartition_sources}
    external = dict.fromkeys(topology.source_topics - repartition, 1)
    _repartition_counts(topology, external)


def configure(topology: Topology, topics: Topics) -> Configured:
    """The tasks and the missing internal topics. Raises StreamsInvalidTopology."""
    counts = {name: found[1] for name in topology.topics if (found := topics.find(name)) is not None}
    missing_sources = sorted(topology.source_topics - counts.keys())
    if missing_sources:
        return Configured((StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {shown(missing_sources)} are missing."))
    wanted = _repartition_counts(topology, counts)
    try:
        for one in topology.subtopologies:
            own = {topic.name: topic.partition_count for topic in one.repartition_sources}
            for group in one.copartition_groups:
                wanted |= _copartitioned(group, own, wanted, counts)
        tasks = {
            one.subtopology_id: max(wanted.get(name, counts.get(name, 0)) for name in one.sources)
            for one in topology.subtopologies
        }
        missing = _missing(topology, wanted, tasks, counts)
    except _IncorrectlyPartitionedError as error:
        return Configured((StatusCode.INCORRECTLY_PARTITIONED_TOPICS, str(error)))
    if not missing:
        return Configured(None, tasks)
    names = shown(topic.name for topic in missing)
    return Configured((StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}"), tasks, missing)


def shown(texts: Iterable[str], separator: str = ", ") -> str:
    """The first of some texts, and how many more there are."""
    ordered = sorted(texts)
    more = len(ordered) - SHOWN_MAX
    return separator.join(ordered[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


class _IncorrectlyPartitionedError(Exception):
    """Topics have numbers of partitions that contradict the topology."""


def _repartition_counts(topology: Topology, external: Mapping[str, int]) -> dict[str, int]:
    """Partitions of the repartition topics: as given, or as many as the largest source of a subtopology that writes it.

    `external` has the partitions of the topics that exist.
    """
    counts = {
        topic.name: topic.partition_count
        for one in topology.subtopologies
        for topic in one.repartition_sources
        if topic.partition_count
    }
    largest: dict[int, int] = {}  # index of a subtopology -> partitions of its largest source so far
    readers: dict[str, list[int]] = {}
    for index, one in enumerate(topology.subtopologies):
        for topic in one.repartition_sources:
            readers.setdefault(topic.name, []).append(index)
        known = [counts[topic.name] for topic in one.repartition_sources if topic.name in counts]
        known += [external[name] for name in one.source_topics if name in external]
        if known:
            largest[index] = max(known)
    due = [(0, index) for index in largest]  # a heap: sweeps over the subtopologies, each in the topology's order
    while due:
        sweep, index = heappop(due)
        for name in topology.subtopologies[index].repartition_sinks:
            if name in counts:
                continue
            counts[name] = largest[index]
            for reader in readers.get(name, ()):
                if reader not in largest:
                    heappush(due, (sweep if reader > index else sweep + 1, reader))
                largest[reader] = max(largest.get(reader, 0), counts[name])
    unresolved = [name for one in topology.subtopologies for name in one.repartition_sinks if name not in counts]
    if unresolved:
        raise StreamsInvalidTopology(f"nothing determines the number of partitions of {shown(unresolved)}")
    return counts


def _copartitioned(
    group: frozenset[str], own: Mapping[str, int], wanted: Mapping[str, int], counts: Mapping[str, int]
) -> dict[str, int]:
    """Partitions of the repartition topics of a copartition group; `own` has those of its subtopology, as given."""
    repartition = sorted(name for name in group if name in own)
    external = {name: counts[name] for name in group if name not in own}
    fixed = {name: own[name] for name in repartition if own[name]}
    deciding = external or fixed
    if len(set(deciding.values())) > 1:
        raise _IncorrectlyPartitionedError(f"Topics do not have the same number of partitions: {_counted(deciding)}")
    count = next(iter(deciding.values()), max((wanted[name] for name in repartition), default=0))
    for name, fixed_count in fixed.items():
        if fixed_count != count:
            raise _IncorrectlyPartitionedError(
                f"The repartition topic {name} has {fixed_count} partitions, the topics read with it have {count}"
            )
    return dict.fromkeys(repartition, count)


def _missing(
    topology: Topology, wanted: Mapping[str, int], tasks: Mapping[str, int], counts: Mapping[str, int]
) -> tuple[InternalTopic, ...]:
    missing: dict[str, InternalTopic] = {}
    for one in topology.subtopologies:
        sized = [(topic, wanted[topic.name]) for topic in one.repartition_sources]
        sized += [(topic, tasks[one.subtopology_id]) for topic in one.changelogs]
        for topic, count in sized:
            found = counts.get(topic.name)
            if found is None:
                missing[topic.name] = replace(topic, partition_count=count)
            elif found != count:
                raise _IncorrectlyPartitionedError(
                    f"Existing topic {topic.name} has another number of partitions: expected {count}, found {found}"
                )
    return tuple(missing[name] for name in sorted(missing))


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
