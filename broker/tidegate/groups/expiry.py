"""Overdue sessions, joins and syncs: expire one group, and sweep the groups that no request reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog

from tidegate.cluster.deadlines import Deadlines, Due
from tidegate.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, KafkaError, StoreUnavailable
from tidegate.groups.expire_and_retry import (
    BrokerName,
    Expire,
    extend_sessions_after_outage,
    group_script_args,
    group_script_keys,
    nobody,
)
from tidegate.groups.group_index import decode_name, group_of
from tidegate.groups.share.partitions import clamp_locks
from tidegate.store.calls import gather_each, gather_readable, log_faulty
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.outcome import Failure, FaultyKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet
from tidegate.telemetry.background_tasks import BackgroundTasks

EXPIRE_GROUP = Script("groups/expire_group")
GRANT_SESSION_GRACE = Script("groups/grant_session_grace")
CLAMP_DEADLINES = Script("groups/clamp_deadlines")
CLAMP_EPOCH_DEADLINES = Script("groups/clamp_epoch_deadlines")

KINDS = frozenset({"session", "join", "sync"})
VERIFY_MS: Final = 1_000
"""Between the shards whose indices are compared, one after the other."""
_SESSION: Final = "session"
CLASSIC_KIND: Final = "classic"
"""The type of groups whose deadlines are of `KINDS`."""
CONSUMER_KIND: Final = "consumer"
"""The kind of all deadlines of KIP-848 groups."""
SHARE_KIND: Final = "share"
"""The kind of all deadlines of share groups (KIP-932)."""
STREAMS_KIND: Final = "streams"
"""The kind of all deadlines of streams groups (KIP-1071)."""
DEAD_LETTERS_KIND: Final = "dead-letters"
"""The kind of the deadline of a share group's dead letters (KIP-1191)."""
_EMPTY: Final = b" Empty "
_CLASSIC: Final = b"classic "
_SHARE: Final = b"share "
_AT_ONCE: Final = 200

logger = structlog.get_logger()

ExpireOne = Callable[[GroupKeys], Awaitable[None]]
"""Expire what is overdue in one group of another type than classic."""


def expirer(store: Store, broker: BrokerName = nobody) -> Expire:
    """A function that applies everything overdue in one group; `broker` is the broker name in events."""

    def expire(keys: GroupKeys, on_expired: Callable[[Failure | None], None]) -> None:
        def answered(reply: Any) -> None:
            on_expired(reply if isinstance(reply, Failure) else None)

        args = group_script_args(store, keys, broker())
        extend_sessions_after_outage(store, keys)
        store.send_script(EXPIRE_GROUP, group_script_keys(keys), args, answered)

    return expire


async def expire_group(store: Store, keys: GroupKeys, broker: str = "") -> None:
    """Apply whatever is overdue in one group. Raises StoreUnavailable."""
    extend_sessions_after_outage(store, keys)
    await store.run(EXPIRE_GROUP, group_script_keys(keys), *group_script_args(store, keys, broker))


async def grant_session_grace(store: Store, shard: int) -> int:
    """Extend every session of a shard's groups by one session timeout, because the broker named for it went silent.

    Returns the number of members. Raises StoreUnavailable.
    """
    groups, granted_grace = await _groups_with_members(store, shard), 0
    for at in range(0, len(groups), _AT_ONCE):
        calls = {keys.ref: _grant_to_group(store, keys) for keys, _ in groups[at : at + _AT_ONCE]}
        granted, faulty = await gather_readable(calls)
        log_faulty("session-grace", faulty)
        granted_grace += sum(granted.values())
    return granted_grace


async def _grant_to_group(store: Store, keys: GroupKeys) -> int:
    replies = await asyncio.gather(*(store.run(GRANT_SESSION_GRACE, names) for names in _session_keys(keys)))
    return sum(count for (count,) in replies)


def _session_keys(keys: GroupKeys) -> tuple[list[str], list[str]]:
    """The keys of members and sessions, by protocol; a group has members of one of them."""
    return [keys.group, keys.members, keys.sessions], [keys.group, keys.consumers, keys.consumer_sessions]


async def clamp_deadlines(store: Store, shard: int, broker: str = "") -> int:
    """Move deadlines that lie too far ahead back to their longest allowed distance, after Redis's clock stepped back.

    Returns the number of deadlines. Raises StoreUnavailable.
    """
    groups, clamped = await _groups_with_deadlines(store, shard), 0
    for at in range(0, len(groups), _AT_ONCE):
        calls = {keys.ref: _clamp_group(store, keys, kind, broker) for keys, kind in groups[at : at + _AT_ONCE]}
        counts, faulty = await gather_readable(calls)
        log_faulty("deadlines-after-clock-step", faulty)
        clamped += sum(counts.values())
    return clamped


async def _clamp_group(store: Store, keys: GroupKeys, kind: str, broker: str) -> int:
    """Clamp the deadlines of one group; `kind` is the kind of them all, or "classic". Returns their number."""
    if kind == CLASSIC_KIND:
        names, args = group_script_keys(keys), group_script_args(store, keys, broker)
        (clamped,) = await store.run(CLAMP_DEADLINES, names, *args)
    else:
        names = [keys.group, keys.consumers, keys.consumer_sessions, keys.revocations, keys.shard_keys.deadlines]
        (clamped,) = await store.run(CLAMP_EPOCH_DEADLINES, names, f"{kind}|{keys.ref}")
    return int(clamped) + (await clamp_locks(store, keys) if kind == SHARE_KIND else 0)


