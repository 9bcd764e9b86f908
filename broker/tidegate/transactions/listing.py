"""The transactional ids of an organisation, from the shards' lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from tidegate.store.keys import TransactionKeys
from tidegate.store.slices import slices
from tidegate.store.store import Store

_AT_ONCE: Final = 100
"""Transactional ids that are parsed without a pause."""


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """One transactional id; `start_ms` is when its last transaction began, -1 for none."""

    transactional_id: str
    state: str
    producer_id: int
    start_ms: int


async def used_shards(store: Store) -> list[int]:
    """The shards that have transactional ids. Raises StoreUnavailable."""
    return sorted(map(int, await store.command("HKEYS", store.cluster_keys.transaction_shards)))


async def list_transactions(store: Store, org: str, shards: Iterable[int]) -> list[ListedTransaction]:
    """The transactional ids of some shards, with pauses between some of them. Raises StoreUnavailable."""
    found: list[ListedTransaction] = []
    for shard in shards:
        transactions, _ = TransactionKeys.of_shard(store.prefix, shard)
        stored = await store.read("HGETALL", transactions)
        async for part in slices(stored.items(), _AT_ONCE):
            found += [one for ref, text in part if (one := _parse(org, ref, text)) is not None]
    return found


def _parse(org: str, ref: bytes, text: bytes) -> ListedTransaction | None:
    """One entry of a shard's list; None for another organisation's."""
    owner, _, encoded = ref.decode().partition("/")
    if owner != org:
        return None
    state, producer_id, start_ms = text.decode().split(" ")
    return ListedTransaction(unquote(encoded), state, int(producer_id), int(start_ms))
