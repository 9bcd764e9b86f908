"""A consistent snapshot of a group for diagnosis, with more detail than DescribeGroups returns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidegate.diagnosis.assigned_members import known, shares_of, with_members
from tidegate.diagnosis.snapshot_model import (
    CommitSnapshot,
    DeadLettersSnapshot,
    GroupSnapshot,
    MemberPhase,
    MemberSnapshot,
    Partitions,
    PendingMemberSnapshot,
    ShareSnapshot,
)
from tidegate.errors import CoordinatorLoadInProgress, GroupIdNotFound
from tidegate.groups.configs import in_force
from tidegate.groups.consumer import stored as consumer_stored
from tidegate.groups.directory import metadata_of
from tidegate.groups.expiry import expire_group
from tidegate.groups.model import GroupState
from tidegate.groups.offsets import UNSTABLE_FIELD, split_field
from tidegate.groups.share import stored as share_stored
from tidegate.groups.share.partitions import partitions_of
from tidegate.groups.share.records import ShareRecords
from tidegate.settings import Settings
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.redis_clock import time_ms
from tidegate.store.store import Store

__all__ = [
    "CommitSnapshot",
    "GroupSnapshot",
    "MemberPhase",
    "MemberSnapshot",
    "MetadataDecoders",
    "Partitions",
    "PendingMemberSnapshot",
    "ShareSnapshot",
    "read_snapshot",
]

_ASSIGNED: Final = (*consumer_stored.EPOCH_TYPES, share_stored.TYPE)
"""Types of groups whose partitions the brokers assign."""
_UNSTABLE: Final = UNSTABLE_FIELD.encode()
_ATTEMPTS_MAX: Final = 10
_MARKS: Final = ("version", "round", "generation", "joined_count", "awaiting_sync")
"""Fields whose change means that two snapshots differ."""


@dataclass(frozen=True, slots=True)
class MetadataDecoders:
    """Decoders of the members' opaque bytes; they return None for bytes that they cannot decode."""

    topics: Callable[[bytes], frozenset[str] | None]
    partitions: Callable[[bytes], Mapping[str, list[int]] | None]


async def read_snapshot(
    store: Store, keys: GroupKeys, broker: str, blobs: MetadataDecoders, now_ms: int | None = None
) -> GroupSnapshot:
    """Expire what is overdue, then read the group without a script; retry if the group changed meanwhile.

    `now_ms` replaces Redis's clock in tests that step it. Raises GroupIdNotFound, StoreUnavailable, and
    CoordinatorLoadInProgress if the group changes during every retry.
    """
    await expire_group(store, keys, broker)
    marks: list[Arg] = ["HMGET", keys.group, *_MARKS]
    for _ in range(_ATTEMPTS_MAX):
        *read, time, after = await read_in_order(
            store, store.read,
            ("HGETALL", keys.group),
            ("HGETALL", keys.members),
            ("HGETALL", keys.subscriptions),
            ("HGETALL", keys.assignments),
            ("ZRANGE", keys.sessions, 0, -1, "WITHSCORES"),
            ("HGETALL", keys.pending),
            ("HGETALL", keys.offsets),
            ("HGETALL", keys.consumers),
            ("HGETALL", keys.targets),
            ("ZRANGE", keys.consumer_sessions, 0, -1, "WITHSCORES"),
            ("ZRANGE", keys.revocations, 0, -1, "WITHSCORES"),
            ("HGETALL", keys.configs),
            ("TIME",),
            marks,
        )  # fmt: skip
        head = read[0]
        if not head:
            raise GroupIdNotFound
        if [head.get(mark.encode()) for mark in _MARKS] == after:
            now = time_ms(time) if now_ms is None else now_ms
            group = await asyncio.to_thread(_built, store.settings, keys, blobs, now, read)
            if group.type == share_stored.TYPE:
                return replace(group, shares=await _shares(store, keys), dead_letters=await _dead_letters(store, keys))
            return group
    raise CoordinatorLoadInProgress("the group changes faster than it can be read")


def _built(
    settings: Settings, keys: GroupKeys, blobs: MetadataDecoders, now_ms: int, read: Sequence[Any]
) -> GroupSnapshot:
    """The group of what was read, but for the partitions of a share group. For a thread: 12,000 commits take 100 ms."""
    (
        head, members, subscriptions, assignments, sessions, pending, offsets,
        records, targets, new_sessions, revocations, configs,
    ) = read  # fmt: skip
    group = _group(keys, known(head), now_ms)
    if group.type in _ASSIGNED:
        group = replace(group, configs=in_force(settings, group.type, known(configs)))
        ends = {name: int(score) for name, score in new_sessions}
        group = with_members(group, head, records, targets, ends, {one: int(at) for one, at in revocations})
    if group.type == share_stored.TYPE:
        return group
    ends = {name: int(score) for name, score in sessions}
    return _filled(group, head, members, subscriptions, assignments, ends, pending, offsets, blobs)


async def _shares(store: Store, keys: GroupKeys) -> tuple[ShareSnapshot, ...]:
    found = await partitions_of(store, keys)
    read = await ShareRecords(store).in_flight(keys, list(found))
    return await asyncio.to_thread(shares_of, found, read)


