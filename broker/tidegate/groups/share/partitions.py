"""The share-partitions that a group has in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tidegate.groups.configs import SHARE_RECORD_LOCK_DURATION_MS
from tidegate.groups.share.sessions import SharePartition
from tidegate.store.keys import GroupKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

CLAMP_LOCKS = Script("share/clamp_locks")


async def partitions_of(store: Store, keys: GroupKeys) -> dict[SharePartition, str]:
    """The share-partitions of a group, with the names of their topics. Raises StoreUnavailable."""
    found = await store.command("HGETALL", keys.shares)
    fields = ((name, (topic,)) for name, topic in found.items())
    partitions = store.foreign_entries.leave_out(keys.shares, fields, _parsed)
    return dict(sorted(partitions, key=lambda one: (one[1], one[0].index)))


async def clamp_locks(store: Store, keys: GroupKeys) -> int:
    """Limit the locks of a group's share-partitions after Redis's clock stepped back; their number.

    Raises StoreUnavailable.
    """
    clamped = 0
    for one in await partitions_of(store, keys):
        names = [keys.configs, *keys.share(one.topic_id.hex, one.index)]
        (count,) = await store.run(CLAMP_LOCKS, names, SHARE_RECORD_LOCK_DURATION_MS)
        clamped += count
    return clamped


def _parsed(name: bytes, topics: Sequence[bytes]) -> tuple[SharePartition, str]:
    topic_id, _, index = name.decode().partition(":")
    return SharePartition(UUID(hex=topic_id), int(index)), topics[0].decode()
