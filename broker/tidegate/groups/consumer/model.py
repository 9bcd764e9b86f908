"""Consumer groups (KIP-848) as values: members, heartbeats and their answers, the working copy of a group.

Nothing here does I/O or reads a clock. docs/redis-layout.md describes what is stored.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Self, TypeVar

from tidegate.groups.held_bytes import group_bytes, texts_bytes

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
UNCHANGED_MS: Final = -1
"""A rebalance timeout that did not change since the member's last heartbeat."""
_NAME_MAX: Final = 255
"""Characters of a client's text in an event."""

Partition = tuple[str, int]
"""Topic id in hex, and the partition's index."""
Partitions = frozenset[Partition]
NO_PARTITIONS: Final[Partitions] = frozenset()


class ConsumerGroupState(enum.StrEnum):
    """The state that ListGroups and ConsumerGroupDescribe show."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Topics of a streams group are missing, or have other numbers of partitions than it needs."""
    ASSIGNING = "Assigning"
    """The group epoch is newer than the target assignment: the next heartbeat of a member computes it."""
    RECONCILING = "Reconciling"
    """Some member has not reached the target assignment yet."""
    STABLE = "Stable"


class MemberState(enum.StrEnum):
    """How far a member is on its way to its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    """It was asked to give up partitions and has not confirmed it; its epoch does not advance."""
    UNRELEASED = "unreleased"
    """It waits for partitions that other members have not given up yet."""


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """What a member of a consumer group has that joined by JoinGroup: names and metadata of its protocols."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]

    @property
    def protocol(self) -> str:
        """The protocol that its answers name: the first that it offers."""
        return self.protocols[0][0]


@dataclass(frozen=True, slots=True)
class EpochMember:
    """A member of a group whose members have epochs, by what all such groups need.

    `assigned` has the member epoch at which it got each partition (KIP-1251).
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    client_software: str = ""
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    rebalance_timeout_ms: int = 0
    assigned: Mapping[Partition, int] = field(default_factory=dict)
    revoking: Partitions = NO_PARTITIONS

    @property
    def is_away(self) -> bool:
        """Whether the member left, and its partitions wait: for this static member, or for a successor."""
        return self.epoch == STATIC_LEAVE_EPOCH

    @property
    def awaits_successor(self) -> bool:
        """Whether the member left, and its partitions wait for another one with its client id."""
        return self.is_away and self.instance_id is None

    @property
    def held(self) -> set[Partition]:
        """Partitions that no other member may own: assigned ones, and those whose revocation is not confirmed."""
        return {*self.assigned, *self.revoking}


@dataclass(frozen=True, slots=True)
class Member(EpochMember):
    """A member of a consumer group."""

    assignor: str | None = None
    topics: frozenset[str] = frozenset()
    regex: str = ""
    classic: ClassicMember | None = None
    principal: str = ""
    """Of a member with a pattern: who may describe the topics that it matches."""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """One ConsumerGroupHeartbeat. None means unchanged since the member's last heartbeat.

    `classic` makes it a JoinGroup.
    """

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    topics: frozenset[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    client_software: str = ""
    classic: ClassicMember | None = None
    principal: str = ""

    @property
    def is_full(self) -> bool:
        """Whether the answer must have the whole assignment: a join, or everything repeated after an error."""
        repeated = self.topics is not None or self.regex is not None
        return self.member_epoch == JOIN_EPOCH or (
            self.rebalance_timeout_ms != UNCHANGED_MS and repeated and self.owned is not None
        )

    @property
    def is_plain(self) -> bool:
        """Whether the heartbeat reports nothing, so that a member of a stable group needs no decision."""
        return (
            self.member_epoch > 0
            and self.owned is None
            and self.topics is None
            and self.regex is None
            and self.assignor is None
            and self.rack_id is None
            and self.rebalance_timeout_ms == UNCHANGED_MS
        )


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """A successful heartbeat. `assignment` is None if the member has the newest one already.

    For JoinGroup and SyncGroup the member epoch is the generation, and `protocol` the member's own.
    """

    member_id: str
    member_epoch: int
    assignment: Partitions | None = None
    heartbeat_interval_ms: int = 0
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """An entry of the shard's event stream (docs/explain.md lists the kinds)."""

    kind: str
    member_id: str = ""
    instance_id: str = ""
    client_id: str = ""
    client_host: str = ""
    cause: str = ""
    reason: str = ""
    detail: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """The eight values that a script writes."""
        who = (self.member_id, self.instance_id[:_NAME_MAX], self.client_id[:_NAME_MAX], self.client_host)
        return (self.kind, *who, self.cause, self.reason, self.detail)

    @classmethod
    def of(cls, kind: str, member: EpochMember, cause: str = "", reason: str = "", detail: str = "") -> GroupEvent:
        """An event about one member."""
        who = member.member_id, member.instance_id or "", member.client_id, member.client_host
        return cls(kind, *who, cause, reason, detail)


M = TypeVar("M", bound=EpochMember)
T = TypeVar("T", bound=Sized)


