"""Share groups (KIP-932) as values: members, heartbeats and their answers, the working copy of a group.

Nothing here does I/O or reads a clock. docs/redis-layout.md describes what is stored.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from tidegate.groups.consumer.model import JOIN_EPOCH, NO_PARTITIONS, Partitions
from tidegate.groups.held_bytes import group_bytes, texts_bytes


class ShareGroupState(enum.StrEnum):
    """The state that ListGroups and ShareGroupDescribe show."""

    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ShareMember:
    """One member. Its assignment is what it was last given; its target may be newer until its next heartbeat."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    client_software: str = ""
    epoch: int = 0
    previous_epoch: int = 0
    topics: frozenset[str] = frozenset()
    assigned: Partitions = NO_PARTITIONS


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """One ShareGroupHeartbeat. None means unchanged since the member's last heartbeat."""

    member_id: str
    member_epoch: int
    rack_id: str | None = None
    topics: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""
    client_software: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether the heartbeat reports nothing, so that a member of a group at rest needs no decision."""
        return self.member_epoch > JOIN_EPOCH and self.topics is None and self.rack_id is None


@dataclass(frozen=True, slots=True)
class ShareGroupEvent:
    """An entry of the shard's event stream (docs/explain.md lists the kinds)."""

    kind: str
    member_id: str = ""
    client_id: str = ""
    client_host: str = ""
    cause: str = ""
    detail: str = ""

    @classmethod
    def of(cls, kind: str, member: ShareMember, cause: str = "", detail: str = "") -> ShareGroupEvent:
        """An event about one member."""
        return cls(kind, member.member_id, member.client_id, member.client_host, cause, detail)


@dataclass(slots=True)
class ShareGroup:
    """The working copy of a group: one decision changes it, and one conditional write stores it.

    `dirty` collects members whose record changed; `renewed` those whose session starts again.
    """

    own_id: str = ""
    version: int = 0
    write_id: str = ""
    """The last write: with the version it identifies the stored group as this one."""
    epoch: int = 0
    target_epoch: int = 0
    topics: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Subscribed topics that exist, by name: id in hex and partition count that the target is computed from."""
    topics_version: int = -1
    """The catalogue's version that `topics` was last compared with."""
    members: dict[str, ShareMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    is_stored: bool = False
    dirty: set[str] = field(default_factory=set)
    dirty_targets: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    renewed: set[str] = field(default_factory=set)
    events: list[ShareGroupEvent] = field(default_factory=list)
    is_changed: bool = False
    texts_bytes: int = 0
    """Memory of what the clients of all members chose."""

    @property
    def held_bytes(self) -> int:
        """Memory of the group, about."""
        assigned = sum(len(member.assigned) for member in self.members.values())
        partitions = assigned + sum(map(len, self.targets.values()))
        return self.texts_bytes + group_bytes(len(self.members), len(self.topics), partitions)

    def copy(self) -> ShareGroup:
        """A copy with nothing recorded as changed; members and targets are immutable and shared."""
        return replace(
            self,
            topics=dict(self.topics),
            members=dict(self.members),
            targets=dict(self.targets),
            dirty=set(),
            dirty_targets=set(),
            removed=set(),
            renewed=set(),
            events=[],
            is_changed=False,
        )

    @property
    def state(self) -> ShareGroupState:
        """What the group shows."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def bump(self) -> None:
        """A new target assignment is needed."""
        self.epoch += 1
        self.is_changed = True

    def put(self, member: ShareMember) -> None:
        """Store a member's new record."""
        old = self.members.get(member.member_id)
        if old == member:
            return
        self.texts_bytes += texts_bytes(member) - (0 if old is None else texts_bytes(old))
        self.members[member.member_id] = member
        self.dirty.add(member.member_id)
        self.removed.discard(member.member_id)
        self.is_changed = True

    def remove(self, member_id: str) -> ShareMember:
        """Remove a member and its target. The caller bumps the epoch."""
        member = self.members.pop(member_id)
        self.texts_bytes -= texts_bytes(member)
        self.targets.pop(member_id, None)
        for changed in (self.dirty, self.dirty_targets, self.renewed):
            changed.discard(member_id)
        self.removed.add(member_id)
        self.is_changed = True
        return member

    def set_target(self, member_id: str, target: Partitions) -> None:
        """Replace a member's target."""
        if self.targets.get(member_id) != target:
            self.targets[member_id] = target
            self.dirty_targets.add(member_id)
