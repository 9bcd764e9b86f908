"""What replies mean."""

from __future__ import annotations

import hiredis
import pytest

from tidegate.errors import StoreUnavailable
from tidegate.store.outcome import (
    Failure,
    Gone,
    Moved,
    Ok,
    Refused,
    Stale,
    Unknown,
    append_failure_of,
    failure_of,
    outcome_of,
)

NOT_ABOVE = "ERR The ID specified in XADD is equal or smaller than the target stream top item"


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (hiredis.ReplyError(NOT_ABOVE), Stale(NOT_ABOVE)),
        (hiredis.ReplyError("MOVED 1 a:1"), Moved("MOVED 1 a:1")),
        (hiredis.ReplyError("ASK 1 a:1"), Moved("ASK 1 a:1")),
        (hiredis.ReplyError("TRYAGAIN"), Moved("TRYAGAIN")),
        (hiredis.ReplyError("CLUSTERDOWN"), Moved("CLUSTERDOWN")),
        (hiredis.ReplyError("OOM command not allowed"), Refused("OOM command not allowed")),
        (hiredis.ReplyError("READONLY replica"), Refused("READONLY replica")),
        (StoreUnavailable("no answer"), Unknown("no answer")),
    ],
)
def test_failure_of_error_replies(reply: object, failure: Failure) -> None:
    assert failure_of(reply) == failure
    assert outcome_of(reply) == failure
    assert append_failure_of(reply) == failure
    assert failure.error.message == failure.text


@pytest.mark.parametrize("reply", [b"0-1", 0, [], None])
def test_outcome_of_results_is_ok(reply: object) -> None:
    assert failure_of(reply) is None
    assert outcome_of(reply) == Ok(reply)


def test_append_failure_of_nil_means_deleted() -> None:
    assert isinstance(append_failure_of(None), Gone)


def test_append_failure_of_another_result_is_unknown() -> None:
    assert isinstance(append_failure_of([]), Unknown)
