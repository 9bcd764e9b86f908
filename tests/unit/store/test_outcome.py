"""What replies mean."""

from __future__ import annotations

import hiredis
import pytest

from tidegate.errors import StoreUnavailable
from tidegate.store.outcome import (
    Failure,
    FaultyKeys,
    Gone,
    Moved,
    Ok,
    Refused,
    Stale,
    StoreRefused,
    Unknown,
    append_failure_of,
    error_of_command,
    failure_of,
    outcome_of,
    script_failure_of,
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


@pytest.mark.parametrize(
    ("text", "of_script", "of_command"),
    [
        ("WRONGTYPE Operation against a key holding the wrong kind of value", FaultyKeys, FaultyKeys),
        ("ERR user_script:7: attempt to compare nil with number", FaultyKeys, StoreUnavailable),
        ("OOM command not allowed", StoreRefused, StoreUnavailable),
        ("LOADING Redis is loading", StoreRefused, StoreUnavailable),
    ],
)
def test_error_of_one_key_differs_from_an_outage(text: str, of_script: type, of_command: type) -> None:
    assert type(script_failure_of(text).error) is of_script
    assert type(error_of_command(text)) is of_command


@pytest.mark.parametrize("reply", [b"0-1", 0, [], None])
def test_outcome_of_results_is_ok(reply: object) -> None:
    assert failure_of(reply) is None
    assert outcome_of(reply) == Ok(reply)


def test_append_failure_of_nil_means_deleted() -> None:
    assert isinstance(append_failure_of(None), Gone)


def test_append_failure_of_another_result_is_unknown() -> None:
    assert isinstance(append_failure_of([]), Unknown)
