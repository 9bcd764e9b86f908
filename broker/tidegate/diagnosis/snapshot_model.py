"""A group as diagnosis sees it: values of one consistent snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MemberPhase = str
"""A member's activity in the present state.

`joined`, `missing` (has not rejoined yet), `waiting` for the leader's assignment or for partitions that other members
have not given up, `unsynced` (has not requested its assignment yet), `revoking` (has to confirm a revocation), `behind`
(learns of the target assignment at its next heartbeat), `away` (a static member that left for a while), `synced`.
"""

Partitions = Mapping[str, tuple[int, ...]]
"""Topic -> partitions."""


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """One member. `last_contact_ms` is its last heartbeat, join or sync.

    It is None while a parked request holds the session, and while it is unknown: a broker went silent, sessions were
    extended, and this member has sent no heartbeat since. The last four are None in a classic group.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    client_software: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    joined_ms: int
    last_contact_ms: int | None
    session_ends_ms: int
    phase: MemberPhase
    leads: bool
    topics: frozenset[str] | None
    owned: Partitions | None
    epoch: int | None = None
    """Member epoch."""
    target: Partitions | None = None
    """Target assignment; of a member that is not `behind` it is what it has or waits for."""
    revoking: Partitions | None = None
    """Partitions whose revocation it has not confirmed."""
    revoke_by_ms: int | None = None
    """When it is fenced unless it confirms."""


@dataclass(frozen=True, slots=True)
class PendingMemberSnapshot:
    """A member id that was assigned (KIP-394) and has not been used to join yet."""

    member_id: str
    client_id: str
    client_host: str
    ends_ms: int


@dataclass(frozen=True, slots=True)
class CommitSnapshot:
    """The committed offset of a partition."""

    topic: str
    partition: int
    offset: int
    commit_ms: int
    metadata: str


@dataclass(frozen=True, slots=True)
class ShareSnapshot:
    """A share-partition: its window from `start` to `end`, and what is in flight."""

    topic: str
    partition: int
    start: int
    end: int
    unfinished: int
    """Records of the window that are not finished."""
    in_flight: Mapping[str, int]
    """Member id -> records that it has acquired."""
    returned: int
    """Records that came back and wait for their next delivery."""
    waiting: int
    """Records that wait for their time, or for an earlier record of their key."""
    delivery_count: int
    """The highest one of an unfinished record."""
    redelivered: int
    """Deliveries so far that were not the first of their record."""
    failed: int
    """Records so far that were rejected, or whose last delivery failed."""
    dead_lettered: int
    """Those that were written to the dead-letter topic."""
    dropped: int
    """Those that the dead-letter topic did not take."""
    unlocks_ms: int | None
    """When the first lock expires."""


@dataclass(frozen=True, slots=True)
class DeadLettersSnapshot:
    """The queue of a share group's dead letters; an entry has up to 500 records of a share-partition."""

    entries: int = 0
    oldest_ms: int | None = None
    """When the first of them was queued, by Redis's clock."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group at `now_ms` by Redis's clock. Deadlines are 0 where there is none."""

    group_id: str
    org: str
    id: str
    tier: str
    locator: str
    type: str
    state: str
    prev_state: str
    state_since_ms: int
    created_ms: int
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    reason: str
    join_deadline_ms: int
    sync_deadline_ms: int
    subscribed: tuple[str, ...] | None
    key: str
    now_ms: int
    members: tuple[MemberSnapshot, ...] = ()
    pending: tuple[PendingMemberSnapshot, ...] = ()
    commits: tuple[CommitSnapshot, ...] = ()
    target_epoch: int | None = None
    """Epoch of the target assignment; None in a classic group, whose `generation` is not a group epoch."""
    shares: tuple[ShareSnapshot, ...] = ()
    dead_letters: DeadLettersSnapshot = DeadLettersSnapshot()
    configs: Mapping[str, str] = field(default_factory=dict)
    """The configs in effect of a KIP-848 group or share group."""

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that the members subscribe to; None if one member's subscription cannot be decoded."""
        subscribed: set[str] = set()
        for member in self.members:
            if member.topics is None:
                return None
            subscribed |= member.topics
        return frozenset(subscribed)
