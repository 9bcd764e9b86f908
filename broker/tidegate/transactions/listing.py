"""The transactional ids of an organisation, from the shards' lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from tidegate.store.keys import TransactionKeys
from tidegate.store.store import Store


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
    """The transactional ids of some shards. Raises StoreUnavailable."""
    found = []
    for shard in shards:
        transactions, _ = TransactionKeys.of_shard(store.prefix, shard)
        for ref, text in (await store.read("HGETALL", transactions)).items():
            owner, _, encoded = ref.decode().partition("/")
            if owner == org:
                state, producer_id, start_ms = text.decode().split(" ")
                found.append(ListedTransaction(unquote(encoded), state, int(producer_id), int(start_ms)))
    return found
