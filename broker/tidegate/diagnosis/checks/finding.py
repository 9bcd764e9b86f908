"""One finding about a group, and text helpers for findings."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.diagnosis.formatting import either, format_duration, format_member
from tidegate.diagnosis.group_snapshot import GroupSnapshot, MemberSnapshot, PendingMemberSnapshot

LINES_MAX: Final = 10
SOON_MS: Final = 5_000
"""Age up to which a state occurs in every healthy rebalance: members learn of one at their next heartbeat."""


class GroupSeverity(enum.IntEnum):
    """How severe a finding is."""

    NOTE = 0
    """Worth knowing."""
    TROUBLE = 1
    """Records wait longer than they should, or soon will."""
    STUCK = 2
    """No member consumes while it lasts."""


@dataclass(frozen=True, slots=True)
class GroupFinding:
    """A sentence that names members and times, its evidence, and what to do."""

    kind: str
    severity: GroupSeverity
    sentence: str
    evidence: tuple[str, ...] = ()
    advice: str = ""


def severity_by_age(snapshot: GroupSnapshot) -> GroupSeverity:
    """Severity of a state in which no member consumes: NOTE while its age is normal for a healthy group."""
    return GroupSeverity.STUCK if snapshot.now_ms - snapshot.state_since_ms >= SOON_MS else GroupSeverity.NOTE


def evicting(snapshot: GroupSnapshot, members: Sequence[MemberSnapshot]) -> str:
    """The command that removes a member, complete if there is exactly one."""
    which = shlex.quote(members[0].instance_id or members[0].member_id) if len(members) == 1 else "MEMBER"
    command = f"tidegate group evict {shlex.quote(snapshot.group_id)} {which}"
    return f"`{command}` removes {either(len(members), 'it', 'one')},"


def poll_limit(rebalance_timeout_ms: int) -> str:
    """max.poll.interval.ms as far as it is known: not every client sends it (aiokafka does not)."""
    return f"{format_duration(rebalance_timeout_ms)} where it is the rebalance timeout, as in most clients"


def few(lines: Iterable[str]) -> tuple[str, ...]:
    """Evidence for the first of many items."""
    every = list(lines)
    rest = (f"and {len(every) - LINES_MAX} more",) if len(every) > LINES_MAX else ()
    return (*every[:LINES_MAX], *rest)


def named(member: MemberSnapshot) -> str:
    """A member for display."""
    return format_member(member.client_id, member.client_host, member.instance_id)


def last_contact_text(snapshot: GroupSnapshot, member: MemberSnapshot) -> str:
    """Time of the last contact with a member that is not parked."""
    if member.last_contact_ms is None:
        return "last request unknown: a broker stopped and sessions were extended"
    return f"last request {format_duration(snapshot.now_ms - member.last_contact_ms)} ago"


def named_pending(pending: PendingMemberSnapshot) -> str:
    """The client of a pending member for display."""
    return format_member(pending.client_id, pending.client_host)
