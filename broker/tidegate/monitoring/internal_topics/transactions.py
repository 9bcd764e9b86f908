"""The records of `__transaction_state`: the state of each transactional id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.monitoring.internal_topics.publisher import PARTITIONS, Values
from tidegate.records.transaction_records import TransactionValue, transaction_key, transaction_value
from tidegate.store.calls import gather_readable
from tidegate.store.keys import TransactionKeys, shard_of
from tidegate.store.outcome import FaultyKeys
from tidegate.store.store import Store
from tidegate.topics.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tidegate.transactions.listing import used_shards
from tidegate.transactions.model import Transaction
from tidegate.transactions.records import Records


class TransactionRecords:
    """Reads transactional ids from the keys of their shards."""

    topic = TRANSACTION_STATE
    configs: Final = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }

    def __init__(self, store: Store, records: Records) -> None:
        self._store, self._records = store, records

    async def owners(self) -> tuple[Sequence[str], Mapping[str, FaultyKeys]]:
        """All transactional ids, and the indices of shards that cannot be read. Raises StoreUnavailable."""
        listed = [TransactionKeys.of_shard(self._store.prefix, shard)[0] for shard in await used_shards(self._store)]
        found, faulty = await gather_readable({key: self._store.command("HKEYS", key) for key in listed})
        return [name.decode(errors="replace") for names in found.values() for name in names], faulty

    async def values_of(self, owner: str) -> Values:
        """The record of a transactional id; none once it is forgotten. Raises StoreUnavailable."""
        keys = self._records.keys_of_ref(owner)
        one = await self._records.read(keys)
        return {} if one is None else {transaction_key(keys.transactional_id): _value(one)}


def _value(one: Transaction) -> bytes:
    return transaction_value(
        TransactionValue(
            one.producer_id, one.previous_producer_id, one.next_producer_id, one.epoch, one.timeout_ms,
            one.state.value, _partitions(one), one.update_ms, one.start_ms,
        )
    )  # fmt: skip


def _partitions(one: Transaction) -> dict[str, list[int]]:
    """Topic -> partitions; a group is the partition of `__consumer_offsets` that has its commits."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for partition in sorted(one.partitions):
        found[partition.topic].add(partition.partition)
    for group in one.groups:
        found[CONSUMER_OFFSETS].add(shard_of(group, PARTITIONS))
    return {topic: sorted(indexes) for topic, indexes in found.items()}
