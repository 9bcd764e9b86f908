"""Stored commits on their way to the group mirrors and the usage counters: once per group and 100 ms.

Both need where a group's offsets stand, not each step. A commit that moves the same partitions forward replaces the
group's last one that is not reported yet; any other is reported after it, in order. So both count and show what they
would be published per commit. Pending commits are reported before a client reads from elsewhere than its last read
ended, before the mirrors are written, and before the counters are taken: an answered commit is in both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import le
from typing import TYPE_CHECKING, Final

import structlog

from tidegate.store.keys import GroupKeys
from tidegate.topics.model import Topic

if TYPE_CHECKING:
    from tidegate.log.mirror import Mirror
    from tidegate.log.usage import Usage

logger = structlog.get_logger()

REPORT_AFTER_S: Final = 0.1
"""How long a commit may wait to be reported."""
GROUPS_MAX: Final = 1_000
"""Groups with a commit that is not reported; beyond it all are reported at once."""

Partitions = list[tuple[Topic, list[int]]]
"""Each topic with its partitions, in the order of their offsets."""


class _Pending:
    """Commits of one group that moved the same partitions forward: the first, the last and their number."""

    __slots__ = ("client_id", "count", "first", "group_id", "last", "partitions")

    def __init__(self, group_id: str, client_id: str, partitions: Partitions, offsets: list[int]) -> None:
        self.group_id = group_id
        self.client_id = client_id
        self.partitions = partitions
        self.first = self.last = offsets
        self.count = 1


class CommitReports:
    """The commits of this broker that are not reported yet, by group (its name in the shard's keys).

    `on_changed` gets a group whose commits are reported.
    """

    def __init__(self, usage: Usage, mirror: Mirror | None, on_changed: Callable[[str], None]) -> None:
        self._usage = usage
        self._mirror = mirror
        self._on_changed = on_changed
        self._pending: dict[str, _Pending] = {}
        usage.before_take = self.flush
        if mirror is not None:
            mirror.before_step = self.flush

    def add(self, group: str, group_id: str, client_id: str, partitions: Partitions, offsets: list[int]) -> None:
        """A commit is stored: `offsets` of all partitions, in order."""
        pending = self._pending.get(group)
        if pending is not None:
            same = pending.client_id == client_id and pending.partitions == partitions
            if same and all(map(le, pending.last, offsets)):
                pending.last = offsets
                pending.count += 1
                return
            self._report(group, pending)
        elif not self._pending:
            asyncio.get_running_loop().call_later(REPORT_AFTER_S, self.flush)
        self._pending[group] = _Pending(group_id, client_id, partitions, offsets)
        if self._mirror is not None:
            self._mirror.commits_wait = True
        if len(self._pending) > GROUPS_MAX:
            self.flush()

    def add_of_transaction(self, keys: GroupKeys, transactional_id: str, moved: list[tuple[Topic, int, int]]) -> None:
        """A transaction has committed offsets; its id stands for that of the client."""
        partitions = [(topic, [index]) for topic, index, _ in moved]
        self.add(keys.ref, keys.group_id, transactional_id, partitions, [offset for _, _, offset in moved])

    def flush(self) -> None:
        """Report every pending commit."""
        pending, self._pending = self._pending, {}
        if self._mirror is not None:
            self._mirror.commits_wait = False
        for group, one in pending.items():
            self._report(group, one)

    def _report(self, group: str, pending: _Pending) -> None:
        try:
            self._on_changed(group)
            self._report_offsets(group, pending, pending.first, 1)
            if pending.count > 1:
                self._report_offsets(group, pending, pending.last, pending.count - 1)
        except Exception:  # the commits are stored and answered
            logger.exception("commit_not_reported", group=pending.group_id)

    def _report_offsets(self, group: str, pending: _Pending, offsets: Sequence[int], count: int) -> None:
        named = [(topic, index) for topic, indexes in pending.partitions for index in indexes]
        moved = [(topic, index, offset) for (topic, index), offset in zip(named, offsets, strict=True)]
        if self._mirror is not None:
            for topic, index, offset in moved:
                self._mirror.committed(topic, index, pending.group_id, offset)
        self._usage.committed(group, pending.client_id, moved, count)