@dataclass(slots=True)
class EpochGroup(Generic[M, T]):
    """The working copy of a group with member epochs: one decision changes it, and one conditional write stores it.

    M is a member, T its target. `dirty`: members whose record changed; `renewed`: those whose session starts again.
    """

    own_id: str = ""
    version: int = 0
    write_id: str = ""
    """The last write: with the version it identifies the stored group as this one."""
    epoch: int = 0
    target_epoch: int = 0
    topics: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Topics of the group that exist, by name: id in hex and partition count that the target is computed from."""
    topics_version: int = -1
    """The catalogue's version that `topics` was last compared with."""
    heartbeat_interval_ms: int = 0
    session_timeout_ms: int = 0
    """Overrides of this group; 0 is the broker's setting."""
    members: dict[str, M] = field(default_factory=dict)
    targets: dict[str, T] = field(default_factory=dict)
    owners: dict[Partition, str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    is_stored: bool = False
    was_classic: bool = False
    """Whether the stored group is a classic one with members, which this copy converts."""
    is_lost: bool = False
    """Whether the group is not stored although records of its members are."""
    is_ready: bool = True
    """Whether there is everything that tasks of a streams group need."""
    dirty: set[str] = field(default_factory=set)
    dirty_targets: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    renewed: set[str] = field(default_factory=set)
    revocations: dict[str, int | None] = field(default_factory=dict)
    """Members whose time to confirm a revocation, or to sync, starts now, ms, or ends (None)."""
    rejoins: dict[str, int] = field(default_factory=dict)
    """Members that were asked to rejoin: their time to do so starts now, ms, unless it runs already."""
    events: list[GroupEvent] = field(default_factory=list)
    is_changed: bool = False
    texts_bytes: int = 0
    """Memory of what the clients of all members chose."""

    @property
    def held_bytes(self) -> int:
        """Memory of the group, about."""
        partitions = 2 * len(self.owners) + sum(map(len, self.targets.values()))
        return self.texts_bytes + self._own_bytes() + group_bytes(len(self.members), len(self.topics), partitions)

    def _own_bytes(self) -> int:
        """Memory of what groups of this type have beside the others."""
        return 0

    def copy(self) -> Self:
        """A copy with nothing recorded as changed; members and targets are immutable and shared."""
        return replace(
            self,
            topics=dict(self.topics),
            members=dict(self.members),
            targets=dict(self.targets),
            owners=dict(self.owners),
            instances=dict(self.instances),
            dirty=set(),
            dirty_targets=set(),
            removed=set(),
            renewed=set(),
            revocations={},
            rejoins={},
            events=[],
            is_changed=False,
        )

    @property
    def state(self) -> ConsumerGroupState:
        """What the group shows."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if not self.is_ready:
            return ConsumerGroupState.NOT_READY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self.is_reconciled(member) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def is_reconciled(self, member: M) -> bool:
        """Whether a member has reached the target assignment."""
        return member.state is MemberState.STABLE and member.epoch == self.target_epoch

    def bump(self) -> None:
        """A new target assignment is needed."""
        self.epoch += 1
        self.is_changed = True

    def put(self, member: M) -> None:
        """Store a member's new record, and the owners of its partitions. A partition of another member is a bug."""
        old = self.members.get(member.member_id)
        if old == member:
            return
        if old is not None:
            self._forget(old)
        for partition in member.held:
            owner = self.owners.setdefault(partition, member.member_id)
            assert owner == member.member_id, f"{partition} is owned by {owner} and {member.member_id}"
        self.members[member.member_id] = member
        self.texts_bytes += texts_bytes(member)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.member_id
        self.dirty.add(member.member_id)
        self.removed.discard(member.member_id)
        self.is_changed = True

    def remove(self, member_id: str) -> M:
        """Remove a member with its partitions and its target. The caller bumps the epoch."""
        member = self.members.pop(member_id)
        self._forget(member)
        self.targets.pop(member_id, None)
        self.revocations[member_id] = None
        self.rejoins.pop(member_id, None)
        self.dirty.discard(member_id)
        self.dirty_targets.discard(member_id)
        self.renewed.discard(member_id)
        self.removed.add(member_id)
        self.is_changed = True
        return member

    def _forget(self, member: M) -> None:
        self.texts_bytes -= texts_bytes(member)
        for partition in member.held:
            del self.owners[partition]
        if member.instance_id is not None:
            del self.instances[member.instance_id]

    def set_target(self, member_id: str, target: T) -> None:
        """Replace a member's target."""
        if self.targets.get(member_id) != target:
            self.targets[member_id] = target
            self.dirty_targets.add(member_id)


@dataclass(slots=True)
class ConsumerGroup(EpochGroup[Member, Partitions]):
    """The working copy of a consumer group."""

    assignor: str = ""
    assignment_interval_ms: int = 0
    """Shortest time between two targets."""
    rollout_grace_ms: int = 0
    """How long the partitions of a member that left wait for a successor with its client id; 0: not at all."""
    may_assign: bool = True
    """Whether this decision may compute a target."""
    is_consumer: bool = False
    """Whether the stored group is one of KIP-848; an empty classic group becomes one with its first member."""

    @property
    def is_all_classic(self) -> bool:
        """Whether every member joined by JoinGroup."""
        return all(member.classic is not None for member in self.members.values())

    @property
    def times(self) -> str:
        """The overrides as the script compares them with the group's configs."""
        times = self.session_timeout_ms, self.heartbeat_interval_ms, self.assignment_interval_ms, self.rollout_grace_ms
        return " ".join(map(str, times))

    def use_times(self, configured: Sequence[bytes | None]) -> None:
        """Take the overrides over from the group's configs, in the order of `configs.TIMES`."""
        times = [int(value or 0) for value in configured]
        self.session_timeout_ms, self.heartbeat_interval_ms, self.assignment_interval_ms, self.rollout_grace_ms = times
