"""Choose the leader or coordinator that Metadata and FindCoordinator answer: rendezvous hashing over the live brokers.

The choice is a hint: every broker serves every group and partition. All brokers compute the same choice from the same
set, and when a broker leaves, only its own groups and partitions move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from uuid import UUID

from tidegate.cluster.broker_lease import BrokerInfo, BrokerLease

_MASK: Final = (1 << 64) - 1


def leader_of(topic_id: UUID, partition: int, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    """The partition leader; `brokers` must not be empty."""
    return _winner(_mix((topic_id.int & _MASK) ^ (topic_id.int >> 64) ^ (partition * 0x9E3779B97F4A7C15)), brokers)


def coordinator_of(shard: int, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    """The coordinator of a shard's groups; `brokers` must not be empty."""
    return _winner(_seed("coordinator", shard), brokers)


class Preferred:
    """What this broker is the preferred leader or coordinator of: work that one broker at a time should do."""

    def __init__(self, lease: BrokerLease, shard_count: int) -> None:
        self._lease, self._shard_count = lease, shard_count
        self._version = -1
        self._coordinated: dict[int, bool] = {}

    def coordinates(self, shard: int) -> bool:
        """Whether this broker is the preferred coordinator of a shard of groups."""
        if self._version != self._lease.version:
            self._version = self._lease.version
            self._coordinated.clear()
        found = self._coordinated.get(shard)
        if found is None:
            found = coordinator_of(shard, self._lease.preferred()).node_id == self._lease.node_id
            self._coordinated[shard] = found
        return found

    def shards(self) -> list[int]:
        """The shards that this broker coordinates."""
        return [shard for shard in range(self._shard_count) if self.coordinates(shard)]

    def taken_from(self, silent: BrokerInfo) -> list[int]:
        """The shards that this broker coordinates while a silent one cannot; it may be back as another process."""
        others = [one for one in self._lease.preferred() if one.node_id != silent.node_id]
        return [
            shard
            for shard in range(self._shard_count)
            if others
            and coordinator_of(shard, [*others, silent]) is silent
            and coordinator_of(shard, others).node_id == self._lease.node_id
        ]

    def leads(self, topic_id: UUID, partition: int) -> bool:
        """Whether this broker is the preferred leader of a partition."""
        return leader_of(topic_id, partition, self._lease.preferred()).node_id == self._lease.node_id


def _winner(key: int, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    return max(brokers, key=lambda broker: (_mix(key ^ _seed("broker", broker.node_id)), broker.node_id))


@lru_cache(maxsize=16_384)
def _seed(kind: str, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind}:{number}".encode(), digest_size=8).digest())


def _mix(value: int) -> int:
    """The finalizer of splitmix64."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
