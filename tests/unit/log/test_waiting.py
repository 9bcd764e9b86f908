"""Which waiting batch follows an appended one, and in which order the others are judged again."""

from __future__ import annotations

from collections import deque

import pytest

from tests.support.logs import batch
from tidegate.log import waiting
from tidegate.log.outgoing import QueuedBatch
from tidegate.log.producers_table import ProducerState, advance, end_transaction
from tidegate.log.waiting import WaitingBatches

LAST = 2**31 - 1


def queued(sequence: int, epoch: int = 0, producer_id: int = 9) -> QueuedBatch:
    return QueuedBatch(batch(producer_id=producer_id, epoch=epoch, sequence=sequence), lambda _: None, True, 0.0)


def given(*items: QueuedBatch) -> WaitingBatches:
    batches = WaitingBatches()
    for item in items:
        assert batches.add(item)
    return batches


def appended(sequence: int, epoch: int = 0) -> ProducerState:
    """The producer behind a batch of one record."""
    return advance(None, epoch, sequence, 0, 0, 0, 0)


def test_take_next_follows_the_last_sequence_of_the_epoch() -> None:
    late, following, bumped = queued(7), queued(6), queued(6, epoch=1)
    batches = given(late, bumped, following, queued(6, producer_id=8))
    assert batches.take_next(9, appended(5)) is following
    assert batches.take_next(9, appended(5)) is None
    assert batches.take_next(9, appended(5, epoch=1)) is bumped
    assert batches.take_next(9, appended(6)) is late
    assert batches.take_next(7, appended(5)) is None


def test_take_next_sequences_wrap() -> None:
    first = queued(0)
    assert given(queued(1), first).take_next(9, appended(LAST)) is first


def test_take_next_producer_without_batches() -> None:
    assert given(queued(0)).take_next(9, end_transaction(None, 1, 5, 0, 0)) is None


def test_take_next_of_equal_batches_the_first() -> None:
    first, again = queued(1), queued(1)
    batches = given(first, again)
    assert batches.take_next(9, appended(0)) is first
    assert batches.batches() == [again]


def test_requeue_moves_one_producer_to_the_front_in_order() -> None:
    newer, other = queued(9), queued(3, producer_id=8)
    items = [queued(4), queued(0, epoch=1), queued(2), queued(4)]
    batches, queue = given(other, *items), deque([newer])
    batches.requeue([9, 7], queue)
    assert list(queue) == [*items, newer]
    assert batches.batches() == [other]
    batches.requeue_all(queue)
    assert list(queue) == [other, *items, newer]
    assert not batches


def test_add_too_many_of_one_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "WAITING_MAX", 2)
    batches = given(queued(3), queued(2), queued(5, producer_id=8))
    assert not batches.add(queued(1))
    assert batches.take_next(9, appended(1)) is not None
    assert batches.add(queued(1))
