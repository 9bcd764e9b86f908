"""Committed offsets: commit and fetch, batched by group and event-loop tick; delete; the stored form.

A committed offset is one field of the group's `offsets` hash, `<topic>:<partition>`, whose value is readable JSON:
offset, leader_epoch, topic_id, metadata, commit_time, and expire_time if the client sent one. One script stores all
commits of a tick (in Redis Cluster those of a shard); one command serves equal reads of a tick.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from json.encoder import encode_basestring
from typing import Any, Final

import structlog

from tidegate.groups.commit_answers import HandOut, Prove, hand_out, hand_out_proved
from tidegate.groups.commits import (
    FEW_ENTRIES,
    ONE_TIME_S,
    UNKNOWN_TIME,
    WITHOUT_LEASE,
    Commit,
    OnCode,
    QueuedBatch,
    commit_arguments,
    commit_times_ms,
    is_large,
    sent_again,
    times_of_each,
)
from tidegate.groups.expire_and_retry import (
    BrokerName,
    ExpiringCall,
    FaultyGroups,
    extend_sessions_after_outage,
    group_script_args,
    group_script_keys,
    nobody,
)
from tidegate.groups.expiry import expirer
from tidegate.groups.model import GROUP_EVENTS_MAX
from tidegate.groups.tick_batch import Gathered
from tidegate.store.batching import fail_waiter
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure, Unknown, failure_of
from tidegate.store.scripts import Script
from tidegate.store.store import Store

COMMIT_OFFSETS = Script("groups/commit_offsets")
COMMIT_WHILE_FREE = COMMIT_OFFSETS.refused_when_full()
DELETE_OFFSETS = Script("groups/delete_offsets")

UNSTABLE_FIELD: Final = ":-1"
"""The field of a group's offsets that names the partitions with staged offsets, as if it were a commit's metadata: so
OffsetFetch reads them with the same command. It exists while the group is in a transaction."""
_ENTRIES_PER_SCRIPT_MAX: Final = 2_000
_GROUP_COST: Final = 20
"""A group takes Redis as long as so many more entries of a commit: at most 100 groups in a script."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: str


PLAIN_ENTRY: Final = re.compile(
    rb'{"offset":(-?\d+),"leader_epoch":(-?\d+),"topic_id":"([0-9a-f]*)","metadata":"([^"\\]*)",'
)
"""A stored value as `entry_json` writes it, without JSON escapes in the metadata."""

Write = Callable[[Gathered[QueuedBatch], bool], tuple[list[str], list[Arg]]]
"""Keys and arguments of a call, which may be repeated."""

OnFetched = Callable[[dict[str, Committed] | Failure], None]
"""Called once with the commits by field; a field without a commit is absent."""


OnValues = Callable[[Sequence[bytes | None] | Failure], None]
"""Called once with the stored values in the order of their fields, None where there is no commit."""


_UNUSABLE: Final = Unknown("the stored offsets could not be used")

logger = structlog.get_logger()


def offset_field(topic: str, partition: int) -> str:
    """The field of a partition in a group's `offsets`."""
    return f"{topic}:{partition}"


def split_field(text: str) -> tuple[str, int]:
    """Topic and partition of a field."""
    topic, _, partition = text.rpartition(":")
    return topic, int(partition)


def entry_json(offset: int, leader_epoch: int, topic_id: str, metadata: str) -> str:
    """The stored JSON without its end: the script appends the commit time, by Redis's clock, and the closing brace."""
    quoted = encode_basestring(metadata) if metadata else '""'
    return f'{{"offset":{offset},"leader_epoch":{leader_epoch},"topic_id":"{topic_id}","metadata":{quoted}'


def parse_entry(value: bytes) -> Committed:
    """Decode a stored value."""
    plain = PLAIN_ENTRY.match(value)
    if plain is not None:
        offset, leader_epoch, topic_id, metadata = plain.groups()
        return Committed(int(offset), int(leader_epoch), metadata.decode(), topic_id.decode())
    stored = json.loads(value)
    return Committed(stored["offset"], stored["leader_epoch"], stored["metadata"], stored["topic_id"])


