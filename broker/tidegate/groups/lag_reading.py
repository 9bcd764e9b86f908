"""Reads for a round of lag samples: first groups with their committed offsets, then the ends of their logs.

In this order no committed offset exceeds the reported log end.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import UnknownTopicOrPartition
from tidegate.groups.model import GroupState
from tidegate.groups.offsets import split_field
from tidegate.store.keys import GroupKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.topics.model import Topic

READ_LAG = Script("log/read_lag")

_LOGS_AT_ONCE: Final = 10
"""Limit of logs read at once: one read takes Redis up to 2 ms with entries of 1 MB, and must not delay heartbeats."""
_HEAD: Final = (
    "id", "version", "state", "state_since", "generation", "protocol", "protocol_type", "joined_count", "awaiting_sync",
)  # fmt: skip

FindTopic = Callable[[str, str], Topic | None]
Place = tuple[str, int]
"""Topic, partition."""
Commits = dict[Place, tuple[int, int]]
"""Place -> committed offset, and its commit time, ms."""


@dataclass(frozen=True, slots=True)
class GroupRead:
    """A group as read in a round. `missing`: members that a barrier waits for."""

    keys: GroupKeys
    state: str
    state_since_ms: int
    generation: int
    protocol: str
    protocol_type: str
    members: int
    missing: int
    commits: Commits
    mark: tuple[bytes | None, ...]
    """Changes when the members or their assignments may have changed."""


@dataclass(frozen=True, slots=True)
class LogEndsReading:
    """A log at the time of a sample. `times` are those of the requested offsets, ms, -1 for none."""

    log_start: int
    log_end: int
    size: int
    now_ms: int
    head_time: int
    times: Mapping[int, int]

    def lag(self, committed: int) -> int:
        """Records from the committed offset, or the log's start if that is later, to the log's end."""
        return max(self.log_end - max(committed, self.log_start), 0)


LogEndsReadings = dict[tuple[str, Place], LogEndsReading]
"""By organisation and place; a missing entry has no log."""


class LagReader:
    """Reads groups and logs; cached values only avoid repeated reads."""

    def __init__(
        self,
        store: Store,
        find_topic: FindTopic,
        partitions_of: Callable[[bytes], Mapping[str, list[int]] | None],
    ) -> None:
        self._store, self._find_topic, self._partitions_of = store, find_topic, partitions_of
        self._owners: dict[str, tuple[Any, dict[Place, str]]] = {}

    def forget(self, but: Iterable[str] = ()) -> None:
        """Drop cached groups except those with these names."""
        self._owners = {ref: self._owners[ref] for ref in but if ref in self._owners}

    async def group(self, keys: GroupKeys) -> GroupRead | None:
        """Read a group; None if it does not exist. Raises StoreUnavailable."""
        offsets, head, members = await asyncio.gather(
            self._store.read("HGETALL", keys.offsets),
            self._store.command("HMGET", keys.group, *_HEAD),
            self._store.command("HLEN", keys.members),
        )
        values = dict(zip(_HEAD, head, strict=True))
        if values["state"] is None:
            return None
        state, missing = values["state"].decode(), 0
        if state == GroupState.PREPARING:
            missing = members - int(values["joined_count"] or 0)
        elif state == GroupState.COMPLETING:
            missing = int(values["awaiting_sync"] or 0)
        return GroupRead(
            keys,
            state,
            int(values["state_since"] or 0),
            int(values["generation"] or 0),
            (values["protocol"] or b"").decode(),
            (values["protocol_type"] or b"").decode(),
            members,
            max(missing, 0),
            self._commits(keys.org, offsets),
            (values["id"], values["version"]),
        )

    def _commits(self, org: str, offsets: Mapping[bytes, bytes]) -> Commits:
        """The group's commits, without deleted partitions and without topics that were recreated since."""
        commits: Commits = {}
        for name, value in sorted(offsets.items()):
            place, stored = split_field(name.decode()), json.loads(value)
            topic = self._find_topic(org, place[0])
            if topic and place[1] < topic.partition_count and stored["topic_id"] in ("", topic.topic_hex):
                commits[place] = stored["offset"], stored["commit_time"]
        return commits

    async def read_log_ends(self, groups: Iterable[GroupRead]) -> LogEndsReadings:
        """Read each log once, with the offsets of all groups. Raises StoreUnavailable."""
        wanted: defaultdict[tuple[str, Place], set[int]] = defaultdict(set)
        for group in groups:
            for place, (offset, _) in group.commits.items():
                wanted[group.keys.org, place].add(offset)
        return await self.read_ends_of(wanted)

    async def read_ends_of(self, wanted: Mapping[tuple[str, Place], Iterable[int]]) -> LogEndsReadings:
        """Read logs, with the record times at some offsets of each. Raises StoreUnavailable."""
        log_ends: LogEndsReadings = {}
        asked = list(wanted.items())
        for start in range(0, len(asked), _LOGS_AT_ONCE):
            some = asked[start : start + _LOGS_AT_ONCE]
            observed = await asyncio.gather(*(self._read_ends_of(*where, sorted(offsets)) for where, offsets in some))
            log_ends |= {where: status for (where, _), status in zip(some, observed, strict=True) if status is not None}
        return log_ends

    async def _read_ends_of(self, org: str, place: Place, offsets: list[int]) -> LogEndsReading | None:
        topic = self._find_topic(org, place[0])
        if topic is None:
            return None
        keys = self._store.log_keys(org, topic.name, place[1], topic.topic_hex)
        try:
            start, end, size, now_ms, head_time, *times = await self._store.run(
                READ_LAG, [keys.log, keys.meta], *offsets
            )
        except UnknownTopicOrPartition:
            return None
        return LogEndsReading(start, end, size, now_ms, head_time, dict(zip(offsets, times, strict=True)))

    async def owners(self, group: GroupRead) -> dict[Place, str]:
        """Partition -> member, from the assignments of the group's generation. Raises StoreUnavailable."""
        if group.state == GroupState.EMPTY:
            return {}
        known = self._owners.get(group.keys.ref)
        if known is None or known[0] != group.mark:
            owned: dict[Place, str] = {}
            for member_id, blob in (await self._store.read("HGETALL", group.keys.assignments)).items():
                for topic, partitions in (self._partitions_of(blob) or {}).items():
                    owned |= dict.fromkeys(((topic, one) for one in partitions), member_id.decode())
            known = self._owners[group.keys.ref] = group.mark, owned
        return known[1]
