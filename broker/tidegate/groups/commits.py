"""One OffsetCommit, and what its script is given: which script takes it, when it came, whose offsets.

**Much metadata.** Offsets must be stored when memory ends, or consumers would repeat records; a commit adds about 150
bytes a partition, once. Metadata may add 4 kB a partition each time, and would take what the other groups need: a full
Redis refuses commits with much of it.

**Times.** By them a script recognises that it was delayed on its way.

**Record topics.** Of partitions of format record the script that stores a commit also acknowledges it in their Redis
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final, NamedTuple

from tidegate.groups.identity import candidate
from tidegate.groups.tick_batch import Gathered
from tidegate.store.link import Arg
from tidegate.store.store import Store

METADATA_MAX: Final = 16_384
"""Characters of metadata in a commit that a full Redis stores."""
FEW_ENTRIES: Final = 4
"""Partitions whose metadata cannot exceed that by default."""
_PLAIN_ENTRY: Final = 200
"""Characters of a field and of its value without metadata, at most in the mean."""
WITHOUT_LEASE: Final = 0
"""The lease end of a caller without a broker lease."""
UNKNOWN_TIME: Final = 0
"""When a script was sent, where Redis's clock is not known."""
ONE_TIME_S: Final = 0.005
"""Commits that came within this time are sent with that of the first: it is the error of a broker's clock."""


OnCode = Callable[[int], None]
"""Called once with the code of a commit; COORDINATOR_NOT_AVAILABLE while Redis is."""


def is_large(entries: Sequence[str]) -> bool:
    """Whether the metadata of a commit's fields and values is above METADATA_MAX."""
    return sum(map(len, entries)) > METADATA_MAX + _PLAIN_ENTRY * len(entries) // 2


def lease_end_ms(store: Store, group_key: str, lease_ends_ms: Callable[[], int]) -> int:
    """When the lease ends, by the clock of the server that has the group: in Redis Cluster another than the lease's."""
    ends_ms = lease_ends_ms()
    if store.cluster is None or ends_ms == WITHOUT_LEASE:
        return ends_ms
    clock = store.node(group_key).clock
    return ends_ms - store.clock.now_ms() + clock.now_ms() if clock.is_known else WITHOUT_LEASE


def commit_times_ms(
    store: Store, group_key: str, lease_ends_ms: Callable[[], int], arrived_s: float
) -> tuple[int, int]:
    """By which the scripts recognise a commit that was delayed on its way: when the lease ends, and when it came.

    Both by the clock of the server that has the group; the second is 0 where that is not known yet.
    """
    if store.is_sharded:
        clock, ends_ms = store.node(group_key).clock, lease_end_ms(store, group_key, lease_ends_ms)
    else:
        clock, ends_ms = store.clock, lease_ends_ms()
    return ends_ms, int((arrived_s + clock.offset_s) * 1000) if clock.is_known else UNKNOWN_TIME


def sent_again(times_ms: tuple[int, int]) -> tuple[int, int]:
    """The times of a commit that is sent again: however soon that is, commits behind it may be stored by now."""
    ends_ms, arrived_ms = times_ms
    return ends_ms, -abs(arrived_ms)


def times_of_each(groups: Gathered[QueuedBatch], times_ms: tuple[int, int], first_s: float) -> tuple[int, str]:
    """The times of a call whose commits came at different times; `times_ms` are of one that came at `first_s`.

    Otherwise a commit would be taken for as late as the one beside it that had waited.
    """
    ends_ms, first_ms = times_ms
    if first_ms == UNKNOWN_TIME:
        return ends_ms, str(UNKNOWN_TIME)
    sign = -1 if first_ms < 0 else 1
    delays_ms = (int((commit.arrived_s - first_s) * 1000) for _, queued in groups for commit, _ in queued)
    return ends_ms, " ".join(str(first_ms + sign * one_ms) for one_ms in delays_ms)


class RecordCommit(NamedTuple):
    """One partition of a commit, on one Redis server; on Redis Cluster a second script acknowledges."""

    records: str
    meta: str
    readers: str
    group_id: str
    before: str
    """The stream id before the committed offset."""


def add_record_commits(commits: Iterable[Sequence[RecordCommit]], key_names: list[str], args: list[Arg]) -> None:
    """Append the partitions of a call's commits to its KEYS and ARGV, as `lib/acknowledge_commits` reads them."""
    for number, partitions in enumerate(commits):
        for one in partitions:
            key_names += (one.records, one.meta, one.readers)
            args += (number, one.group_id, one.before)


@dataclass(slots=True)
class Commit:
    """One OffsetCommit for one group. `entries` is flat: field, `entry_json`, field, `entry_json`, ..."""

    generation: int
    member_id: str
    instance_id: str | None
    entries: list[str] = field(default_factory=list)
    retention_ms: int = -1
    """Retention of the offsets, set by clients of version 2 to 4, ms; -1: the broker's setting applies."""
    client_id: str = ""
    client_host: str = ""
    records: Sequence[RecordCommit] = ()
    """Of its partitions, those of format record that its script acknowledges."""
    arrived_s: float = field(default_factory=perf_counter)
    """When its request came, by `perf_counter`."""


QueuedBatch = tuple[Commit, OnCode]
"""A commit and the callback for its code."""


def commit_arguments(
    groups: Gathered[QueuedBatch],
    events_max: int,
    broker: str,
    times_ms: tuple[Arg, Arg] = (WITHOUT_LEASE, UNKNOWN_TIME),
) -> tuple[list[str], list[Arg]]:
    """KEYS and ARGV of the script. `broker` is the broker name in events, `times_ms` are of `commit_times_ms`.

    The second of them may be one for each commit, with spaces between them (`times_of_each`).
    """
    key_names, args = list[str](), list[Arg]((events_max, broker, *times_ms))
    has_records: Sequence[RecordCommit] = ()
    for keys, queued in groups:
        shard = keys.shard_keys
        key_names += (keys.group, keys.members, keys.instances, keys.sessions, keys.offsets, shard.groups, shard.events)
        # Only a commit without a generation can create a group or reset its offsets: only then is the client named.
        simple = next((commit for commit, _ in queued if commit.generation < 0), None)
        made = who = ""
        if simple is not None:
            made, who = candidate(keys), f"/{simple.client_host} {simple.client_id}"
        args += (keys.ref, made, who, len(queued))
        for commit, _ in queued:
            entries, instance_id = commit.entries, commit.instance_id
            args += (
                commit.generation,
                commit.member_id,
                "" if instance_id is None else f"={instance_id}",
                commit.retention_ms,
                len(entries) // 2,
            )
            args += entries
            has_records = has_records or commit.records
    if has_records:
        args.append("")
        add_record_commits((commit.records for _, queued in groups for commit, _ in queued), key_names, args)
    return key_names, args
