"""JSON models of groups. Times are ms since 1970 by Redis' clock; null means unknown or absent."""

from __future__ import annotations

from typing import Literal

from tidegate.diagnosis.checks.finding import GroupFinding
from tidegate.diagnosis.checks.progress import Partition
from tidegate.diagnosis.group_events import Event as GroupEvent
from tidegate.diagnosis.group_snapshot import GroupSnapshot, MemberSnapshot, PendingMemberSnapshot, ShareSnapshot
from tidegate.http.models.base import Model, fields_of

SeverityName = Literal["", "note", "trouble", "stuck"]


class ListedGroup(Model):
    """A group in a list. `severity` and `trouble` are empty without a problem."""

    group: str
    id: str
    state: str
    type: str
    members: int
    generation: int
    state_since_ms: int
    lag: int
    severity: Literal["", "trouble", "stuck"]
    trouble: str
    sentence: str


class Groups(Model):
    """A page of groups, in order of id; `next` is the `after` of the next page."""

    groups: list[ListedGroup]
    next: str | None


class Member(fields_of(MemberSnapshot, topics=list[str] | None)):  # type: ignore[misc]
    """One member; `phase` is its progress in the current rebalance; `owned` is topic -> partitions.

    `epoch`, `target`, `revoking` and `revoke_by_ms` are null in a classic group.
    """


class Pending(fields_of(PendingMemberSnapshot)):  # type: ignore[misc]
    """A member id that was issued and has not joined yet (KIP-394)."""


class Share(fields_of(ShareSnapshot)):  # type: ignore[misc]
    """A share-partition of a share group; `in_flight` is member id -> records that it has acquired."""


class GroupPartition(fields_of(Partition)):  # type: ignore[misc]
    """A partition that the group has committed, owns or subscribes to; `owner` is a member id."""

    lag: int | None


class Rebalance(Model):
    """One rebalance; durations are null for steps that were not reached."""

    time_ms: int
    generation: int | None
    cause: str
    sentence: str
    member_id: str
    client_id: str
    host: str
    reason: str
    broker: str
    calm_ms: int
    joining_ms: int | None
    syncing_ms: int | None
    stable_ms: int | None
    members: int | None
    leader: str
    protocol: str
    outcome: str
    removed: list[str]


class Group(fields_of(GroupSnapshot, "commits", "members", "pending", "shares")):  # type: ignore[misc]
    """A group without its history; `key` is its key in Redis."""

    members: list[Member]
    pending: list[Pending]
    shares: list[Share]
    last_rebalance: Rebalance | None
    partitions: list[GroupPartition]


class Event(fields_of(GroupEvent)):  # type: ignore[misc]
    """One event of a group."""

    sentence: str


class History(Model):
    """Rebalances and events, newest first, as far as they are retained."""

    group: str
    rebalances: list[Rebalance]
    events: list[Event]
    events_kept_max: int


class Finding(fields_of(GroupFinding, severity=SeverityName)):  # type: ignore[misc]
    """One finding: a sentence, its evidence and the remedy."""


class Explanation(Model):
    """Findings about a group, most severe first."""

    group: str
    now_ms: int
    summary: str
    findings: list[Finding]