async def _dead_letters(store: Store, keys: GroupKeys) -> DeadLettersSnapshot:
    count, first = await read_in_order(
        store, store.read, ("XLEN", keys.dead_letters), ("XRANGE", keys.dead_letters, "-", "+", "COUNT", 1)
    )
    return DeadLettersSnapshot(count, int(first[0][0].split(b"-")[0]) if first else None)


def _group(keys: GroupKeys, fields: Mapping[str, str], now_ms: int) -> GroupSnapshot:
    def number(name: str) -> int:
        return int(fields.get(name) or 0)

    def text(name: str) -> str:
        return fields.get(name, "")

    known = fields.get("subscribed_generation") == fields.get("generation")
    return GroupSnapshot(
        group_id=keys.group_id,
        org=keys.org,
        id=text("id"),
        tier=text("tier"),
        locator=text("locator"),
        type=text("type"),
        state=text("state"),
        prev_state=text("prev_state"),
        protocol_type=text("protocol_type"),
        protocol=text("protocol"),
        leader=text("leader"),
        reason=text("reason"),
        state_since_ms=number("state_since"),
        created_ms=number("created"),
        generation=number("generation"),
        join_deadline_ms=number("join_deadline"),
        sync_deadline_ms=number("sync_deadline"),
        subscribed=tuple(json.loads(fields["subscribed"])) if known and "subscribed" in fields else None,
        key=keys.group,
        now_ms=now_ms,
    )


def _filled(
    group: GroupSnapshot,
    head: Mapping[bytes, bytes],
    members: Mapping[bytes, bytes],
    subscriptions: Mapping[bytes, bytes],
    assignments: Mapping[bytes, bytes],
    ends: Mapping[bytes, int],
    pending: Mapping[bytes, bytes],
    offsets: Mapping[bytes, bytes],
    blobs: MetadataDecoders,
) -> GroupSnapshot:
    round_now, grace_granted_ms = int(head.get(b"round") or 0), int(head.get(b"spared_at") or 0)
    return replace(
        group,
        members=group.members
        or tuple(
            _member(
                group,
                round_now,
                grace_granted_ms,
                name,
                json.loads(record),
                subscriptions,
                assignments,
                ends,
                blobs,
            )
            for name, record in sorted(members.items())
        ),
        pending=tuple(
            PendingMemberSnapshot(name.decode(), asked["client_id"], asked["client_host"], ends.get(name, 0))
            for name, asked in ((name, json.loads(value)) for name, value in sorted(pending.items()))
        ),
        commits=tuple(
            sorted(
                (_commit(name.decode(), json.loads(value)) for name, value in offsets.items() if name != _UNSTABLE),
                key=_place,
            )
        ),
    )


def _place(commit: CommitSnapshot) -> tuple[str, int]:
    return commit.topic, commit.partition


def _commit(field: str, stored: Mapping[str, Any]) -> CommitSnapshot:
    topic, partition = split_field(field)
    return CommitSnapshot(topic, partition, stored["offset"], stored["commit_time"], stored["metadata"])


def _member(
    group: GroupSnapshot,
    round_now: int,
    grace_granted_ms: int,
    name: bytes,
    record: Mapping[str, Any],
    subscriptions: Mapping[bytes, bytes],
    assignments: Mapping[bytes, bytes],
    ends: Mapping[bytes, int],
    blobs: MetadataDecoders,
) -> MemberSnapshot:
    phase = _member_phase(group.state, record["join_round"] == round_now, record["sync_generation"] == group.generation)
    held = phase == "joined" or phase == "waiting"
    ends_ms, timeout_ms = ends.get(name, 0), record["session_timeout_ms"]
    granted_grace = (
        grace_granted_ms > 0 and ends_ms == grace_granted_ms + 2 * timeout_ms
    )  # as grant_session_grace.lua sets it
    protocol = group.protocol if group.protocol in record["protocols"] else next(iter(record["protocols"]), "")
    metadata = metadata_of(subscriptions.get(name, b""), protocol)
    owned = blobs.partitions(assignments.get(name, b""))
    return MemberSnapshot(
        member_id=name.decode(),
        instance_id=record["instance_id"] or None,
        client_id=record["client_id"],
        client_host=record["client_host"].removeprefix("/"),
        client_software=record.get("client_software", ""),
        session_timeout_ms=timeout_ms,
        rebalance_timeout_ms=record["rebalance_timeout_ms"],
        joined_ms=record["joined_at"],
        last_contact_ms=None if held or granted_grace else ends_ms - timeout_ms,
        session_ends_ms=ends_ms,
        phase=phase,
        leads=name.decode() == group.leader,
        topics=blobs.topics(metadata) if group.protocol_type == "consumer" else None,
        owned=None if owned is None else {topic: tuple(sorted(parts)) for topic, parts in sorted(owned.items())},
    )


def _member_phase(state: str, joined: bool, synced: bool) -> MemberPhase:
    if state == GroupState.PREPARING:
        return "joined" if joined else "missing"
    if synced:
        return "waiting" if state == GroupState.COMPLETING else "synced"
    return "unsynced"
