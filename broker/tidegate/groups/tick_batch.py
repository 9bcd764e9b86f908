"""Collect the items of one event-loop tick by group, so that one script call serves many groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from tidegate.store.keys import GroupKeys

Item = TypeVar("Item")

Gathered = list[tuple[GroupKeys, list[Item]]]
"""Groups that one script may read, each with its items in order of arrival."""


class TickBatch(Generic[Item]):
    """Items of one tick, by group; `flush(groups)` runs at the end of the tick.

    It runs once for each shard, or with `all_shards` once: then one script may read groups of several shards, which
    Redis Cluster refuses.
    """

    def __init__(self, flush: Callable[[Gathered[Item]], None], *, all_shards: bool = False) -> None:
        self._flush_groups = flush
        self._all_shards = all_shards
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
        if self._all_shards:
            self._flush_groups(list(items.values()))
            return
        shards: dict[int, Gathered[Item]] = {}
        for gathered in items.values():
            shard = gathered[0].shard_keys.shard
            if shard in shards:
                shards[shard].append(gathered)
            else:
                shards[shard] = [gathered]
        for groups in shards.values():
            self._flush_groups(groups)
