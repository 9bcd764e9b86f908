"""Reads of one offset that share an XRANGE, or wait for a refresh: each is answered, also where something raises."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.logs import batch_bytes
from tidegate.errors import KafkaError
from tidegate.log import read as reading
from tidegate.log.read import Reads, Slice
from tidegate.log.state import LogState
from tidegate.log.tail import LogPages, TailCache
from tidegate.store.outcome import Ok

ENTRIES = [[b"0-1", [b"w", b"x:1", b"b", batch_bytes(count=3)]]]


class FakeLog:
    """A log of one entry whose replies, refreshes and archive the test answers."""

    def __init__(self) -> None:
        self.state = LogState(3, 0, 0, [(0, 0)], 1, 3)
        self.pages: Any = LogPages(TailCache(1 << 20))
        self.keys = SimpleNamespace(log="log")
        self.lanes = SimpleNamespace(up=True, read=lambda command, on_outcome: self.xranges.append(on_outcome))
        self.xranges: list[Callable[[Any], None]] = []
        self.refreshes: list[Callable[[KafkaError | None], None]] = []
        self.archived: list[Callable[[Any], None]] = []
        self.is_subscribed = True
        self.loop = SimpleNamespace(time=lambda: 100.0)
        self.poll_s = 1.0

    def refresh(self, on_refreshed: Any) -> None:
        self.refreshes.append(on_refreshed)

    def read(self, offset: int, limit: int, bytes_max: int, at_least_one: bool, on_done: Any) -> None:
        self.archived.append(on_done)

    def reads(self) -> Reads:
        log: Any = self
        return Reads(log, log, log, log)


def test_reads_behind_one_that_raises_are_answered() -> None:
    log, answers, failures = FakeLog(), list[Any](), list[Any]()

    def failing(answer: Slice | KafkaError) -> None:
        failures.append(answer)
        if len(failures) == 1:
            raise MemoryError

    reads = log.reads()
    for on_done in (answers.append, failing, answers.append):
        reads.read(0, 1 << 20, True, on_done, False)
    log.xranges[0](Ok(ENTRIES))

    assert [answer.end_offset for answer in answers] == [3, 3]
    assert isinstance(failures[1], KafkaError)


def test_reads_are_answered_where_their_entries_cannot_be_cached() -> None:
    log, answers = FakeLog(), list[Any]()

    def insert(entries: Any) -> None:
        raise MemoryError

    log.pages = SimpleNamespace(insert=insert, find=lambda offset: None)
    reads = log.reads()
    for _ in range(2):
        reads.read(0, 1 << 20, True, answers.append, False)
    while log.xranges:
        log.xranges.pop()(Ok(ENTRIES))

    assert len(answers) == 2
    assert all(isinstance(answer, KafkaError) for answer in answers)


@pytest.mark.parametrize("waits_for", ["refreshes", "archived"])
def test_read_that_raises_after_a_wait_is_answered(waits_for: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log, answers = FakeLog(), list[Any]()
    if waits_for == "refreshes":
        log.is_subscribed = False
    else:
        log.state.local_start = 3
    log.reads().read(0, 1 << 20, True, answers.append, False)

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(reading, "_slice" if waits_for == "archived" else "page_entries", fail)
    getattr(log, waits_for)[0](None if waits_for == "refreshes" else SimpleNamespace(size=1, end_offset=3, buffers=[]))

    assert isinstance(answers[0], KafkaError)


def test_offset_is_read_again_after_its_read_could_not_be_sent() -> None:
    log, answers = FakeLog(), list[Any]()

    def fail(*_: Any) -> None:
        raise MemoryError

    reads, send = log.reads(), log.lanes.read
    log.lanes.read = fail
    with pytest.raises(MemoryError):
        reads.read(0, 1 << 20, True, answers.append, False)
    log.lanes.read = send
    reads.read(0, 1 << 20, True, answers.append, False)
    log.xranges[0](Ok(ENTRIES))

    assert [answer.end_offset for answer in answers] == [3]
