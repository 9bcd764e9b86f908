"""Reads for a round of lag samples: first groups with their committed offsets, then the ends of their logs.

In this order no committed offset exceeds the reported log end.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

from tidegate.errors import UnknownTopicOrPartition
from tidegate.groups.consumer.model import ConsumerGroupState
from tidegate.groups.consumer.stored import EPOCH_TYPES, load_member
from tidegate.groups.model import GroupState
from tidegate.groups.offsets import split_field
from tidegate.groups.share.partitions import partitions_of
from tidegate.groups.share.records import InFlight, ShareRecords
from tidegate.groups.share.stored import TYPE as SHARE
from tidegate.log.record_format.record_log import READ_RECORD_LAG
from tidegate.records.entry_ids import RecordIds, parse_id
from tidegate.store.calls import gather_readable, log_faulty
from tidegate.store.keys import GroupKeys, LogKeys
from tidegate.store.outcome import FaultyKeys
from tidegate.store.scripts import Script
from tidegate.store.slices import Pauses, in_order
from tidegate.store.store import Store
from tidegate.topics.model import Topic

READ_LAG = Script("log/read_lag")
T = TypeVar("T")

_LOGS_AT_ONCE: Final = 10
"""Limit of logs read at once: one read takes Redis up to 2 ms with entries of 1 MB, and must not delay heartbeats."""
_NOTES_AT_ONCE: Final = 1_000
SLICE: Final = 1_000
"""Partitions of a group, or of a topic, that are handled without a pause: some ms."""
LOG_IDLE_MS: Final = 600_000
"""A log that no broker noted as changed is read again after this time, or up to half of it earlier: other programs may
have changed it."""
UNREADABLE_GROUPS: Final = "unreadable_groups"
UNREADABLE_PARTITIONS: Final = "unreadable_partitions"
UNREADABLE_SHARDS: Final = "unreadable_shards"
_HEAD: Final = (
    "id", "version", "state", "state_since", "generation", "protocol", "protocol_type", "joined_count", "awaiting_sync",
)  # fmt: skip

FindTopic = Callable[[str, str], Topic | None]
Place = tuple[str, int]
"""Topic, partition."""
LogPlace = tuple[str, Place]
"""Organisation, topic and partition."""
Commits = dict[Place, tuple[int, int]]
"""Place -> committed offset, and its commit time, ms."""


def rounds_until(again_ms: int, interval_ms: int, name: str) -> int:
    """Rounds until something is read again; by its name at different times, so that not all is read at once."""
    rounds = max(again_ms // max(interval_ms, 1), 1)
    return rounds - crc32(name.encode()) % (rounds // 2 + 1)


def _name_of(log: LogPlace) -> str:
    org, (topic, index) = log
    return f"{org}/{topic}:{index}"


def _decoded(note: bytes) -> str:
    return note.decode(errors="replace")


async def with_pauses(items: Iterable[T]) -> AsyncIterator[T]:
    """Each item; the event loop runs other work after every `SLICE` of them."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % SLICE:
            await asyncio.sleep(0)


class GroupName(NamedTuple):
    """A group without its key names, which take more memory than the rest of it."""

    org: str
    group_id: str
    shard: int
    ref: str
    """The group's name in its shard's keys."""


@dataclass(frozen=True, slots=True)
class GroupRead:
    """A group as read in a round. `missing`: members that a barrier waits for."""

    name: GroupName
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
    shares: Mapping[Place, InFlight] = field(default_factory=dict)
    """Of a share group, whose `commits` are its start offsets, without a commit time."""
    is_whole: bool = True
    """Whether `commits` has all of them: other topics are deleted, or not known here yet."""

    def lag(self, place: Place, ends: LogEndsReading) -> int:
        """Records of a partition that are not finished."""
        share = self.shares.get(place)
        return ends.lag(self.commits[place][0]) if share is None else share.lag(ends.log_end)


