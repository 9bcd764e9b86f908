"""The logs in memory: together below their share, freed at once, and none that is used."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.logs import TOPIC, FakeTopic, FakeTopicConfig, append_later, batch
from tests.support.traced_memory import taken
from tidegate.errors import StoreUnavailable
from tidegate.log.entries import StrayEntry
from tidegate.log.logs import Logs
from tidegate.log.outgoing import Appended
from tidegate.log.partition import PartitionLog
from tidegate.log.producers_table import AppendedBatch, ProducerState
from tidegate.log.state import LogState
from tidegate.memory import LIMIT_BYTES_MIN, shares_of
from tidegate.settings import Settings
from tidegate.store.store import Store

KEY = TOPIC.topic_hex, 0


@dataclass(frozen=True, slots=True)
class RecordConfig(FakeTopicConfig):
    """The configs of a topic of format record."""

    is_record: bool = True
    sequence_bits: int = 10


RECORDS: Any = FakeTopic(name="records", topic_hex="cd" * 16, format="record", config=RecordConfig())


@pytest.fixture
async def logs() -> Logs:
    """Without connections."""
    settings = Settings(memory_max=LIMIT_BYTES_MIN, durability="replicated:1")
    return Logs(Store(settings), settings)


@contextmanager
def without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def producer_of(number: int) -> ProducerState:
    """A producer with five batches."""
    batches = (AppendedBatch(number + i, number + 2 * i, number + 3 * i, number + 4 * i) for i in range(5))
    return ProducerState(300, tuple(batches), number + 1, -1, number + 2)


def state_of(number: int = 0, producers: int = 0) -> LogState:
    """A state as it is loaded; its integers are objects of their own."""
    offset = 10**9 + number
    return LogState(
        end=offset,
        log_start=offset - 999,
        local_start=offset - 999,
        epochs=[(300 + number, offset - 999)],
        failover_epoch=300 + number,
        high_watermark=offset,
        producers={offset + i: producer_of(offset + i) for i in range(producers)},
        stored_high_watermark=offset,
    )


def is_evicted(logs: Logs, topic: Any = TOPIC) -> bool:
    """Whether the log of a partition leaves the memory once idle ones may take no memory."""
    logs.open_logs._bytes_max = 0
    for index in range(1, 4):  # the first time, it may have been used since it was made
        logs.partition(TOPIC, index)
    return (topic.topic_hex, 0) not in logs.open_logs


@pytest.mark.parametrize("producers", [0, 20])
async def test_open_logs_stay_below_their_share(logs: Logs, producers: int) -> None:
    bytes_max = shares_of(LIMIT_BYTES_MIN).logs

    def use_many() -> None:
        for index in range(3_000):
            log: Any = logs.partition(TOPIC, index)
            log.state = state_of(index, producers)
            log.state.verified_at = logs.loop.time()
            logs.open_logs.measure(log)

    held, _ = taken(use_many)
    assert 100 < len(logs.open_logs) < 3_000
    assert bytes_max // 2 < held < bytes_max + shares_of(LIMIT_BYTES_MIN).key_names


@pytest.mark.parametrize("topic", [TOPIC, RECORDS])
async def test_evicted_log_is_freed_without_the_collector(logs: Logs, topic: Any) -> None:
    with without_collector():
        log = weakref.ref(logs.partition(topic, 0))
        logs.new_record_logs.clear()
        assert log() is not None
        assert is_evicted(logs, topic)
        assert log() is None


async def test_open_logs_below_the_share_remain(logs: Logs) -> None:
    used = [logs.partition(TOPIC, index) for index in range(500)]
    for _ in range(3):
        assert [logs.partition(TOPIC, index) for index in range(500)] == used


async def test_open_logs_pass_over_one_that_was_verified_since(logs: Logs) -> None:
    for index in range(3):
        log: Any = logs.partition(TOPIC, index)
        log.state = state_of()
        del log
    logs.open_logs[KEY].state.verified_at = logs.loop.time() + 1
    logs.open_logs._bytes_max = 0
    logs.partition(TOPIC, 3)
    assert {index for _, index in logs.open_logs} == {0, 3}


def give_up(log: PartitionLog) -> None:
    log._appends.give_up(
        SimpleNamespace(batch=batch(producer_id=1, epoch=0, sequence=0), on_done=print), StoreUnavailable()
    )


def prove_more(log: PartitionLog) -> None:
    assert log.state is not None
    log.state.high_watermark = log.state.end = log.state.end + 1


USES: dict[str, Callable[[PartitionLog], Any]] = {
    "by a caller that has it": lambda log: log,
    "by a listener": lambda log: log.on_change(print),
    "by an append": lambda log: append_later(log, batch()),
    "by a load": lambda log: log.with_state(print),
    "by a refresh": lambda log: log.refresher.refresh(print),
    "by a read": lambda log: log.read(log.state.end, 1, True, print),
    "by a read of the archive": lambda log: log.archived_reads.read(0, 1, 1, True, print),
    "by a proof": lambda log: log.high_watermark.when_durable(log.state.end + 1, True, print),
    "a high watermark that is not stored": prove_more,
    "progress that is not stored": lambda log: log.progress.note_truncation(0, 1, 1),
    "a snapshot that is being stored": lambda log: log.progress.save(log.state),
    "a failed batch before later ones": give_up,
    "a stray entry": lambda log: log.found_stray(log.state, StrayEntry((5, 5), "of a program")),
    "a start that moved": lambda log: log.found(log.state, [], log.state.log_start + 1, 0),
}


@pytest.mark.parametrize("use", USES)
async def test_log_that_is_used_is_not_evicted(logs: Logs, use: str) -> None:
    log: Any = logs.partition(TOPIC, 0)
    log.state = state_of()
    log._is_idle_before = log.is_idle
    used = [USES[use](log)]
    del log
    assert logs.open_logs[KEY]._is_idle_before
    assert not is_evicted(logs), used


async def test_log_that_is_idle_is_evicted(logs: Logs) -> None:
    logs.partition(TOPIC, 0).state = state_of()
    assert is_evicted(logs)


@pytest.mark.parametrize("held", [True, False])
async def test_record_log_with_an_open_proof_is_not_evicted(logs: Logs, held: bool) -> None:
    log: Any = logs.partition(RECORDS, 0)
    logs.new_record_logs.clear()
    proofs: list[Callable[[bool], None]] = []
    log.durability.prove = lambda node, on_proved: proofs.append(on_proved)
    outcomes: list[object] = []
    item: Any = SimpleNamespace(acks_all=True, batch=batch(), on_done=outcomes.append)
    log._appends._appended(item, Appended(0, -1, 0, 0))
    del log
    assert not is_evicted(logs, RECORDS)

    proofs[0](held)
    assert len(outcomes) == 1
    assert is_evicted(logs, RECORDS)


async def test_removed_log_is_not_counted(logs: Logs) -> None:
    log: Any = logs.partition(TOPIC, 0)
    logs.forget_topic(TOPIC)
    log.state = state_of(producers=9)
    logs.open_logs.measure(log)
    assert logs.open_logs.bytes == 0


async def test_evictions_are_counted(logs: Logs) -> None:
    logs.partition(TOPIC, 0)
    assert logs.open_logs.evictions == 0
    assert is_evicted(logs)
    assert logs.open_logs.evictions >= 1
