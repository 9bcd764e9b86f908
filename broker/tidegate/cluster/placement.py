"""Which broker clients are told to ask: rendezvous hashing over the live ones.

A hint, never a right: every broker serves every group and partition. Every broker comes to the same answer
from the same set, and when a broker goes only what it had moves.
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
    """The broker named as a partition's leader; `brokers` is not empty."""
    return _winner(_mix((topic_id.int & _MASK) ^ (topic_id.int >> 64) ^ (partition * 0x9E3779B97F4A7C15)), brokers)


def coordinator_of(shard: int, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    """The broker named as the coordinator of a shard's groups; `brokers` is not empty."""
    return _winner(_seed("coordinator", shard), brokers)


def _winner(key: int, brokers: Sequence[BrokerInfo]) -> BrokerInfo:
    return max(brokers, key=lambda broker: (_mix(key ^ _seed("broker", broker.node_id)), broker.node_id))


@lru_cache(maxsize=65_536)
def _seed(kind: str, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{kind}:{number}".encode(), digest_size=8).digest())


def _mix(value: int) -> int:
    """Spread 64 bits over 64 bits (the finalizer of splitmix64)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