def parse_values(fields: Sequence[str], values: Sequence[bytes | None]) -> dict[str, Committed]:
    """The commits by field; a field without a commit is absent."""
    return {name: parse_entry(value) for name, value in zip(fields, values, strict=True) if value is not None}


METADATA_UNITS_MAX: Final = 4_096
"""UTF-16 units of a commit's metadata: Kafka's default of `offset.metadata.max.bytes`, which counts these too."""


def metadata_fits(metadata: str, units_max: int) -> bool:
    """Whether commit metadata has at most `units_max` UTF-16 units."""
    if len(metadata) > units_max:
        return False
    return 2 * len(metadata) <= units_max or len(metadata.encode("utf-16-le", "surrogatepass")) // 2 <= units_max


class Offsets:
    """Queued commits and fetches of this broker's tick. A group's fetch sees every commit queued before it."""

    def __init__(
        self,
        store: Store,
        broker: BrokerName = nobody,
        lease_ends_ms: Callable[[], int] = lambda: WITHOUT_LEASE,
        prove: Prove | None = None,
    ) -> None:
        self.held: dict[str, deque[Any]] = {}
        """By group: commits that wait for a catalogue refresh, and the commits behind them. Used by the handlers."""
        self._store, self._is_sharded = store, store.is_sharded
        self._topics_version = 0
        self._asked = self._on_group_change = 0
        """Reads of the catalogue's version in the store; the newest one answered set `_topics_version`."""
        self._broker, self._lease_ends_ms, self._prove = broker, lease_ends_ms, prove
        self._expire = expirer(store, broker)
        self._faulty = FaultyGroups()
        self._loop = asyncio.get_event_loop()
        self._commits: dict[str, tuple[GroupKeys, list[tuple[Commit, OnCode]]]] = {}
        self._reads: dict[str, dict[tuple[str, ...] | None, _Read]] = {}
        self._first_s, self._have_own = 0.0, False
        """When the first of the queued commits came, and whether another came before, or much later."""
        self._scheduled = False

    def takes_metadata(self, metadata: str) -> bool:
        """Whether commit metadata is short enough."""
        return metadata_fits(metadata, METADATA_UNITS_MAX)

    @property
    def next_question(self) -> int:
        """The number of the version read that is sent ahead of the commits that are queued now."""
        return self._asked + 1

    def topics_were(self, version: int, question: int) -> bool:
        """Whether that read was answered, and no topic had changed since that version.

        In Redis Cluster another node answers the read, sometimes after the commits.
        """
        return self._on_group_change >= question and self._topics_version == version

    def commit(self, keys: GroupKeys, commit: Commit, on_code: OnCode) -> None:
        """Queue a commit for this tick's script. `on_code` gets a code that applies to all entries.

        The codes: COORDINATOR_NOT_AVAILABLE if this broker's lease ended before Redis evaluated the commit, another
        offset was committed while this one was on its way, or it is not proved as durable as `durability` says,
        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, or GROUP_ID_NOT_FOUND if the
        group does not exist and the commit names a generation.
        """
        if not self._commits:
            self._first_s, self._have_own = commit.arrived_s, False
        elif not 0 <= commit.arrived_s - self._first_s <= ONE_TIME_S:
            self._have_own = True
        queued = self._commits.get(keys.group)
        if queued is None:
            self._commits[keys.group] = keys, [(commit, on_code)]
            self._schedule()
        else:
            queued[1].append((commit, on_code))

    def commit_again(self, keys: GroupKeys, commit: Commit, on_code: OnCode) -> None:
        """As `commit`, at once, for one that was sent to the script of another type first."""
        self._ask_version()
        times_ms = commit_times_ms(self._store, keys.group, self._lease_ends_ms, commit.arrived_s)
        self._send_commits([(keys, [(commit, on_code)])], sent_again(times_ms), commit.arrived_s)

    def fetch(self, keys: GroupKeys, fields: Sequence[str], on_fetched: OnFetched) -> None:
        """Read the commits of `fields`."""
        if not fields:
            self._loop.call_soon(on_fetched, {})
            return
        self._read(keys, tuple(fields)).waiting.append(on_fetched)

    def fetch_values(self, keys: GroupKeys, fields: tuple[str, ...], on_values: OnValues) -> None:
        """Read the stored values of `fields`, of which there is one at least."""
        self._read(keys, fields).waiting_for_values.append(on_values)

    async def fetch_all(self, keys: GroupKeys) -> dict[bytes, bytes]:
        """Read all stored values by field; equal reads of the tick share them. Raises StoreUnavailable."""
        read: asyncio.Future[Any] = self._loop.create_future()
        self._read(keys, None).waiting_for_values.append(lambda one: None if read.done() else read.set_result(one))
        values: dict[bytes, bytes] | Failure = await read
        if isinstance(values, Failure):
            raise values.error
        return values

    def _read(self, keys: GroupKeys, fields: tuple[str, ...] | None) -> _Read:
        """The tick's read of these fields; sees every commit queued before it."""
        if keys.group in self._commits:
            self._ask_version()
            self._send_commits([self._commits.pop(keys.group)])
        reads = self._reads.setdefault(keys.group, {})
        read = reads.get(fields)
        if read is None:
            self._schedule()
            read = reads[fields] = _Read(fields or ())
            command: list[Arg] = ["HGETALL", keys.offsets] if fields is None else ["HMGET", keys.offsets, *fields]
            self._store.send(command, read.on_offsets)
        return read

    # -- the tick

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        self._reads.clear()
        commits, self._commits = self._commits, {}
        if commits:
            self._ask_version()
            if self._is_sharded or self._faulty.since_s:
                self._flush_apart(commits.values())
            else:
                self._send_commits(list(commits.values()))

    def _flush_apart(self, commits: Iterable[tuple[GroupKeys, list[QueuedBatch]]]) -> None:
        """Send each shard's commits by themselves in Redis Cluster, and those of each faulty group."""
        parts: dict[int | str, Gathered[QueuedBatch]] = {}
        for gathered in commits:
            keys = gathered[0]
            alone = self._faulty.since_s and keys in self._faulty
            shard = keys.shard_keys.shard if self._is_sharded else 0
            parts.setdefault(keys.group if alone else shard, []).append(gathered)
        for groups in parts.values():
            self._send_commits(groups)

    def _ask_version(self) -> None:
        """Read the catalogue's version ahead of the commits, to verify that their topics existed."""
        self._asked += 1
        question = self._asked

        def answered(reply: Any) -> None:
            if (reply is None or isinstance(reply, bytes)) and question > self._on_group_change:
                self._on_group_change, self._topics_version = question, int(reply or 0)

        self._store.send(["HGET", self._store.cluster_keys.info, "topics_version"], answered)

    def _send_commits(
        self, groups: Gathered[QueuedBatch], times_ms: tuple[int, int] | None = None, first_s: float = 0.0
    ) -> None:
        """Send commits in as few scripts as their groups and entries allow; a single commit is never split."""
        reply: HandOut = hand_out
        if self._prove is not None:
            reply = partial(hand_out_proved, self._prove, self._store.node(groups[0][0].group))
        have_own = False
        if times_ms is None:
            first_s, have_own = self._first_s, self._have_own
            times_ms = commit_times_ms(self._store, groups[0][0].group, self._lease_ends_ms, first_s)
        write = partial(self._arguments, times_ms, first_s, have_own)
        call, size = self._call(write, reply), 0
        for keys, queued in groups:
            self._reads.pop(keys.group, None)
            part: list[QueuedBatch] = []
            for one in queued:
                entry_count = len(one[0].entries) // 2
                large = entry_count > FEW_ENTRIES and is_large(one[0].entries)
                if call.groups and (large or size + entry_count > _ENTRIES_PER_SCRIPT_MAX):
                    call.send()
                    call, size, part = self._call(write, reply), 0, []
                if large:
                    call, size = self._call(write, reply, COMMIT_WHILE_FREE), _ENTRIES_PER_SCRIPT_MAX
                if not part:
                    call.groups.append((keys, part))
                    size += _GROUP_COST
                part.append(one)
                size += entry_count
        call.send()

    def _call(self, write: Write, reply: HandOut, script: Script = COMMIT_OFFSETS) -> ExpiringCall[QueuedBatch]:
        """A call whose repetitions have the times of the first: what was late stays late."""
        return ExpiringCall(self._store, self._expire, script, write, reply, self._faulty)

    def _arguments(
        self, times_ms: tuple[int, int], first_s: float, have_own: bool, groups: Gathered[QueuedBatch], again: bool
    ) -> tuple[list[str], list[Arg]]:
        """`first_s` is when the commit came whose times are given; `have_own`: others at other times."""
        times: tuple[Arg, Arg] = times_ms
        if again or have_own:
            times = times_of_each(groups, sent_again(times_ms) if again else times_ms, first_s)
        return commit_arguments(groups, GROUP_EVENTS_MAX, self._broker(), times)


