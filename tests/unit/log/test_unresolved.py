"""Which batches get the answer of one that was given up, and for how long."""

from __future__ import annotations

from typing import Any

from tests.support.logs import batch
from tidegate.errors import RequestTimedOut, StoreUnavailable, UnknownTopicOrPartition
from tidegate.log.outgoing import QueuedBatch
from tidegate.log.producers_table import is_after
from tidegate.log.unresolved import GIVEN_UP_KEPT_S, LogUnreachable, Unresolved

AWAY = StoreUnavailable("away")


def queued(sequence: int, epoch: int = 0, producer_id: int = 9) -> QueuedBatch:
    return QueuedBatch(batch(producer_id=producer_id, epoch=epoch, sequence=sequence), lambda _: None, True, 0.0)


def given_up(sequence: int, answer: Any = AWAY) -> Unresolved:
    unresolved = Unresolved(10.0)
    unresolved.give_up(queued(sequence).batch, answer, 0.0)
    return unresolved


def test_answer_behind_same_epoch_later_sequence_is_the_same() -> None:
    unresolved = given_up(5)
    assert unresolved.answer_behind(queued(6), 1.0) is AWAY
    assert unresolved.answer_behind(queued(5), 1.0) is None
    assert unresolved.answer_behind(queued(6, epoch=1), 1.0) is None
    assert unresolved.answer_behind(queued(6, producer_id=8), 1.0) is None


def test_answer_behind_sequences_wrap() -> None:
    assert given_up(2**31 - 1).answer_behind(queued(0), 1.0) is AWAY
    assert not is_after(2**31 - 1, 0)


def test_give_up_of_a_later_batch_keeps_the_first_and_the_time_runs_anew() -> None:
    unresolved = given_up(5)
    unresolved.give_up(queued(7).batch, AWAY, GIVEN_UP_KEPT_S - 1)
    assert unresolved.answer_behind(queued(6), GIVEN_UP_KEPT_S + 1) is AWAY
    assert unresolved.answer_behind(queued(6), 2 * GIVEN_UP_KEPT_S) is None


def test_give_up_for_good_is_not_stored() -> None:
    assert given_up(5, UnknownTopicOrPartition()).answer_behind(queued(6), 1.0) is None


def test_accepted_producer_continues() -> None:
    unresolved = given_up(5)
    unresolved.accepted(queued(5).batch)
    assert unresolved.answer_behind(queued(7), 1.0) is None


def test_answer_not_persisted_only_where_that_is_known() -> None:
    unresolved, gone = Unresolved(10.0), UnknownTopicOrPartition()
    assert unresolved.answer(queued(0), gone, 1.0) is gone
    assert type(unresolved.answer(queued(0), AWAY, 1.0)) is StoreUnavailable
    sent: Any = type("InFlightEntry", (), {"counter": 3, "base": 10, "producers": {9: None}})()
    unresolved.entries[sent.counter] = sent
    plain = queued(-1, -1, -1)
    assert type(unresolved.answer(queued(0), AWAY, 1.0)) is RequestTimedOut
    assert type(unresolved.answer(plain, AWAY, 1.0)) is StoreUnavailable
    plain.unresolved_in = (3,)
    assert type(unresolved.answer(plain, AWAY, 1.0)) is RequestTimedOut
    unresolved.discard_below(10, None)
    assert sent.counter in unresolved.entries
    unresolved.discard_below(11, None)
    assert type(unresolved.answer(plain, AWAY, 1.0)) is StoreUnavailable


def test_answer_after_long_absence_sends_returning_clients_to_another_broker() -> None:
    unresolved, first, again = Unresolved(10.0), queued(0), queued(0)
    sent: Any = type("InFlightEntry", (), {"counter": 3, "base": 10, "producers": {9: None}, "items": [first]})()
    unresolved.entries[sent.counter] = sent
    unresolved.outcome_unknown(sent, 100.0)
    assert type(unresolved.answer(again, AWAY, 109.0)) is RequestTimedOut
    assert type(unresolved.answer(first, AWAY, 111.0)) is RequestTimedOut
    unreachable = unresolved.answer(again, AWAY, 111.0)
    assert type(unreachable) is LogUnreachable
    unresolved.give_up(again.batch, unreachable, 111.0)
    assert type(unresolved.answer_behind(queued(1), 111.0)) is RequestTimedOut
    unresolved.discard_below(11, None)
    assert type(unresolved.answer(again, AWAY, 111.0)) is StoreUnavailable


def test_answer_to_an_unproved_batch_sent_again_leaves_its_fate_open() -> None:
    unresolved = Unresolved(10.0)
    unresolved.unproved(queued(5).batch, 0.0)
    unresolved.give_up(queued(6).batch, AWAY, 1.0)

    assert type(unresolved.answer_behind(queued(6), 1.0)) is StoreUnavailable
    assert type(unresolved.answer(queued(5), AWAY, 1.0)) is RequestTimedOut
    assert type(unresolved.answer(queued(6), AWAY, 1.0)) is StoreUnavailable
    assert type(unresolved.answer(queued(5, epoch=1), AWAY, 1.0)) is StoreUnavailable
    assert type(unresolved.answer(queued(5), AWAY, 2 + GIVEN_UP_KEPT_S)) is StoreUnavailable


def test_answer_behind_an_unproved_batch_until_the_producer_continues() -> None:
    unresolved = Unresolved(10.0)
    unresolved.unproved(queued(5).batch, 0.0)
    assert type(unresolved.answer_behind(queued(6), 1.0)) is RequestTimedOut

    unresolved.accepted(queued(6).batch)
    assert unresolved.answer_behind(queued(7), 1.0) is None
