"""Deletes committed offsets that passed their retention (KIP-211), and offsets of deleted topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from tidegate.errors import GroupIdNotFound, StoreUnavailable
from tidegate.groups.expire_and_retry import extend_sessions_after_outage, group_script_args, group_script_keys
from tidegate.groups.group_index import group_of, read_group_names
from tidegate.groups.offsets import offset_field, split_field
from tidegate.settings import Settings
from tidegate.store.calls import gather_readable, log_faulty
from tidegate.store.clocks import may_expire
from tidegate.store.keys import GroupKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet

logger = structlog.get_logger()

EXPIRE_OFFSETS = Script("groups/expire_offsets")
FORGET_TOPIC = Script("groups/forget_topic")

CHECK_INTERVAL_S: Final = 600.0
_FIELDS_PER_SCRIPT_MAX: Final = 500
_GROUPS_AT_ONCE: Final = 50
_SWEEP: Final = "offsets-retention"
_FORGET: Final = "offsets-of-deleted-topic"

OnGone = Callable[[GroupKeys, str, Sequence[tuple[str, int]]], None]
"""Called when a group is deleted with its last offset: its own id, and the partitions that it had offsets of."""


class Retention:
    """One broker's sweep over the groups of the shards that it is named for. A lost sweep only delays the deletion."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        shards: Callable[[], Iterable[int]],
        broker: Callable[[], str],
        on_gone: OnGone | None = None,
    ) -> None:
        self._store = store
        self._interval_s = CHECK_INTERVAL_S
        self._shards = shards
        self._broker = broker
        self._on_gone = on_gone
        self._tasks = TaskSet()

    async def start(self) -> None:
        """Start to sweep every CHECK_INTERVAL_S."""
        self._tasks.start(self._sweep_for_ever(), "offsets-retention")

    async def close(self) -> None:
        """Stop; a running sweep is cancelled, the next broker's sweep continues."""
        await self._tasks.close()

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            if not self._store.clock.agrees:
                continue
            try:
                await sweep(self._store, self._shards(), self._broker(), self._on_gone)
            except StoreUnavailable as error:
                logger.warning("offsets_sweep_put_off", reason=str(error))
            except Exception:
                logger.exception("offsets_sweep_failed")


async def sweep(store: Store, shards: Iterable[int], broker: str, on_gone: OnGone | None = None) -> int:
    """Expire offsets in every group of some shards. Returns the number of offsets deleted. Raises StoreUnavailable."""
    expired = 0
    for shard in shards:
        names = await read_group_names(store, shard, _SWEEP)
        groups = [keys for keys in (group_of(store, name) for name in names) if may_expire(store, keys.group)]
        for start in range(0, len(groups), _GROUPS_AT_ONCE):
            batch = groups[start : start + _GROUPS_AT_ONCE]
            counts, faulty = await gather_readable({keys.ref: expire(store, keys, broker, on_gone) for keys in batch})
            log_faulty(_SWEEP, faulty)
            expired += sum(counts.values())
    return expired


async def expire(store: Store, keys: GroupKeys, broker: str, on_gone: OnGone | None = None) -> int:
    """Delete a group's offsets that passed their retention; then the group, if it is empty and has no offsets left.

    An offset of an empty group that had members is retained for `offsets_retention_minutes` from the time when the
    group became empty or from its own commit, whichever is later; an offset of a group that never had members, from its
    commit; in a Stable group of consumers, only offsets of topics without a subscription expire. Returns the number
    deleted.
    """
    observed: list[str] = []
    try:
        may_expire = (await _expire_fields(store, keys, broker, []))[1]
        own_id = await store.command("HGET", keys.group, "id") if may_expire and on_gone else None
        expired, cursor = 0, b"0"
        while may_expire:
            cursor, pairs = await store.command("HSCAN", keys.offsets, cursor, "COUNT", _FIELDS_PER_SCRIPT_MAX)
            fields = [field.decode() for field in pairs[::2]]
            observed += fields
            for start in range(0, len(fields), _FIELDS_PER_SCRIPT_MAX):
                part = fields[start : start + _FIELDS_PER_SCRIPT_MAX]
                gone, may_expire, group_gone = await _expire_fields(store, keys, broker, part)
                expired += gone
                if group_gone and on_gone and own_id:
                    on_gone(keys, own_id.decode(), [split_field(one) for one in observed])
            if cursor == b"0":
                break
    except GroupIdNotFound:
        return 0
    if expired:
        store.changed_groups.add(keys.ref)
        logger.info("offsets_expired", group=keys.group_id, org=keys.org, count=expired)
    return expired


async def _expire_fields(store: Store, keys: GroupKeys, broker: str, fields: list[str]) -> tuple[int, bool, bool]:
    """Number of fields deleted, whether the group's state permits expiry, whether the group was deleted."""
    extend_sessions_after_outage(store, keys)
    retention_ms = store.settings.offsets_retention_minutes * 60_000
    key_names = [*group_script_keys(keys), keys.offsets, keys.staged]
    args = [*group_script_args(store, keys, broker), retention_ms, *fields]
    gone, may_expire, group_gone = await store.run(EXPIRE_OFFSETS, key_names, *args)
    return gone, bool(may_expire) and not group_gone, bool(group_gone)


async def forget_topic(store: Store, org: str, topic: str, partition_count: int, topic_id: str = "") -> int:
    """Delete a deleted topic's offsets in every group of an organisation, subscribed to or not, in transactions too.

    `topic_id` in hex keeps the offsets of a later topic of the same name. Returns the number of offsets
    deleted. Raises StoreUnavailable; callers must then repeat the call, which is safe. A group with a key that cannot
    be read keeps its offsets, which name the topic's id.
    """
    fields = [offset_field(topic, partition) for partition in range(partition_count)]
    parts = [fields[at : at + _FIELDS_PER_SCRIPT_MAX] for at in range(0, len(fields), _FIELDS_PER_SCRIPT_MAX)]
    forgotten = 0
    for shard in range(store.settings.coordinator_shards):
        names = await read_group_names(store, shard, _FORGET)
        groups = [keys for keys in (group_of(store, name) for name in names) if keys.org == org]
        for start in range(0, len(groups), _GROUPS_AT_ONCE):
            batch = groups[start : start + _GROUPS_AT_ONCE]
            for part in parts:
                calls = {
                    keys.ref: store.run(FORGET_TOPIC, [keys.offsets, keys.group, keys.staged], topic_id, *part)
                    for keys in batch
                }
                replies, faulty = await gather_readable(calls)
                log_faulty(_FORGET, faulty)
                forgotten += sum(gone for (gone,) in replies.values())
    return forgotten