class _Read:
    """One read of a group's offsets, shared by all equal requests of the tick."""

    __slots__ = ("_fields", "waiting", "waiting_for_values")

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.waiting: list[OnFetched] = []
        self.waiting_for_values: list[OnValues] = []
        self._fields = fields

    def on_offsets(self, reply: Any) -> None:
        failure = None if isinstance(reply, list | dict) else failure_of(reply)
        result = reply if failure is None else failure
        for on_values in self.waiting_for_values:
            try:
                on_values(result)
            except Exception:  # noqa: BLE001 - logged; the other requests are answered
                fail_waiter(on_values, _UNUSABLE)
        if not self.waiting:
            return
        if failure is None:
            try:
                result = parse_values(self._fields, reply)
            except Exception:
                logger.exception("offsets_not_readable")
                result = _UNUSABLE
        for on_fetched in self.waiting:
            try:
                on_fetched(result)
            except Exception:  # noqa: BLE001 - logged; the other requests are answered
                fail_waiter(on_fetched, _UNUSABLE)


async def committed_partitions(store: Store, keys: GroupKeys) -> tuple[str, list[tuple[str, int]]]:
    """A group's own id, "" if there is none, and its partitions with committed offsets. Raises StoreUnavailable."""
    own_id, fields = await asyncio.gather(store.command("HGET", keys.group, "id"), store.command("HKEYS", keys.offsets))
    return (own_id or b"").decode(), [split_field(field.decode()) for field in fields]


async def delete(
    store: Store,
    keys: GroupKeys,
    broker: str,
    topics: Mapping[str, Sequence[int]],
    times_ms: tuple[int, int] = (WITHOUT_LEASE, UNKNOWN_TIME),
) -> set[str]:
    """Delete a group's offsets of partitions, also those of open transactions (KIP-496).

    `times_ms` are of `commit_times_ms`. Returns the topics refused because they are subscribed.
    Raises GroupIdNotFound, NonEmptyGroup (members of another protocol type than `consumer`), StoreUnavailable,
    CoordinatorNotAvailable (the broker's lease ended, or it was late and newer offsets were committed).
    """
    extend_sessions_after_outage(store, keys)
    args = [*group_script_args(store, keys, broker), *times_ms]
    for topic, partitions in topics.items():
        args += (topic, len(partitions), *partitions)
    key_names = [*group_script_keys(keys), keys.offsets, keys.staged]
    refused = await store.run(DELETE_OFFSETS, key_names, *args)
    store.changed_groups.add(keys.ref)
    return {topic for topic, code in zip(topics, refused, strict=True) if code}
