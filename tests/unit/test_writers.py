"""What a history has of a send that failed: whether it may be stored is known from the error."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from tests.kit.history import History, Outcome, Send
from tests.kit.writers import Session, Writer, acknowledged_ends


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (KafkaError.INVALID_TIMESTAMP, Outcome.FAILED),
        (KafkaError.MSG_SIZE_TOO_LARGE, Outcome.FAILED),
        (KafkaError._PURGE_QUEUE, Outcome.FAILED),
        (KafkaError._PURGE_INFLIGHT, Outcome.UNKNOWN),
        (KafkaError._MSG_TIMED_OUT, Outcome.UNKNOWN),
        (KafkaError.REQUEST_TIMED_OUT, Outcome.UNKNOWN),
        (0, Outcome.UNKNOWN),
    ],
)
def test_writer_failed_send_is_unknown_unless_its_error_excludes_it(code: int, outcome: Outcome) -> None:
    session = Session(History(), "", "t", 1)

    Writer(session, "w").note(0, "w:0:0", 1, None, code=code)

    assert [one.outcome for one in session.history if isinstance(one, Send)] == [outcome]


def test_acknowledged_ends_are_those_of_the_topic() -> None:
    history = History()
    for topic, offset in (("t", 4), ("t", 2), ("other", 9)):
        Writer(Session(history, "", topic, 1), "w").note(0, "w:0:0", 1, offset)

    assert acknowledged_ends(Session(history, "", "t", 1)) == {"t-0": 5}
