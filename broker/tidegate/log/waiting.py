"""Judged batches of idempotent producers that are neither appended nor answered yet.

Each waits for its predecessor, for the coordinator's answer, for a refresh of the state, or for the entry in flight.
A batch that is appended brings back the one whose base sequence follows it; all others are judged again only after an
event that may change the verdict. So the judgements are linear in the batches, in any order of their sequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidegate.log.producers_table import ProducerState, next_sequence

if TYPE_CHECKING:
    from tidegate.log.outgoing import QueuedBatch

WAITING_MAX: Final = 5_000
"""Waiting batches of one producer: clients send at most five before an answer. They are judged in about 7 ms."""


class ProducerBatches:
    """The waiting batches of one producer, in the order of arrival."""

    __slots__ = ("_batches", "_by_sequence")

    def __init__(self) -> None:
        self._batches: dict[QueuedBatch, None] = {}
        self._by_sequence: dict[tuple[int, int], QueuedBatch] = {}
        """By producer epoch and base sequence, the first of equal ones."""

    def add(self, item: QueuedBatch) -> bool:
        """Add a batch; False if there are too many."""
        if len(self._batches) >= WAITING_MAX:
            return False
        self._batches[item] = None
        self._by_sequence.setdefault((item.batch.producer_epoch, item.batch.base_sequence), item)
        return True

    def take(self, epoch: int, base_sequence: int) -> QueuedBatch | None:
        """Remove and return the batch with this epoch and base sequence."""
        item = self._by_sequence.pop((epoch, base_sequence), None)
        if item is not None:
            del self._batches[item]
        return item

    def in_order(self) -> list[QueuedBatch]:
        """All of them."""
        return list(self._batches)


class WaitingBatches(dict[int, ProducerBatches]):
    """The waiting batches of one partition, by producer id."""

    def add(self, item: QueuedBatch) -> bool:
        """Add a batch behind the others of its producer; False if there are too many."""
        producer_id = item.batch.producer_id
        waiting = self.get(producer_id)
        if waiting is None:
            waiting = self[producer_id] = ProducerBatches()
        return waiting.add(item)

    def batches(self) -> list[QueuedBatch]:
        """All of them, each producer's in order."""
        return [item for waiting in self.values() for item in waiting.in_order()]

    def take_next(self, producer_id: int, producer: ProducerState) -> QueuedBatch | None:
        """Remove and return the batch whose base sequence follows the producer's last one."""
        waiting = self.get(producer_id)
        if waiting is None or not producer.batches:
            return None
        return waiting.take(producer.epoch, next_sequence(producer))

    def requeue(self, producers: Iterable[int], queue: deque[QueuedBatch]) -> None:
        """Move the batches of these producers to the front of a queue, in their order."""
        for producer_id in producers:
            waiting = self.pop(producer_id, None)
            if waiting is not None:
                queue.extendleft(reversed(waiting.in_order()))

    def requeue_all(self, queue: deque[QueuedBatch]) -> None:
        """As `requeue`, for all producers."""
        self.requeue(list(self), queue)
