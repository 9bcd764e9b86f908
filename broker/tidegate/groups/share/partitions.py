"""The share-partitions that a group has in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from tidegate.groups.share.sessions import SharePartition
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store


async def partitions_of(store: Store, keys: GroupKeys) -> dict[SharePartition, str]:
    """The share-partitions of a group, with the names of their topics. Raises StoreUnavailable."""
    found = await store.command("HGETALL", keys.shares)
    fields = ((name, (topic,)) for name, topic in found.items())
    partitions = store.foreign_entries.leave_out(keys.shares, fields, _parsed)
    return dict(sorted(partitions, key=lambda one: (one[1], one[0].index)))


def _parsed(name: bytes, topics: Sequence[bytes]) -> tuple[SharePartition, str]:
    topic_id, _, index = name.decode().partition(":")
    return SharePartition(UUID(hex=topic_id), int(index)), topics[0].decode()
