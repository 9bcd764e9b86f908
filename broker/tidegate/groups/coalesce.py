"""Collect the items of one event-loop tick by group, so that one script call serves all groups of a shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from tidegate.store.keys import GroupKeys

Item = TypeVar("Item")

Gathered = list[tuple[GroupKeys, list[Item]]]
"""Groups of one shard, each with its items in order of arrival."""


class Coalescer(Generic[Item]):
    """Items of one tick, by group; `flush(groups)` runs once for each shard at the end of the tick."""

    def __init__(self, flush: Callable[[Gathered[Item]], None]) -> None:
        self._flush_shard = flush
        self._items: dict[str, tuple[GroupKeys, list[Item]]] = {}
        self._loop = asyncio.get_event_loop()

    def add(self, keys: GroupKeys, item: Item) -> None:
        """Queue an item for this tick."""
        held = self._items.get(keys.group)
        if held is not None:
            held[1].append(item)
            return
        if not self._items:
            self._loop.call_soon(self._flush)
        self._items[keys.group] = (keys, [item])

    def _flush(self) -> None:
        items, self._items = self._items, {}
        shards: dict[int, Gathered[Item]] = {}
        for gathered in items.values():
            shard = gathered[0].shard_keys.shard
            if shard in shards:
                shards[shard].append(gathered)
            else:
                shards[shard] = [gathered]
        for groups in shards.values():
            self._flush_shard(groups)
