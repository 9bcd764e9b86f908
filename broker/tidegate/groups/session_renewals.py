"""Members whose heartbeats were answered from snapshots, until the next batch renews their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidegate.groups.heartbeat_snapshots import MemberSnapshot
from tidegate.groups.heartbeats import RENEWAL_INTERVAL_S
from tidegate.groups.model import MemberRef
from tidegate.store.keys import GroupKeys

SendRenewals = Callable[[Sequence[tuple[GroupKeys, Sequence[MemberRef]]]], None]


class SessionRenewals:
    """Collects renewals for RENEWAL_INTERVAL_S, then passes them by group to `send`."""

    def __init__(self, send: SendRenewals) -> None:
        self._send = send
        self._waiting: dict[str, list[MemberSnapshot]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_event_loop()

    def add(self, member: MemberSnapshot) -> None:
        """Renew a member's session with the next batch."""
        if member.is_renewing:
            return
        member.is_renewing = True
        self._waiting.setdefault(member.group.keys.ref, []).append(member)
        if self._timer is None:
            self._timer = self._loop.call_later(RENEWAL_INTERVAL_S, self.flush)

    def flush(self) -> None:
        """Send what waits now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        renewals = []
        for members in waiting.values():
            for member in members:
                member.is_renewing = False  # a heartbeat from now on needs another renewal
            renewals.append((members[0].group.keys, [member.member_ref for member in members]))
        if renewals:
            self._send(renewals)
