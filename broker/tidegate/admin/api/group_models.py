"""JSON models of groups. Times are ms since 1970 by Redis' clock; null means unknown or absent."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidegate.admin.api.endpoint import Model

Severity = Literal["", "note", "trouble", "stuck"]


class ListedGroup(Model):
    """A group's line of a list. `severity` and `trouble` are empty where nothing is wrong."""

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


class Member(Model):
    """One member; `doing` is what it does in the present state; `owned` is topic -> partitions."""

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
    doing: str
    leads: bool
    topics: list[str] | None
    owned: dict[str, list[int]] | None


class Pending(Model):
    """A member id that was handed out and is not back yet (KIP-394)."""

    member_id: str
    client_id: str
    client_host: str
    ends_ms: int


class GroupPartition(Model):
    """A partition that the group has committed for, owns or subscribes to."""

    topic: str
    partition: int
    committed: int | None
    commit_ms: int | None
    metadata: str
    log_start: int | None
    log_end: int | None
    owner: str | None = Field(description="member id")
    lag: int | None


class Rebalance(Model):
    """One join phase and what came of it; durations are null where a step was not reached."""

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


class Group(Model):
    """A group in full, but for its history."""

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
    subscribed: list[str] | None
    key: str = Field(description="in Redis")
    now_ms: int
    members: list[Member]
    pending: list[Pending]
    last_rebalance: Rebalance | None
    partitions: list[GroupPartition]


class Event(Model):
    """One thing that happened in a group."""

    time_ms: int
    generation: int
    kind: str
    cause: str
    member_id: str
    instance_id: str
    client_id: str
    host: str
    reason: str
    detail: str
    members: int
    broker: str
    duration_ms: int
    sentence: str


class History(Model):
    """Rebalances and events, newest first, as far as they are kept."""

    group: str
    rebalances: list[Rebalance]
    events: list[Event]
    events_kept_max: int


class Finding(Model):
    """One thing that is to be said of a group: a sentence, what it rests on, what to do."""

    kind: str
    severity: Severity
    sentence: str
    evidence: list[str]
    advice: str


class Explanation(Model):
    """Why a group does what it does, worst first."""

    group: str
    now_ms: int
    summary: str
    findings: list[Finding]
