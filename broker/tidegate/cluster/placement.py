"""Choose the leader or coordinator that clients are told: rendezvous hashing over the live brokers.

The choice is a hint: every broker serves every group and partition. All brokers compute the same choice from the same
set, and when a broker leaves, only its own groups and partitions move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

if TYPE_CHECKING:
    from tidegate.cluster.broker_lease import BrokerInfo

_MASK: Final = (1 << 64) - 1


def leader_of(topic_id: UUID, partition: int, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    """The partition leader; `brokers` must not be empty."""
    return _winner(_mix((topic_id.int & _MASK) ^ (topic_id.int >> 64) ^ (partition * 0x9E3779B97F4A7C15)), brokers)


def coordinator_of(shard: int, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    """The coordinator of a shard's groups; `brokers` must not be empty."""
    return _winner(_seed("coordinator", shard), brokers)


def _winner(key: int, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    return max(brokers, key=lambda broker: (_mix(key ^ _seed("broker", broker.node_id)), broker.node_id))


@lru_cache(maxsize=65_536)
def _seed(kind: str, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind}:{number}".encode(), digest_size=8).digest())


def _mix(value: int) -> int:
    """The finalizer of splitmix64."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
