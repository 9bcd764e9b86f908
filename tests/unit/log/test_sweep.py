"""What background tasks do for every log, with pauses: other work waits for a part of the logs only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.logs import FakeTopic
from tests.support.rounds import counted_rounds
from tests.unit.log.test_open_logs import state_of
from tidegate.errors import KafkaError
from tidegate.log.append_subscription import AppendSubscription
from tidegate.log.log_refresh import LogRefresher
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.log.progress import Progress
from tidegate.log.upkeep import upkeep_item
from tidegate.settings import Settings
from tidegate.store.key_lanes import KeyLanes
from tidegate.store.store import Store

AT_ONCE = 500
COUNT = 1_700
TOPIC: Any = FakeTopic(name="wide", partition_count=COUNT)


@pytest.fixture
async def logs() -> Logs:
    """Without connections."""
    settings = Settings()
    return Logs(Store(settings), settings)


def open_logs(logs: Logs) -> list[PartitionLog]:
    """With states, and in the upkeep list."""
    opened = [logs.batch_log(TOPIC, index) for index in range(COUNT)]
    for index, log in enumerate(opened):
        log.state = state_of(index)
        logs._upkeep_known.add(upkeep_item(TOPIC, index))
    return opened


def subscribe(logs: Logs) -> list[PartitionLog]:
    opened = open_logs(logs)
    for log in opened:
        log.on_change(lambda: None)
    return opened


def remember(written: list[Progress]) -> Callable[[Progress], None]:
    """In place of `Progress.write`."""

    def write(self: Progress) -> None:
        written.append(self)

    return write


async def test_sweep_pauses_between_dirty_logs(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.dirty = dict.fromkeys(open_logs(logs))

    with counted_rounds() as rounds:
        monkeypatch.setattr(Progress, "write", rounds.note)
        await logs._sweep()

    assert rounds.total == COUNT
    assert rounds.most <= AT_ONCE


async def test_sweep_pauses_between_moved_starts(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.moved_starts = dict.fromkeys(open_logs(logs))
    noted: list[int] = []
    monkeypatch.setattr("tidegate.log.logs.note", lambda send, key, names: noted.append(len(list(names))))

    await logs._sweep()

    assert sum(noted) == COUNT
    assert max(noted) <= AT_ONCE
    assert not logs.moved_starts


async def test_sweep_pauses_between_subscriptions(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(logs)

    with counted_rounds() as rounds:
        monkeypatch.setattr(AppendSubscription, "sweep", rounds.note)
        await logs._sweep()

    assert rounds.total == COUNT
    assert rounds.most <= AT_ONCE


async def test_poll_pauses_between_subscriptions(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    for log in subscribe(logs):
        log.state = None

    with counted_rounds() as rounds:
        monkeypatch.setattr(LogRefresher, "refresh", rounds.note)
        await logs._poll()

    assert rounds.total == COUNT
    assert rounds.most <= AT_ONCE


async def test_removed_topic_is_closed_with_pauses(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(logs)
    close = PartitionLog.close

    with counted_rounds() as rounds:

        def counted(self: PartitionLog, reason: KafkaError) -> None:
            rounds.note()
            close(self, reason)

        monkeypatch.setattr(PartitionLog, "close", counted)
        logs.forget_topic(TOPIC)
        while logs.open_logs:
            await asyncio.sleep(0)

    assert rounds.total == COUNT
    assert rounds.most <= AT_ONCE
    assert not logs.is_subscribed


async def test_append_during_a_sweep_is_written_by_this_one_or_the_next(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_logs(logs)
    written: list[Progress] = []
    monkeypatch.setattr(Progress, "write", remember(written))
    logs.dirty = dict.fromkeys(opened)

    sweep = asyncio.create_task(logs._sweep())
    await asyncio.sleep(0)
    first, last = opened[0], opened[-1]
    logs.dirty.update(dict.fromkeys((first, last)))
    await sweep

    assert list(logs.dirty) == [first], "it had been written before"
    assert written == [log.progress for log in opened]


async def test_close_during_a_sweep_writes_what_is_left(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_logs(logs)
    written: list[Progress] = []
    monkeypatch.setattr(Progress, "write", remember(written))
    logs.dirty = dict.fromkeys(opened)
    logs._loops.every("log-sweep", 0, logs._sweep)
    while not written:
        await asyncio.sleep(0)
    assert len(written) < COUNT

    await logs.close()

    assert sorted(map(id, written)) == sorted(id(log.progress) for log in opened)


async def test_topic_removed_during_a_sweep(logs: Logs) -> None:
    opened = open_logs(logs)
    logs.dirty = dict.fromkeys(opened)

    sweep = asyncio.create_task(logs._sweep())
    await asyncio.sleep(0)
    logs.forget_topic(TOPIC)
    while logs.open_logs:
        await asyncio.sleep(0)
    await sweep

    assert all(log.closed for log in opened)
    assert logs.open_logs.bytes == 0


async def test_log_of_a_sweep_is_not_evicted_before_it_is_written(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    logs.dirty = dict.fromkeys(open_logs(logs))
    written: list[Progress] = []
    monkeypatch.setattr(Progress, "write", remember(written))

    sweep = asyncio.create_task(logs._sweep())
    await asyncio.sleep(0)
    logs.open_logs._bytes_max = 0
    logs.open_logs.evict(2 * COUNT)
    await sweep

    assert len(written) == COUNT


@pytest.mark.parametrize("is_moved", [False, True])
async def test_states_of_many_logs_are_voided_with_one_line(
    logs: Logs, monkeypatch: pytest.MonkeyPatch, is_moved: bool
) -> None:
    opened = open_logs(logs)
    monkeypatch.setattr(KeyLanes, "has_moved", is_moved)

    with capture_logs() as lines:
        logs._logs_moved() if is_moved else logs.drop_states()

    assert all(log.state is None for log in opened)
    assert [line["logs"] for line in lines] == [COUNT]
