"""The bytes of a partition's log in Redis."""

from __future__ import annotations

from tidegate.store.keys import RECORD_FORMAT, LogKeys
from tidegate.store.store import Store


async def log_bytes(store: Store, keys: LogKeys, log_format: str) -> int:
    """Bytes in Redis; of format batch the brokers' count, a second late. Raises StoreUnavailable."""
    if log_format == RECORD_FORMAT:  # other programs append to it too: Redis estimates its size
        return int(await store.read("MEMORY", "USAGE", keys.log) or 0)
    return max(0, int(await store.read("HGET", keys.meta, "bytes") or 0))