async def _groups_with_members(store: Store, shard: int) -> list[tuple[GroupKeys, str]]:
    """The groups of a shard that have members, each with its type."""
    listed = await store.command("HGETALL", store.shard_keys(shard).groups)
    return _of_kinds(store, {name: kind for name, kind in listed.items() if _EMPTY not in kind})


async def _groups_with_deadlines(store: Store, shard: int) -> list[tuple[GroupKeys, str]]:
    """The same, and the empty groups with member ids that were assigned and have not joined, or with locks."""
    listed, due = await _read_indices(store, shard)
    assigned = {one.name for one in due if one.kind == _SESSION}

    def has_deadlines(name: bytes, kind: bytes) -> bool:
        return _EMPTY not in kind or kind.startswith(_SHARE) or decode_name(name) in assigned

    return _of_kinds(store, {name: kind for name, kind in listed.items() if has_deadlines(name, kind)})


def _of_kinds(store: Store, listed: Mapping[bytes, bytes]) -> list[tuple[GroupKeys, str]]:
    return [
        (group_of(store, decode_name(name)), kind.partition(b" ")[0].decode(errors="replace"))
        for name, kind in listed.items()
    ]


async def _read_indices(store: Store, shard: int) -> tuple[dict[bytes, bytes], set[Due]]:
    """The shard's groups with their types and states, and its deadlines. Raises StoreUnavailable."""
    keys = store.shard_keys(shard)
    listed, deadlines = await read_in_order(
        store, store.command, ("HGETALL", keys.groups), ("ZRANGE", keys.deadlines, 0, -1)
    )
    return listed, {one for item in deadlines if (one := Due.parse(item)) is not None}


async def verify_index(store: Store, shard: int, broker: str = "") -> int:
    """Restore what a shard's two indices, its groups and its deadlines, lack of each other (a deleted key).

    Without its deadline a group whose members are all gone would never expire; without its name it would not be
    listed. Returns the number of groups. Raises StoreUnavailable.
    """
    listed, due = await _read_indices(store, shard)
    with_members = {
        decode_name(name) for name, kind in listed.items() if _EMPTY not in kind and kind.startswith(_CLASSIC)
    }
    lacking = with_members - {one.name for one in due if one.kind == _SESSION}
    lacking |= {one.name for one in due if one.kind in KINDS} - {decode_name(name) for name in listed}
    for ref in sorted(lacking):
        try:
            await expire_group(store, group_of(store, ref), broker)
        except FaultyKeys as error:
            log_faulty("group-index", {ref: error})
    return len(lacking)


class GroupExpiry:
    """Expires groups whose deadlines pass while no request reads them.

    `prefers(shard)`: whether this broker is responsible for a shard; it sweeps other brokers' shards only when
    their deadlines are late. Groups with waiting requests do not depend on the sweep: their refreshes expire them.
    `expire_others` has what expires groups of other types than classic, by the kind of their deadlines.
    """

    def __init__(
        self,
        store: Store,
        prefers: Callable[[int], bool],
        broker: BrokerName = nobody,
        expire_others: Mapping[str, ExpireOne] | None = None,
    ) -> None:
        self.broker = broker
        self._expire_others = expire_others or {}
        self._store = store
        self._prefers = prefers
        self.deadlines = Deadlines(store, prefers, self._expire, self._clamp)
        self._granting_grace = TaskSet()
        self._verified = 0
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        """Start the sweep."""
        await self.deadlines.start()
        self._loops.every("group-index", VERIFY_MS, self._verify_next)

    async def close(self) -> None:
        """Stop the sweep."""
        await self._loops.close()
        await self.deadlines.close()
        self._granting_grace.cancel()

    def broker_silent(self, shards: list[int]) -> None:
        """Extend the sessions of shards that a silent broker was named for and this broker has to look after now."""
        self._granting_grace.start(self._grant_session_grace(shards))

    async def _grant_session_grace(self, shards: list[int]) -> None:
        granted_grace, left = 0, dict[int, str]()
        for shard in shards:
            try:
                granted_grace += await grant_session_grace(self._store, shard)
            except StoreUnavailable as error:  # in Redis Cluster the nodes of other shards may be available
                left[shard] = str(error)
        if left:
            logger.warning("session_grace_not_granted", shards=list(left), reason=next(iter(left.values())))
        if granted_grace:
            logger.info("session_grace_granted", members=granted_grace)

    async def _verify_next(self) -> None:
        shard, self._verified = self._verified, (self._verified + 1) % self._store.settings.coordinator_shards
        if self._prefers(shard):
            await verify_index(self._store, shard, self.broker())

    async def _clamp(self, shard: int, stepped_back_ms: int) -> None:
        clamped = await clamp_deadlines(self._store, shard, self.broker())
        logger.warning("redis_clock_stepped_back", shard=shard, ms=stepped_back_ms, deadlines=clamped)

    async def _expire(self, due: list[Due]) -> None:
        refs = list(dict.fromkeys(item.name for item in due if item.kind in KINDS))
        calls: list[Awaitable[None]] = [
            expire_group(self._store, group_of(self._store, ref), self.broker()) for ref in refs
        ]
        for kind, expire in self._expire_others.items():
            others = [item.name for item in due if item.kind == kind]
            calls += [expire(group_of(self._store, ref)) for ref in others]
            refs += others
        for ref, reply in zip(refs, await gather_each(calls), strict=True):
            if isinstance(reply, CoordinatorNotAvailable | CoordinatorLoadInProgress):
                logger.warning("group_not_expired", group=ref, reason=str(reply))  # the next sweep tries again
            elif isinstance(reply, KafkaError):
                raise reply