@dataclass(frozen=True, slots=True)
class LogEndsReading:
    """A log at the time of a sample. `times` are those of the requested offsets, ms, -1 for none."""

    log_start: int
    log_end: int
    size: int
    now_ms: int
    head_time: int
    times: Mapping[int, int]
    counts: Mapping[int, int] | None = None
    """Format record, whose offsets have gaps: the records from each requested offset on."""

    def lag(self, committed: int) -> int:
        """Records from the committed offset, or the log's start if that is later, to the log's end."""
        if self.counts is not None:
            return self.counts[committed]
        return max(self.log_end - max(committed, self.log_start), 0)


LogEndsReadings = dict[LogPlace, LogEndsReading]
"""A missing entry has no log."""


@dataclass(frozen=True, slots=True)
class _LastRead:
    """A log as last read, and the first round that reads it again."""

    ends: LogEndsReading
    stale_from: int


class LagReader:
    """Reads groups and logs; cached values only avoid repeated reads.

    Brokers note the logs that they change (`Logs`). A log of format record is read each time, because any program may
    append to it.
    """

    def __init__(
        self,
        store: Store,
        find_topic: FindTopic,
        partitions_of: Callable[[bytes], Mapping[str, list[int]] | None],
        interval_ms: int = 0,
    ) -> None:
        self._store, self._find_topic, self._partitions_of = store, find_topic, partitions_of
        self._interval_ms = interval_ms
        self.notes_lost = False
        """Whether the next round reads idle logs as well."""
        self.unreadable: dict[str, dict[str, FaultyKeys]] = {}
        """Of this round: what is left out because a key cannot be read, by kind and name."""
        self._logged: set[str] = set()
        self._owners: dict[str, tuple[Any, dict[Place, str]]] = {}
        self._last_reads: dict[tuple[LogPlace, str], _LastRead] = {}
        self._round = 0
        self._now_ms = 0

    def retain_groups(self, names: Iterable[str]) -> None:
        """Drop cached groups but those with these names."""
        self._owners = {ref: self._owners[ref] for ref in names if ref in self._owners}

    def forget(self) -> None:
        """Drop all that was read."""
        self._owners.clear()
        self._last_reads.clear()

    def leave_out(self, kind: str, faulty: Mapping[str, FaultyKeys]) -> None:
        """Count what cannot be read."""
        if faulty:
            self.unreadable.setdefault(kind, {}).update(faulty)

    def log_unreadable(self) -> None:
        """Log what this round left out, unless the round before left out the same."""
        names = {name for faulty in self.unreadable.values() for name in faulty}
        if names != self._logged:
            self._logged = names
            for faulty in self.unreadable.values():
                log_faulty("lag-samples", faulty)

    async def begin_round(self, now_ms: int) -> tuple[set[str], set[LogPlace]]:
        """Take the notes of changes; returns the groups and the logs. Raises StoreUnavailable.

        A note is removed before what it names is read, so no change is missed. Idle logs without a note are not read.
        """
        self._round, self._now_ms = self._round + 1, now_ms
        self.unreadable = {}
        lasts, self.notes_lost = {} if self.notes_lost else self._last_reads, False
        self._last_reads = {
            log: last async for log, last in with_pauses(lasts.items()) if last.stale_from > self._round
        }
        noted, logs = await self._take(self._store.cluster_keys.changed_groups), set()
        groups = {_decoded(note) async for note in with_pauses(noted)}
        async for note in with_pauses(await self._take(self._store.cluster_keys.changed_logs)):
            try:
                name, index, topic_hex = _decoded(note).rsplit(":", 2)
                org, topic_name = name.split("/", 1)
                place = org, (topic_name, int(index))
            except ValueError:
                continue  # no broker wrote it
            logs.add(place)
            self._last_reads.pop((place, topic_hex), None)
        return groups, logs

    async def _take(self, key: str) -> list[bytes]:
        notes: list[bytes] = await self._store.read("ZRANGE", key, 0, -1)
        for start in range(0, len(notes), _NOTES_AT_ONCE):
            await self._store.command("ZREM", key, *notes[start : start + _NOTES_AT_ONCE])
        return notes

    async def group(self, keys: GroupKeys) -> GroupRead | None:
        """Read a group; None if it does not exist. Raises StoreUnavailable."""
        offsets, head = await asyncio.gather(
            self._store.read("HGETALL", keys.offsets), self._store.command("HMGET", keys.group, *_HEAD)
        )
        values = dict(zip(_HEAD, head, strict=True))
        if values["state"] is None:
            return None
        state, members, consumers, missing = values["state"].decode(), 0, 0, 0
        if state != GroupState.EMPTY:
            members, consumers = await asyncio.gather(
                self._store.command("HLEN", keys.members), self._store.command("HLEN", keys.consumers)
            )
        commits, shares = await self._commits(keys.org, offsets), dict[Place, InFlight]()
        if values["protocol_type"] == SHARE.encode():
            shares = await self._shares(keys)
            commits = {place: (share.start, 0) for place, share in shares.items()}
        if state == GroupState.PREPARING:
            missing = members - int(values["joined_count"] or 0)
        elif state == GroupState.COMPLETING:
            missing = int(values["awaiting_sync"] or 0)
        elif state == ConsumerGroupState.RECONCILING:
            missing = await self._store.command("ZCARD", keys.revocations)
        return GroupRead(
            GroupName(keys.org, keys.group_id, keys.shard_keys.shard, keys.ref),
            state,
            int(values["state_since"] or 0),
            int(values["generation"] or 0),
            (values["protocol"] or b"").decode(),
            (values["protocol_type"] or b"").decode(),
            members + consumers,
            max(missing, 0),
            commits,
            (values["id"], values["version"]),
            shares,
            len(commits) == len(offsets),
        )

    async def _shares(self, keys: GroupKeys) -> dict[Place, InFlight]:
        """The share-partitions of a share group, in order, without those of deleted topics."""
        listed = {
            one: name
            async for one, name in with_pauses((await partitions_of(self._store, keys)).items())
            if (topic := self._find_topic(keys.org, name)) is not None and topic.topic_id == one.topic_id
        }
        found = await ShareRecords(self._store).in_flight(keys, list(listed))
        return {
            (name, one.index): read for (one, name), read in zip(listed.items(), found, strict=True) if read is not None
        }

    async def _commits(self, org: str, offsets: Mapping[bytes, bytes]) -> Commits:
        """The group's commits, without deleted partitions and without topics that were recreated since."""
        commits: Commits = {}
        async for name in in_order(offsets, SLICE):
            place, stored = split_field(name.decode()), json.loads(offsets[name])
            topic = self._find_topic(org, place[0])
            if topic and place[1] < topic.partition_count and stored["topic_id"] in ("", topic.topic_hex):
                commits[place] = stored["offset"], stored["commit_time"]
        return commits

    async def read_log_ends(self, groups: Iterable[GroupRead]) -> LogEndsReadings:
        """Read each log once, with the offsets of all groups. Raises StoreUnavailable."""
        wanted: defaultdict[LogPlace, set[int]] = defaultdict(set)
        pauses = Pauses(SLICE)
        for group in groups:
            for place, (offset, _) in group.commits.items():
                wanted[group.name.org, place].add(offset)
                await pauses.after()
        return await self.read_ends_of(wanted)

    async def read_ends_of(self, wanted: Mapping[LogPlace, Iterable[int]]) -> LogEndsReadings:
        """Read logs, with the record times at some offsets of each; one that cannot be read is left out.

        Raises StoreUnavailable.
        """
        log_ends: LogEndsReadings = {}
        asked = list(wanted.items())
        for start in range(0, len(asked), _LOGS_AT_ONCE):
            some = {_name_of(where): (where, offsets) for where, offsets in asked[start : start + _LOGS_AT_ONCE]}
            observed, faulty = await gather_readable(
                {name: self._read_ends_of(*where, sorted(offsets)) for name, (where, offsets) in some.items()}
            )
            self.leave_out(UNREADABLE_PARTITIONS, faulty)
            log_ends |= {some[name][0]: status for name, status in observed.items() if status is not None}
        return log_ends

    async def _read_ends_of(self, org: str, place: Place, offsets: list[int]) -> LogEndsReading | None:
        topic = self._find_topic(org, place[0])
        if topic is None:
            return None
        last = self._last_reads.get(((org, place), topic.topic_hex))
        if last is not None and last.ends.times.keys() >= set(offsets):
            return replace(last.ends, now_ms=max(last.ends.now_ms, self._now_ms))
        keys = self._store.log_keys(org, topic.name, place[1], topic.topic_hex, topic.format)
        try:
            if keys.is_record:
                return await self._read_record_ends(keys, RecordIds(topic.config.sequence_bits), offsets)
            start, end, size, now_ms, head_time, *times = await self._store.run(
                READ_LAG, [keys.log, keys.meta], *offsets
            )
        except UnknownTopicOrPartition:
            return None
        ends = LogEndsReading(start, end, size, now_ms, head_time, dict(zip(offsets, times, strict=True)))
        if self._round:
            stale_from = self._round + rounds_until(LOG_IDLE_MS, self._interval_ms, f"{topic.topic_hex}:{place[1]}")
            self._last_reads[(org, place), topic.topic_hex] = _LastRead(ends, stale_from)
        return ends

    async def _read_record_ends(self, keys: LogKeys, ids: RecordIds, offsets: list[int]) -> LogEndsReading:
        befores = [ids.id_before(offset) for offset in offsets]
        log_start, last_id, first_id, size, now_ms, times, counts = await self._store.run(
            READ_RECORD_LAG, [keys.log, keys.meta], *befores
        )
        end, head_time = ids.end_of(last_id), parse_id(last_id)[0] or -1
        start = max(int(log_start), min(ids.end_of(first_id) - 1, end)) if first_id != b"0-0" else end
        return LogEndsReading(
            start, end, size, now_ms, head_time,
            dict(zip(offsets, times, strict=True)), dict(zip(offsets, counts, strict=True)),
        )  # fmt: skip

    async def owners(self, group: GroupRead) -> dict[Place, str]:
        """Partition -> member, from the assignments of the group's generation. Raises StoreUnavailable."""
        if group.state == GroupState.EMPTY:
            return {}
        keys = self._store.stored_group_keys(group.name.org, group.name.group_id)
        known = self._owners.get(keys.ref)
        if known is None or known[0] != group.mark:
            owned, pauses = dict[Place, str](), Pauses(SLICE)
            for member_id, blob in (await self._store.read("HGETALL", keys.assignments)).items():
                for topic, partitions in (self._partitions_of(blob) or {}).items():
                    owned |= dict.fromkeys(((topic, one) for one in partitions), member_id.decode())
                    await pauses.after(1 + len(partitions))
            if not owned and group.protocol_type in EPOCH_TYPES:
                owned = await self._consumer_owners(keys)
            known = self._owners[keys.ref] = group.mark, owned
        return known[1]

    async def _consumer_owners(self, keys: GroupKeys) -> dict[Place, str]:
        """The same of a KIP-848 or streams group; partitions that a member has not given up yet are still its own."""
        topics, records = await asyncio.gather(
            self._store.command("HGET", keys.group, "topics"), self._store.read("HGETALL", keys.consumers)
        )
        names = {topic_id: name for name, (topic_id, _) in json.loads(topics or b"{}").items()}
        owned, pauses = dict[Place, str](), Pauses(SLICE)
        for member_id, record in records.items():
            held = load_member(member_id.decode(), record).held
            owned |= {(names[topic], one): member_id.decode() for topic, one in held if topic in names}
            await pauses.after(1 + len(held))
        return owned
