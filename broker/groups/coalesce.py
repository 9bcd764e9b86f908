"""Gather what one event-loop tick brings for each group, so that one script serves it all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from broker.store.keys import GroupKeys

Item = TypeVar("Item")


class Coalescer(Generic[Item]):
    """Items of a tick by group; `flush(keys, items)` runs once a group, at the end of the tick."""

    def __init__(self, flush: Callable[[GroupKeys, list[Item]], None]) -> None:
        self._flush_group = flush
        self._items: dict[str, tuple[GroupKeys, list[Item]]] = {}
        self._loop = asyncio.get_event_loop()

    def add(self, keys: GroupKeys, item: Item) -> None:
        """File an item for this tick."""
        held = self._items.get(keys.group)
        if held is not None:
            held[1].append(item)
            return
        if not self._items:
            self._loop.call_soon(self._flush)
        self._items[keys.group] = (keys, [item])

    def _flush(self) -> None:
        items, self._items = self._items, {}
        for keys, group_items in items.values():
            self._flush_group(keys, group_items)
