"""The renewals of many members: in parts, between which the event loop runs other work."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.groups.heartbeat_snapshots import GroupSnapshot, MemberSnapshot
from tidegate.groups.model import MemberRef
from tidegate.groups.session_renewals import RENEWED_AGAIN_S, Renewals, SessionRenewals
from tidegate.store.keys import GroupKeys

AT_ONCE = 1_000
CONFIRMED_S = 30.0


class Sent:
    """The renewals of one broker; the test runs its timer."""

    def __init__(self) -> None:
        self.now_s, self.batches = 100.0, list[Renewals]()
        self.timers = list[tuple[float, Any]]()
        self.renewals = SessionRenewals(self.batches.append, lambda: self.now_s)
        loop: Any = SimpleNamespace(call_later=self._call_later)
        self.renewals._loop = loop

    def _call_later(self, delay_s: float, callback: Any) -> Any:
        self.timers.append((delay_s, callback))
        return SimpleNamespace(cancel=self.timers.clear)

    def add(self, groups: int, members: int) -> None:
        for number in range(groups):
            group = GroupSnapshot(GroupKeys.of("t", 1, "default", f"g{number}"), CONFIRMED_S)
            for member in range(members):
                self.renewals.add(MemberSnapshot(group, MemberRef(f"m{member}", 1), self.now_s))

    def run_timer(self) -> float:
        """Run it; returns the delay with which it was set."""
        delay_s, callback = self.timers.pop()
        self.now_s += delay_s
        callback()
        return delay_s


@pytest.mark.parametrize(("groups", "members"), [(5_000, 1), (100, 50), (4, 1_000)])
async def test_renewals_of_many_members_are_sent_in_parts(groups: int, members: int) -> None:
    sent = Sent()
    sent.add(groups, members)
    sent.now_s += RENEWED_AGAIN_S

    delays_s = [sent.run_timer()]
    while sent.timers:
        delays_s.append(sent.run_timer())

    sizes = [sum(len(refs) for _, refs in batch) for batch in sent.batches]
    assert sum(sizes) == groups * members
    assert max(sizes) <= max(AT_ONCE, members)
    assert not any(delays_s[1:]), "the other parts follow at once"
    assert sent.renewals.waiting == 0


async def test_renewals_that_are_not_due_wait_for_the_next_interval() -> None:
    sent = Sent()
    sent.add(3, 1)

    first_s = sent.run_timer()

    assert sent.batches == []
    assert [delay_s for delay_s, _ in sent.timers] == [first_s]
