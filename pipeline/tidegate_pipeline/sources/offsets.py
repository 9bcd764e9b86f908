"""Offsets of a query: for each partition the next offset to read, as JSON that Spark compares as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

IDS: Final = "_ids"
"""The member of the JSON that holds topic ids: a topic made again has another."""

EPOCHS: Final = "_epochs"
RESERVED: Final = (IDS, EPOCHS)
"""No topic's names here."""

_DIGEST_DIGITS: Final = 16

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """`next`: the next offset to read of each partition; `ids`: topic -> its id in hex.

    `epochs`: the leader epoch of the record before `next`, where that is not 0. A later epoch that starts below
    `next` says that the log lost what was read, even if it is as long again by now (as Kafka's clients do, KIP-320).
    """

    next: Mapping[Place, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    epochs: Mapping[Place, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """`{"topic": {"0": next}, "_ids": {"topic": id}}`: topics by name, partitions by number.

        Always in this order: Spark takes another order for new data, and makes empty micro-batches without end.
        """
        epochs = {place: epoch for place, epoch in self.epochs.items() if epoch}
        reported = {EPOCHS: _nested(epochs)} if epochs else {}
        return {**_nested(self.next), **reported, IDS: dict(sorted(self.ids.items()))}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offsets:
        """What `to_json` wrote."""
        topics = {topic: partitions for topic, partitions in value.items() if topic not in RESERVED}
        return cls(_flat(topics), dict(value.get(IDS, {})), _flat(value.get(EPOCHS, {})))


def name_of_micro_batch(start: Offsets, end: Offsets) -> str:
    """A short name for what is read between two offsets; begins with `name_of_end`."""
    return f"{name_of_end(end)}-{_digest(start)}"


def name_of_end(end: Offsets) -> str:
    """What the names of all micro-batches begin with that end there."""
    return _digest(end)


def _digest(offsets: Offsets) -> str:
    return sha256(json.dumps(offsets.to_json()).encode()).hexdigest()[:_DIGEST_DIGITS]


def _nested(places: Mapping[Place, int]) -> dict[str, dict[str, int]]:
    value: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(places):
        value.setdefault(topic, {})[str(partition)] = places[topic, partition]
    return value


def _flat(value: Mapping[str, Mapping[str, int]]) -> dict[Place, int]:
    return {(topic, int(partition)): n for topic, partitions in value.items() for partition, n in partitions.items()}
