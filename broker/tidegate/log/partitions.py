"""Create and delete the keys of one partition. The catalog calls these; both are idempotent."""

from __future__ import annotations

from typing import Final

from tidegate.store.keys import BATCH_FORMAT, RECORD_FORMAT, LogKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

CREATE_LOG = Script("log/create_log")
DELETE_LOG = Script("log/delete_log")

DELETED_META_MS: Final = 86_400_000
"""How long a deleted partition's meta is kept, so that a late append or creation is refused."""


async def create_partition(store: Store, keys: LogKeys) -> None:
    """Create a partition's empty stream and meta; idempotent.

    Raises UnknownTopicOrPartition if this topic id was deleted, StoreUnavailable.
    """
    await store.run(CREATE_LOG, [keys.log, keys.meta], RECORD_FORMAT if keys.is_record else BATCH_FORMAT)


async def delete_partition(store: Store, keys: LogKeys) -> None:
    """Delete a partition's data and notify its readers; idempotent. Raises StoreUnavailable."""
    own = [keys.log, keys.meta, keys.times, keys.producers, keys.owners]
    all_keys = [*own, keys.segments, keys.archive, keys.replayed, keys.translations, keys.acknowledged]
    all_keys += [keys.readers, keys.writers, keys.staged]
    await store.run(DELETE_LOG, all_keys, DELETED_META_MS, keys.wake)
