"""What the nodes of a Redis Cluster say of places."""

from __future__ import annotations

import hiredis
import pytest

from tidegate.store.slots import Owned, Refusal, is_refusal, key_of, parse_refusal, parse_slots


def test_node_that_knows_no_name_of_another_means_the_host_that_was_asked() -> None:
    reply = [
        [0, 99, [None, 7000, b"id"]],
        [100, 199, [b"?", 7001, b"id"], [b"", 7002, b"id"]],
        [200, 299, [b"h", 7003]],
    ]

    assert parse_slots(reply, "asked") == [
        Owned(0, 99, ("asked", 7000)), Owned(100, 199, ("asked", 7001)), Owned(200, 299, ("h", 7003)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("MOVED 3999 10.0.0.1:6381", Refusal("MOVED", 3999, ("10.0.0.1", 6381))),
        ("MOVED 3999 :6381", Refusal("MOVED", 3999, ("asked", 6381))),
        ("MOVED 3999 ?:6381", Refusal("MOVED", 3999, ("asked", 6381))),
        ("ASK 1 ::1:6381", Refusal("ASK", 1, ("::1", 6381))),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Refusal("TRYAGAIN")),
        ("CLUSTERDOWN The cluster is down", Refusal("CLUSTERDOWN")),
    ],
)
def test_refusals(text: str, refusal: Refusal) -> None:
    assert is_refusal(hiredis.ReplyError(text))
    assert parse_refusal(text, "asked") == refusal


def test_other_errors_are_none() -> None:
    assert not is_refusal(hiredis.ReplyError("READONLY You can't write against a read only replica."))
    assert not is_refusal(ConnectionError("MOVED 1 a:1"))


def test_key_of_a_command() -> None:
    assert key_of(["XRANGE", "log", "-", "+"]) == "log"
    assert key_of(["EVALSHA", "sha", 2, b"first", "second"]) == "first"
    assert key_of(["FCALL", "function", 2, b"first", "second"]) == "first"
    assert [key_of(one) for one in (["TIME"], ["PUBLISH", "channel", "message"], ["EVALSHA", "sha", 0])] == [None] * 3
