"""Producer ids, unique in the cluster, allocated from blocks that this broker reserves in the store."""

from __future__ import annotations

import asyncio
from typing import Final

from tidegate.settings import Settings
from tidegate.store.scripts import Script
from tidegate.store.store import Store

TAKE_PRODUCER_IDS: Final = Script("transactions/take_producer_ids")
BLOCK_IDS: Final = 1_000


class ProducerIds:
    """This broker's block. Ids left when the process ends are never used."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._next_id = 0
        self._end = 0
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """A producer id that was never used before. Raises StoreUnavailable."""
        while self._next_id == self._end:
            async with self._taking:
                if self._next_id == self._end:
                    await self._take_block()
        producer_id = self._next_id
        self._next_id += 1
        return producer_id

    async def _take_block(self) -> None:
        # keys: one string in the slot {cluster}
        (first,) = await self._store.run(TAKE_PRODUCER_IDS, [self._store.cluster_keys.producer_ids], BLOCK_IDS)
        self._next_id = int(first)
        self._end = self._next_id + BLOCK_IDS
