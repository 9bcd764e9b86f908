"""Streams groups (KIP-1071) as values: members, heartbeats and their answers, the working copy of a group.

Nothing here does I/O or reads a clock. docs/redis-layout.md describes what is stored. A task is a subtopology id and
the index of the partition that it reads. Warm-up tasks are not assigned; Kafka's coordinator assigns none either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidegate.groups.consumer.model import (
    JOIN_EPOCH,
    NO_PARTITIONS,
    UNCHANGED_MS,
    EpochGroup,
    EpochMember,
    Partition,
    Partitions,
)
from tidegate.groups.held_bytes import partitions_bytes
from tidegate.groups.model import MemberRef
from tidegate.groups.streams.topology import Configured, Status, Topology

Task = Partition
"""Subtopology id, and the partition's index."""
Endpoint = tuple[str, int]
"""Host and port of a process that answers interactive queries."""
SpendMutations = Callable[[int], Awaitable[None]]
"""Spend a client's quota for a topic of so many partitions. Raises KafkaError."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Active tasks, and standby tasks, which only replay the changelog."""

    active: Partitions = NO_PARTITIONS
    standby: Partitions = NO_PARTITIONS

    def overlaps(self, other: Tasks) -> bool:
        """Whether a task has the same role in both."""
        return bool(self.active & other.active or self.standby & other.standby)

    def __le__(self, other: Tasks) -> bool:
        return self.active <= other.active and self.standby <= other.standby

    def __len__(self) -> int:
        return len(self.active) + len(self.standby)


NO_TASKS: Final = Tasks()


@dataclass(frozen=True, slots=True)
class StreamsMember(EpochMember):
    """A thread of a Kafka Streams process; `assigned` and `revoking` are its active tasks."""

    process_id: str = ""
    topology_epoch: int = 0
    endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] = ()
    standby: Partitions = NO_PARTITIONS
    standby_revoking: Partitions = NO_PARTITIONS

    @property
    def tasks(self) -> Tasks:
        """What it may run now."""
        return Tasks(frozenset(self.assigned), self.standby)

    @property
    def revoking_tasks(self) -> Tasks:
        """What it was asked to close and has not confirmed."""
        return Tasks(self.revoking, self.standby_revoking)


async def _free_of_charge(_: int) -> None:
    """Of clients without a quota."""


@dataclass(frozen=True, slots=True)
class StreamsHeartbeat:
    """One StreamsGroupHeartbeat. None means unchanged since the member's last heartbeat."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    topology: Topology | None = None
    owned: Tasks | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] | None = None
    endpoint_epoch: int = 0
    shutdown: bool = False
    client_id: str = ""
    client_host: str = ""
    client_software: str = ""
    may_create: Callable[[str], bool] = field(default=lambda name: True, compare=False)
    """Whether the member's client may create a topic."""
    spend_mutations: SpendMutations = field(default=_free_of_charge, compare=False)

    @property
    def is_join(self) -> bool:
        """Whether the member joins, or joins again."""
        return self.member_epoch == JOIN_EPOCH

    @property
    def ref(self) -> MemberRef:
        """Who the member says it is."""
        return MemberRef(self.member_id, self.member_epoch, self.instance_id)

    @property
    def is_plain(self) -> bool:
        """Whether the heartbeat reports nothing, so that a member of a group at rest needs no decision."""
        reported = (self.rack_id, self.topology, self.owned, self.process_id, self.endpoint, self.client_tags)
        return (
            self.member_epoch > JOIN_EPOCH
            and self.rebalance_timeout_ms == UNCHANGED_MS
            and not self.shutdown
            and all(one is None for one in reported)
        )


@dataclass(frozen=True, slots=True)
class EndpointPartitions:
    """What a process with an endpoint has: partitions by the names of their topics."""

    endpoint: Endpoint
    active: Mapping[str, tuple[int, ...]]
    standby: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StreamsAnswer:
    """A successful heartbeat. `tasks` is None if the member has the newest ones already, as is `endpoints`."""

    member_id: str
    member_epoch: int
    tasks: Tasks | None = None
    statuses: tuple[Status, ...] = ()
    endpoint_epoch: int = 0
    endpoints: tuple[EndpointPartitions, ...] | None = None
    heartbeat_interval_ms: int = 0


@dataclass(slots=True)
class StreamsGroup(EpochGroup[StreamsMember, Tasks]):
    """The working copy of a streams group; `owners` are those of active tasks."""

    is_streams: bool = False
    """Whether the stored group is a streams group; an empty classic group becomes one with its first member."""
    topology: Topology | None = None
    configured: Configured = field(default_factory=Configured)
    """The topology with the topics that the last decision found."""
    endpoint_epoch: int = 0
    """Grows with every change of what processes with an endpoint have."""
    shutdown_by: str = ""
    """The member that asked all members to shut down."""
    standby_replicas: int = 0
    """Standby tasks of each task with state, by the group's configs."""
    assigned_replicas: int = 0
    """Those that the target was computed with."""

    def _own_bytes(self) -> int:
        standby = sum(len(one.standby) + len(one.standby_revoking) for one in self.members.values())
        return partitions_bytes(standby) + (0 if self.topology is None else self.topology.held_bytes)

    def use_configs(self, configured: Sequence[int]) -> None:
        """Take over the group's configs, in the order of `configs.STREAMS_VALUES`; 0 is not set."""
        self.session_timeout_ms, self.heartbeat_interval_ms, self.standby_replicas = configured

    def is_stale(self, member: StreamsMember) -> bool:
        """Whether a member has an older topology than the group: it gets no tasks."""
        return self.topology is not None and member.topology_epoch < self.topology.epoch

    @property
    def has_status(self) -> bool:
        """Whether the answer to a member's heartbeat has a status."""
        return not self.is_ready or bool(self.shutdown_by) or any(map(self.is_stale, self.members.values()))

    def partitions_of(self, tasks: Iterable[Task]) -> dict[str, tuple[int, ...]]:
        """The partitions that tasks read, by the names of their topics."""
        found: dict[str, list[int]] = {}
        for subtopology_id, index in sorted(tasks):
            subtopology = None if self.topology is None else self.topology.find(subtopology_id)
            for name in () if subtopology is None else subtopology.sources:
                if name in self.topics and index < self.topics[name][1]:
                    found.setdefault(name, []).append(index)
        return {name: tuple(indexes) for name, indexes in sorted(found.items())}
