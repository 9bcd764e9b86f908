"""The share-partitions that a group has in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from heapq import merge
from typing import Final
from uuid import UUID

from tidegate.groups.configs import SHARE_RECORD_LOCK_DURATION_MS
from tidegate.groups.share.sessions import SharePartition
from tidegate.store.keys import GroupKeys
from tidegate.store.scripts import Script
from tidegate.store.slices import slices
from tidegate.store.store import Store

CLAMP_LOCKS = Script("share/clamp_locks")
AT_ONCE: Final = 1_000
"""Share-partitions that are parsed, or put in order, without a pause: 3 ms."""


async def partitions_of(store: Store, keys: GroupKeys) -> dict[SharePartition, str]:
    """The share-partitions of a group, with the names of their topics, by which they are ordered.

    The event loop runs other work in between. Raises StoreUnavailable.
    """
    found = await store.command("HGETALL", keys.shares)
    ordered: list[list[tuple[SharePartition, str]]] = []
    async for part in slices(found, AT_ONCE):
        fields = ((name, (found[name],)) for name in part)
        ordered.append(sorted(store.foreign_entries.leave_out(keys.shares, fields, _parsed), key=_topic_and_index))
    partitions: dict[SharePartition, str] = {}
    for partition, topic in merge(*ordered, key=_topic_and_index):
        partitions[partition] = topic
        if not len(partitions) % AT_ONCE:
            await asyncio.sleep(0)
    return partitions


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


def _topic_and_index(one: tuple[SharePartition, str]) -> tuple[str, int]:
    return one[1], one[0].index


def _parsed(name: bytes, topics: Sequence[bytes]) -> tuple[SharePartition, str]:
    topic_id, _, index = name.decode().partition(":")
    return SharePartition(UUID(hex=topic_id), int(index)), topics[0].decode()
