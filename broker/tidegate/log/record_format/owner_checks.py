"""Whether an owner's record is current: by a classic group's generation, or by the member's record (KIP-848).

What is read is used for a second. Nothing depends on it but whether a fetch counts for a group: the script of the read
compares the owner's record itself.
"""

from __future__ import annotations

import asyncio
import json
from typing import Final, NamedTuple

from tidegate.log.owners import Owned, Owner
from tidegate.store.store import Store

_CHECKED_S: Final = 1.0
_REBALANCING: Final = (b"PreparingRebalance", b"CompletingRebalance")
_EMPTY: Final = b"Empty"
_CONSUMER: Final = b"consumer"
_GROUPS_MAX: Final = 10_000
"""Groups and members remembered; beyond it all are read again."""


class _Group(NamedTuple):
    """A group as of a read: when to read again, its type, whether it has members, whether it rebalances."""

    until_s: float
    is_consumer: bool
    has_members: bool
    rebalances: bool
    id: str
    generation: int


class _Member(NamedTuple):
    """The partitions of a member of a KIP-848 group as of a read: topic id in hex, and index."""

    until_s: float
    partitions: frozenset[tuple[str, int]]


class OwnerChecks:
    """What this broker has read of the groups that read streams of format `record`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_event_loop()
        self._groups: dict[tuple[str, str], _Group] = {}
        self._members: dict[tuple[str, str, str], _Member] = {}

    async def is_current(self, org: str, owned: Owned, topic_hex: str, index: int) -> bool:
        """Whether the owner of a partition is a member of its group, with this partition. Raises StoreUnavailable."""
        owner, key, now_s = owned.owner, (org, owned.group_id), self._loop.time()
        group = self._groups.get(key)
        if group is None or now_s >= group.until_s or not _may_own(group, owner):
            group = await self._read_group(org, owned.group_id)
            self._remember()
            self._groups[key] = group
        if not _may_own(group, owner) or not group.is_consumer:
            return _may_own(group, owner)
        member_key = org, owned.group_id, owner.member_id
        member = self._members.get(member_key)
        if member is None or now_s >= member.until_s or (topic_hex, index) not in member.partitions:
            member = self._members[member_key] = await self._read_member(org, owned.group_id, owner.member_id)
        return (topic_hex, index) in member.partitions

    async def _read_group(self, org: str, group_id: str) -> _Group:
        keys = self._store.stored_group_keys(org, group_id)
        own_id, generation, state, kind = await self._store.command(
            "HMGET", keys.group, "id", "generation", "state", "type"
        )
        has_members = state is not None and state != _EMPTY
        until_s = self._loop.time() + _CHECKED_S
        is_consumer = kind == _CONSUMER
        text = (own_id or b"").decode()
        return _Group(until_s, is_consumer, has_members, state in _REBALANCING, text, int(generation or -1))

    async def _read_member(self, org: str, group_id: str, member_id: str) -> _Member:
        """Partitions that the member owns, or has not confirmed to have given up."""
        record = await self._store.command("HGET", self._store.stored_group_keys(org, group_id).consumers, member_id)
        member = json.loads(record) if record else {"assigned": {}, "revoking": {}}
        partitions = frozenset(
            (topic_id, int(index))
            for by_topic in (member["assigned"], member["revoking"])
            for topic_id, indexes in by_topic.items()
            for index in indexes
        )
        return _Member(self._loop.time() + _CHECKED_S, partitions)

    def _remember(self) -> None:
        if len(self._groups) + len(self._members) > _GROUPS_MAX:
            self._groups.clear()
            self._members.clear()


def _may_own(group: _Group, owner: Owner) -> bool:
    """Whether an owner's record is of this group; of a classic group's generation, or the one before in a rebalance."""
    if not group.has_members or group.id != owner.id:
        return False
    if group.is_consumer:
        return True
    return group.generation == owner.generation or (group.rebalances and group.generation == owner.generation + 1)
