"""Members whose heartbeats were answered from snapshots, until a batch renews their sessions.

A batch goes out every RENEWAL_INTERVAL_S. A member takes part when its session was last renewed RENEWED_AGAIN_S ago:
clients that send heartbeats more often than that do not need more renewals. With it go all members of its group that
wait, because a script reads and writes each group once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidegate.groups.heartbeat_snapshots import MemberSnapshot
from tidegate.groups.model import MemberRef
from tidegate.store.keys import GroupKeys

RENEWAL_INTERVAL_S: Final = 0.075
"""Interval of the batches. A broker that is killed loses what waits for the next one; the members get a session grace,
as those of a silent coordinator (`GroupExpiry.broker_silent`)."""
RENEWED_AGAIN_S: Final = 0.5
"""A session that was renewed more recently waits until then, s."""
_SHARE: Final = 1 / 8
"""Nor longer than this share of the time for which snapshots answer, and one interval more: sessions may be short."""

_AT_ONCE: Final = 1_000
"""Members and groups together that are sent before the event loop runs other work: 4 us each, with their scripts."""

Renewals = Sequence[tuple[GroupKeys, Sequence[MemberRef]]]


class SessionRenewals:
    """Passes the renewals that are due by group to `send`. `clock` is monotonic, in seconds."""

    def __init__(self, send: Callable[[Renewals], None], clock: Callable[[], float]) -> None:
        self._send, self._clock = send, clock
        self._members: dict[str, list[MemberSnapshot]] = {}
        self._due_s: dict[str, float] = {}
        """Those that wait, and when the first of them is due, by group."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_event_loop()

    @property
    def waiting(self) -> int:
        """Number of groups with members that wait."""
        return len(self._members)

    def add(self, member: MemberSnapshot) -> None:
        """Renew the session of a member whose renewal does not wait yet (`is_renewing`)."""
        member.is_renewing = True
        group = member.group
        ref, due_s = group.keys.ref, member.renewed_s + min(RENEWED_AGAIN_S, group.confirmed_for_s * _SHARE)
        if ref not in self._members:
            self._members[ref], self._due_s[ref] = [member], due_s
        else:
            self._members[ref].append(member)
            self._due_s[ref] = min(self._due_s[ref], due_s)
        if self._timer is None:
            self._timer = self._loop.call_later(RENEWAL_INTERVAL_S, self._send_due)

    def flush(self) -> None:
        """Send all that wait now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._take(list(self._members), self._clock())

    def _send_due(self) -> None:
        self._timer, now_s = None, self._clock()
        due, wait_s = [ref for ref, due_s in self._due_s.items() if due_s <= now_s], RENEWAL_INTERVAL_S
        if len(due) + sum(map(len, map(self._members.__getitem__, due))) > _AT_ONCE:
            due, wait_s = self._first(due), 0.0
        self._take(due, now_s)
        if self._members:
            self._timer = self._loop.call_later(wait_s, self._send_due)

    def _first(self, due: Sequence[str]) -> list[str]:
        """The first groups, of some members together: the others follow soon."""
        first: list[str] = []
        count = 0
        for ref in due:
            first.append(ref)
            count += 1 + len(self._members[ref])
            if count >= _AT_ONCE:
                break
        return first

    def _take(self, refs: Iterable[str], now_s: float) -> None:
        renewals = []
        for ref in refs:
            members = self._members.pop(ref)
            del self._due_s[ref]
            for member in members:
                member.is_renewing = False  # a heartbeat from now on needs another renewal
                member.renewed_s = now_s
            renewals.append((members[0].group.keys, [member.member_ref for member in members]))
        if renewals:
            self._send(renewals)
