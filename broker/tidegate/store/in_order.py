"""Reads of one slot executed in order, so that the last reply shows whether the earlier ones are still valid."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tidegate.store.link import Arg
from tidegate.store.slots import key_of, key_slot
from tidegate.store.store import Store


async def read_in_order(store: Store, ask: Callable[..., Awaitable[Any]], *commands: Sequence[Arg]) -> list[Any]:
    """The replies, in one write by `ask` (`store.command` or `store.read`); the first command names a key.

    In Redis Cluster a redirected command could be overtaken by later ones, so there each waits for its predecessor.
    Raises StoreUnavailable.
    """
    cluster = store.cluster
    if cluster is None:
        return await asyncio.gather(*(ask(*one) for one in commands))
    slot = key_slot(key_of(commands[0]) or "")
    redirect_count = cluster.redirect_count[slot]
    replies = await asyncio.gather(*(ask(*one) for one in commands))
    if cluster.redirect_count[slot] == redirect_count:
        return replies
    return [await ask(*one) for one in commands]
