"""Groups as they were last read, while nothing changes them: a round of lag samples costs Redis nothing for these.

A group rests while it is Empty or Stable, no broker noted a commit (`store.changed_groups`), no script published a
change of it, and no log that it has committed offsets of was noted as changed. A note may be lost with its broker, and
other programs may write: each group is read again after some minutes, sooner while records wait for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tidegate.groups.consumer.model import ConsumerGroupState
from tidegate.groups.model import GroupState
from tidegate.groups.share.stored import TYPE as SHARE
from tidegate.monitoring.lag_reading import (
    SLICE,
    FindTopic,
    GroupRead,
    LogEndsReading,
    LogEndsReadings,
    LogPlace,
    Place,
    rounds_until,
    with_pauses,
)
from tidegate.store.slices import Pauses
from tidegate.topics.model import Topic

IDLE_MS: Final = 300_000
"""A group whose records are all read is read again after this time, or up to half of it earlier."""
WAITING_MS: Final = 60_000
"""A group for which records wait is read again as often: the pipeline looks for stuck ones in windows of a minute."""
_AT_REST: Final = frozenset({GroupState.EMPTY, GroupState.STABLE, ConsumerGroupState.EMPTY, ConsumerGroupState.STABLE})


@dataclass(frozen=True, slots=True)
class RestingGroup:
    """A group, the owners of its partitions, their logs as last read, and the round that reads it again."""

    group: GroupRead
    owners: Mapping[Place, str]
    topics: tuple[Topic, ...]
    ends: tuple[LogEndsReading | None, ...]
    """Of its committed partitions, in their order."""
    due: int

    async def log_ends(self, now_ms: int) -> LogEndsReadings:
        """The log ends as they are still."""
        org = self.group.name.org
        return {
            (org, place): replace(ends, now_ms=max(ends.now_ms, now_ms))
            async for place, ends in with_pauses(zip(self.group.commits, self.ends, strict=True))
            if ends is not None
        }


class RestingGroups:
    """The groups that rest. `find_topic(org, name)` gives a topic's present state."""

    def __init__(self, find_topic: FindTopic, interval_ms: int) -> None:
        self._find_topic, self._interval_ms = find_topic, interval_ms
        self._groups: dict[str, RestingGroup] = {}
        self._changed: set[str] = set()
        self._lost = False
        self._round = 0

    def on_group_change(self, payload: bytes | None) -> None:
        """A script changed a group; None: messages may have been lost."""
        if payload is None:
            self._lost = True
        else:
            self._changed.add(payload.rsplit(b":", 3)[0].decode())

    async def begin_round(self, changed: Collection[str], changed_logs: Collection[LogPlace]) -> None:
        """Forget what changed since the last round: these groups, and those with offsets of these logs."""
        self._round += 1
        gone, self._changed = self._changed.union(changed), set()
        if self._lost:
            self._lost = False
            self._groups.clear()
        logs: defaultdict[str, set[Place]] = defaultdict(set)
        async for org, place in with_pauses(changed_logs):
            logs[org].add(place)
        pauses, left = Pauses(SLICE), dict[str, RestingGroup]()
        for ref, one in self._groups.items():
            await pauses.after()
            if ref in gone or one.due <= self._round:
                continue
            if not await self._has_changed(one, logs[one.group.name.org], pauses):
                left[ref] = one
        self._groups = left

    async def _has_changed(self, one: RestingGroup, changed_logs: set[Place], pauses: Pauses) -> bool:
        await pauses.after(min(len(changed_logs), len(one.group.commits)))
        if not one.group.commits.keys().isdisjoint(changed_logs):
            return True
        for topic in one.topics:
            await pauses.after()
            now = self._find_topic(one.group.name.org, topic.name)
            if now is None or now.topic_hex != topic.topic_hex:
                return True
        return False

    def get(self, ref: str) -> RestingGroup | None:
        """A group that rests, by its name in its shard's keys; None if it must be read."""
        return self._groups.get(ref)

    async def add(self, group: GroupRead, owners: Mapping[Place, str], log_ends: LogEndsReadings) -> None:
        """A group was read: keep it if it rests. Any program may append to logs of format record."""
        if group.state not in _AT_REST or group.protocol_type == SHARE or not group.is_whole:
            return
        org = group.name.org
        topics: dict[str, Topic | None] = {}
        ends: list[LogEndsReading | None] = []
        waits = False
        async for place in with_pauses(group.commits):
            if place[0] not in topics:
                topics[place[0]] = self._find_topic(org, place[0])
            one = log_ends.get((org, place))
            ends.append(one)
            waits = waits or (one is not None and group.lag(place, one) > 0)
        logs = tuple(topic for topic in topics.values() if topic is not None and not topic.config.is_record)
        if len(logs) < len(topics):
            return
        due = self._round + rounds_until(WAITING_MS if waits else IDLE_MS, self._interval_ms, group.name.ref)
        self._groups[group.name.ref] = RestingGroup(group, owners, logs, tuple(ends), due)

    def forget(self) -> None:
        """Read every group again."""
        self._groups.clear()
