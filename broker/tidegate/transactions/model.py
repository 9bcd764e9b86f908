"""The coordinator's record of one transactional id, and its form in Redis: one hash of readable fields."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from tidegate.store.link import Arg

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
EPOCH_MAX: Final = 32_767
"""Only markers have this epoch; producers have at most the one before."""
TIMEOUT_MAX_MS: Final = 900_000
"""Kafka's default of `transaction.max.timeout.ms`."""
_SORTED_MAX: Final = 2_000
"""Partitions that are sorted; it takes less than 2 ms."""


class State(StrEnum):
    """The states of a transactional id, by their names in Kafka."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and its markers may not all be written."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)


class TransactionPartition(NamedTuple):
    """A partition of a transaction; the topic id in hex distinguishes a topic from one of the same name made later."""

    topic: str
    partition: int
    topic_hex: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """The record of a transactional id. Times in ms by Redis's clock, -1 for none.

    `next_producer_id` replaces an id whose epochs are used up, once the transaction is complete. `ended_ms` is when the
    last transaction was decided: it only grows, and names that transaction in its markers. `version` changes with
    every write; a write names the one that it read.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    last_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    state: State = State.EMPTY
    partitions: frozenset[TransactionPartition] = frozenset()
    groups: frozenset[str] = frozenset()
    start_ms: int = -1
    update_ms: int = -1
    ended_ms: int = -1
    version: str = ""

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or being ended."""
        return self.state is not State.ONGOING and not self.state.is_prepared

    @property
    def epochs_used_up(self) -> bool:
        """Whether only markers can have the next epoch."""
        return self.epoch >= EPOCH_MAX - 1


def in_order(partitions: Collection[TransactionPartition]) -> Iterable[TransactionPartition]:
    """Sorted, unless there are so many that it would take long: other threads wait meanwhile, as sorting is C code."""
    return sorted(partitions) if len(partitions) <= _SORTED_MAX else partitions


def fields_of(one: Transaction) -> list[Arg]:
    """The fields that a broker writes, each with its value; the script adds times and version."""
    partitions = " ".join(f"{topic}:{index}:{topic_hex}" for topic, index, topic_hex in in_order(one.partitions))
    return [
        "state", one.state.value, "producer_id", one.producer_id, "epoch", one.epoch, "timeout_ms", one.timeout_ms,
        "last_epoch", one.last_epoch, "previous_producer_id", one.previous_producer_id,
        "next_producer_id", one.next_producer_id, "partitions", partitions, "groups", json.dumps(sorted(one.groups)),
    ]  # fmt: skip


def parse(fields: Mapping[bytes, bytes]) -> Transaction | None:
    """The record of a hash; None for an empty one."""
    if not fields:
        return None
    text = {name.decode(): value.decode() for name, value in fields.items()}
    return Transaction(
        producer_id=int(text["producer_id"]),
        epoch=int(text["epoch"]),
        timeout_ms=int(text["timeout_ms"]),
        last_epoch=int(text["last_epoch"]),
        previous_producer_id=int(text["previous_producer_id"]),
        next_producer_id=int(text["next_producer_id"]),
        state=State(text["state"]),
        partitions=frozenset(_partition(one) for one in text["partitions"].split()),
        groups=frozenset(json.loads(text["groups"])),
        start_ms=int(text["start_ms"]),
        update_ms=int(text["update_ms"]),
        ended_ms=int(text["ended_ms"]),
        version=text["version"],
    )


def _partition(text: str) -> TransactionPartition:
    topic, index, topic_hex = text.rsplit(":", 2)
    return TransactionPartition(topic, int(index), topic_hex)
