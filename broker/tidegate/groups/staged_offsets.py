"""Offsets that a producer commits in its transaction: staged beside the group's offsets until the transaction ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidegate.groups.commits import WITHOUT_LEASE, Commit, commit_times_ms, is_large
from tidegate.groups.identity import candidate
from tidegate.groups.offsets import parse_entry, split_field
from tidegate.store.keys import GroupKeys
from tidegate.store.scripts import Script
from tidegate.store.slices import slices
from tidegate.store.store import Store

STAGE_OFFSETS: Final = Script("groups/stage_offsets")
STAGE_WHILE_FREE: Final = STAGE_OFFSETS.refused_when_full()
END_STAGED: Final = Script("groups/end_staged")

_END_RETENTION_MS: Final = 86_400_000
"""How long a group remembers the last end of a producer: a request that is later than that can do no harm, because
its broker was started again meanwhile."""
_PARSED_AT_ONCE: Final = 500


async def stage(
    store: Store,
    keys: GroupKeys,
    commit: Commit,
    producer_id: int,
    ended_ms: int,
    lease_ends_ms: Callable[[], int] = lambda: WITHOUT_LEASE,
) -> None:
    """Stage the commit's entries, of at most 1,000 partitions; `ended_ms` is that of the producer's transaction before.

    Raises IllegalGeneration, StaleMemberEpoch (the same in a KIP-848 group), UnknownMemberId, FencedInstanceId,
    GroupIdNotFound (a share group, or none and the commit has a generation), ConcurrentTransactions (the transaction
    ended), CoordinatorNotAvailable (the broker's lease ended, or it was late), StoreUnavailable.
    """
    times_ms = commit_times_ms(store, keys.group, lease_ends_ms, commit.arrived_s)
    await store.run(
        STAGE_WHILE_FREE if is_large(commit.entries) else STAGE_OFFSETS,
        [keys.group, keys.members, keys.instances, keys.offsets, keys.staged, keys.shard_keys.groups,
         keys.consumers, keys.shard_keys.ended_transactions],
        keys.ref, candidate(keys), producer_id, ended_ms, commit.generation, commit.member_id,
        "" if commit.instance_id is None else f"={commit.instance_id}", *times_ms, *commit.entries,
    )  # fmt: skip


class AppliedOffset(NamedTuple):
    """An offset that a transaction committed; the topic id is in hex."""

    topic: str
    partition: int
    topic_hex: str
    offset: int


@dataclass(frozen=True, slots=True)
class Ended:
    """What an end applied; it is not all if others, or calls whose replies were lost, have applied some before."""

    applied: list[AppliedOffset]
    is_all: bool


async def end(store: Store, keys: GroupKeys, producer_id: int, ended_ms: int, is_commit: bool) -> Ended:
    """Apply or drop what the producer staged in the transaction that was decided at `ended_ms`, in parts."""
    key_names = [keys.offsets, keys.staged, keys.shard_keys.ended_transactions]
    applied: list[AppliedOffset] = []
    is_all, has_more = None, 1
    while has_more:
        has_more, is_begun, *found = await store.run(
            END_STAGED, key_names, producer_id, ended_ms, int(is_commit), _END_RETENTION_MS, keys.ref
        )
        is_all = not is_begun if is_all is None else is_all
        applied += map(_applied, found[::3], found[1::3], found[2::3])
    store.changed_groups.add(keys.ref)
    return Ended(applied, bool(is_all))


def _applied(field: bytes, topic_hex: bytes, offset: bytes) -> AppliedOffset:
    return AppliedOffset(*split_field(field.decode()), topic_hex.decode(), int(offset))


async def committed(store: Store, keys: GroupKeys) -> list[AppliedOffset]:
    """All offsets of the group: what is applied, where `Ended.is_all` is not set."""
    stored = await store.command("HGETALL", keys.offsets)
    found: list[AppliedOffset] = []
    async for part in slices(stored.items(), _PARSED_AT_ONCE):
        for name, value in part:
            topic, partition = split_field(name.decode())
            one = parse_entry(value)
            found.append(AppliedOffset(topic, partition, one.topic_id, one.offset))
    return found
