"""Replies are printed as redis-cli prints them."""

from __future__ import annotations

import io

import pytest

from tidegate.cli.client.redis_command import Failure, Reply, Status, raw, read_reply, shown


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (None, "(nil)"),
        (Status("OK"), "OK"),
        (b"OK", '"OK"'),
        (1, "(integer) 1"),
        (Failure("ERR no such command"), "(error) ERR no such command"),
        ([], "(empty array)"),
        ([b"a", 2, None], '1) "a"\n2) (integer) 2\n3) (nil)'),
        (b'a"b\\c\n\x00\xff', '"a\\"b\\\\c\\n\\x00\\xff"'),
    ],
)
def test_reply_is_shown_as_redis_cli_shows_it(reply: Reply, text: str) -> None:
    assert shown(reply) == text


def test_nested_replies_are_indented_under_their_number() -> None:
    entries: Reply = [[b"0-1", [b"w", b"x"]], [b"1-1", []]]

    assert shown(entries) == '1) 1) "0-1"\n   2) 1) "w"\n      2) "x"\n2) 1) "1-1"\n   2) (empty array)'


def test_numbers_are_aligned_from_ten_elements_on() -> None:
    lines = shown([*range(9), [b"a", b"b"]]).splitlines()

    assert lines[0] == " 1) (integer) 0"
    assert lines[9:] == ['10) 1) "a"', '    2) "b"']


def test_raw_is_the_bytes_alone() -> None:
    assert raw([b"a\x00", [1, None], Status("OK")]) == b"a\x00\n1\n\nOK"


def test_replies_are_read_from_the_wire() -> None:
    wire = io.BytesIO(b"*4\r\n$5\r\na\r\nb\x00\r\n:-3\r\n*-1\r\n$-1\r\n+OK\r\n-ERR x\r\n")

    assert read_reply(wire) == [b"a\r\nb\x00", -3, None, None]
    assert read_reply(wire) == Status("OK")
    assert read_reply(wire) == Failure("ERR x")


@pytest.mark.parametrize("wire", [b"", b"$5\r\nab", b"*2\r\n:1\r\n", b"HTTP/1.1 400 Bad Request\r\n"])
def test_reply_that_ends_early_or_is_none_is_an_error(wire: bytes) -> None:
    with pytest.raises(ConnectionError):
        read_reply(io.BytesIO(wire))
