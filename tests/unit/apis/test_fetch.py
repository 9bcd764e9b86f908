"""Fetch's budget, waiting and sessions over logs that answer on command."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.support.log_broker import Asked, fetch_request
from tests.unit.apis.fakes import BATCH_BYTES, FakeBroker, FakeLog
from tests.unit.server.fakes import until
from tidegate.apis.fetch import Fetching
from tidegate.apis.slices import SLICE
from tidegate.errors import StoreUnavailable
from tidegate.protocol.log_writers import SharedFetch
from tidegate.records.batch import Codec, holds_zstd, place
from tidegate.records.build import NewRecord, build_batch

ALL = [("t", [(index, 0) for index in range(4)])]


def sizes(response: Any) -> dict[int, int]:
    return {part.partition_index: len(part.records) for topic in response.responses for part in topic.partitions}


def given_logs(*ends: int) -> list[FakeLog]:
    logs = [FakeLog() for _ in ends]
    for log, end in zip(logs, ends, strict=True):
        log.end = end
    return logs


@pytest.mark.parametrize("held", [False, True])
async def test_budget_is_filled_in_order_whether_reads_are_late_or_not(held: bool):
    logs = given_logs(0, 2, 5, 5)
    for log in logs:
        log.held = held
    request = fetch_request(ALL, max_bytes=4 * BATCH_BYTES, partition_max_bytes=3 * BATCH_BYTES)
    asked = FakeBroker(logs).connect().send(request)
    for _ in range(6):
        await asyncio.sleep(0)
        for log in logs:
            log.release()

    assert sizes(await asked.answer) == {0: 0, 1: 2 * BATCH_BYTES, 2: 2 * BATCH_BYTES, 3: 0}


def one_by_one(ends: list[int], max_bytes: int, partition_max_bytes: int) -> dict[int, int]:
    """What each partition gets when all are read one after the other: Kafka's rule."""
    reported, total = {}, 0
    for index, end in enumerate(ends):
        count = min(end, min(partition_max_bytes, max_bytes - total) // BATCH_BYTES) if total < max_bytes else 0
        if not total and end and not count:
            count = 1
        reported[index] = count * BATCH_BYTES
        total += reported[index]
    return reported


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=6),
    st.integers(0, 1_200),
    st.integers(0, 600),
    st.randoms(use_true_random=False),
)
def test_answers_are_the_same_in_whatever_order_reads_arrive(
    logs: list[tuple[int, bool]], max_bytes: int, partition_max_bytes: int, order: Random
):
    async def run() -> dict[int, int]:
        fakes = given_logs(*(end for end, _ in logs))
        for fake, (_, held) in zip(fakes, logs, strict=True):
            fake.held = held
        wanted = [("t", [(index, 0) for index in range(len(logs))])]
        request = fetch_request(wanted, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
        asked = FakeBroker(fakes).connect().send(request)
        while not asked.answer.done():
            order.choice(fakes).release()
        return sizes(asked.answer.result())

    assert asyncio.run(run()) == one_by_one([end for end, _ in logs], max_bytes, partition_max_bytes)


async def test_fetch_late_reads_run_concurrently_within_the_budget():
    logs = given_logs(1, 1, 1, 1)
    for log in logs:
        log.held = True
    FakeBroker(logs).connect().send(fetch_request(ALL, max_bytes=10 * BATCH_BYTES, partition_max_bytes=5 * BATCH_BYTES))

    assert [len(log.reads) for log in logs] == [1, 1, 0, 0]


async def test_first_batch_is_whole_wherever_it_is():
    logs = given_logs(0, 0, 1, 1)
    for log in logs:
        log.held = True
    asked = FakeBroker(logs).connect().send(fetch_request(ALL, max_bytes=50, partition_max_bytes=10))
    for _ in range(10):
        await asyncio.sleep(0)
        for log in logs:
            log.release()

    assert sizes(await asked.answer) == {0: 0, 1: 0, 2: BATCH_BYTES, 3: 0}


async def test_waiting_reads_on_only_where_something_changed():
    logs = given_logs(0, 1, 0, 0)
    client = FakeBroker(logs).connect()
    asked = client.send(fetch_request(ALL, max_wait_ms=5_000, min_bytes=4 * BATCH_BYTES))
    assert [len(log.reads) for log in logs] == [1, 1, 1, 1]
    for expected in (2, 3):
        logs[1].grow()
        await until(lambda expected=expected: len(logs[1].reads) == expected)  # type: ignore[misc]
        await asyncio.sleep(0.01)
        assert [len(log.reads) for log in logs] == [1, expected, 1, 1]
    assert logs[1].reads[-1][0] == 2  # from where the last read ended
    logs[3].grow()

    assert sizes(await asked.answer) == {0: 0, 1: 3 * BATCH_BYTES, 2: 0, 3: BATCH_BYTES}
    assert not any(log.listeners for log in logs)


async def test_trim_below_the_offset_ends_the_wait():
    (log,) = given_logs(1)
    asked = FakeBroker([log]).connect().send(fetch_request([("t", [(0, 0)])], max_wait_ms=5_000, min_bytes=1_000))
    log.start = 1
    log.grow()

    (topic,) = (await asked.answer).responses
    assert topic.partitions[0].error_code is ErrorCode.offset_out_of_range
    assert topic.partitions[0].log_start_offset == -1


async def test_fetch_append_between_read_and_wait_is_noticed():
    log, slow = given_logs(0, 0)
    slow.held = True
    asked = FakeBroker([log, slow]).connect().send(fetch_request([("t", [(0, 0), (1, 0)])], max_wait_ms=5_000))
    log.grow()  # nobody listens yet: the other partition is still being read
    slow.release()

    assert sizes(await asyncio.wait_for(asked.answer, 30)) == {0: BATCH_BYTES, 1: 0}


async def test_fetch_session_reads_only_changed_partitions():
    logs = given_logs(0, 0, 0, 0)
    client = FakeBroker(logs).connect()
    session_id = (await client.ask(fetch_request(ALL, session=(0, 0)))).session_id
    for epoch in (1, 2):
        assert sizes(await client.ask(fetch_request([], session=(session_id, epoch)))) == {}
    assert [len(log.reads) for log in logs] == [1, 1, 1, 1]
    logs[2].grow()
    reported = await client.ask(fetch_request([], session=(session_id, 3)))
    assert sizes(reported) == {2: BATCH_BYTES}
    again = await client.ask(fetch_request([], session=(session_id, 4)))
    assert sizes(again) == {2: BATCH_BYTES}  # the client has not moved on
    moved = await client.ask(fetch_request([("t", [(2, 1)])], session=(session_id, 5)))
    assert sizes(moved) == {}
    client.close()
    assert not any(log.listeners for log in logs)


async def test_fetch_store_unavailable_is_answered_after_a_pause_and_recovers():
    (log,) = given_logs(3)
    log.failure = StoreUnavailable("away")
    client = FakeBroker([log]).connect()
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    first = await client.ask(fetch_request([("t", [(0, 3)])], session=(0, 0), max_wait_ms=5_000))
    assert first.responses[0].partitions[0].error_code is ErrorCode.kafka_storage_error
    assert 0.05 < loop.time() - started_s < 2
    log.failure = None
    shown = await client.ask(fetch_request([], session=(first.session_id, 1)))
    assert shown.responses[0].partitions[0].high_watermark == 3
    assert sizes(await client.ask(fetch_request([], session=(first.session_id, 2)))) == {}


async def test_fetch_closed_connection_during_the_read_leaves_nothing():
    (log,) = given_logs(0)
    log.held = True
    broker = FakeBroker([log])
    client = broker.connect()
    asked = client.send(fetch_request([("t", [(0, 0)])], max_wait_ms=60_000))
    client.close()
    log.release()

    assert not log.listeners and not asked.answer.done()
    assert broker.context.fetch_waits._parked == {}


async def test_followers_are_refused():
    request = fetch_request([("t", [(0, 0)])], version=11)
    object.__setattr__(request, "replica_id", 3)
    with pytest.raises(Exception, match="do not fetch from each other"):
        FakeBroker(given_logs(1)).connect().send(request)


@pytest.mark.parametrize("version", range(4, 13))
async def test_every_version_is_answered(version: int):
    response = await FakeBroker(given_logs(2)).connect().ask(fetch_request([("t", [(0, 0)])], version=version))
    assert sizes(response) == {0: 2 * BATCH_BYTES}


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_aborted_transactions_are_listed_for_read_committed_only(isolation_level: int):
    request = fetch_request([("t", [(0, 0)])], isolation_level=isolation_level)
    response = await FakeBroker(given_logs(1)).connect().ask(request)
    assert response.responses[0].partitions[0].aborted_transactions == (() if isolation_level else None)


def test_zstd_is_found_among_batches():
    plain, zstd = (build_batch([NewRecord(b"v" * 100)], codec=codec) for codec in (Codec.LZ4, Codec.ZSTD))
    assert not holds_zstd([plain, *place(plain, 7, 0), plain])
    assert holds_zstd([plain, *place(plain, 7, 0), zstd])
    assert holds_zstd([*place(plain, 7, 0), *place(zstd, 8, 0), plain])


async def test_fetch_that_starts_after_its_connection_closed_leaves_nothing():
    broker = FakeBroker(given_logs(0))
    connection = broker.connect()
    connection.client.end()

    connection.send(fetch_request([("t", [(0, 0)])], session=(0, 0), max_wait_ms=60_000))

    assert len(broker.context.fetch_sessions) == 0
    assert broker.context.fetch_waits._parked == {}
    assert len(broker.context.log_ends) == 0


# -- failures outside of the handler


class FailsOnce:
    """Stands for a method; raises MemoryError at one call."""

    def __init__(self, method: Any, at: int = 1) -> None:
        self.method, self.left = method, at

    def __get__(self, instance: Any, owner: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if not self.left:
                raise MemoryError
            return self.method(instance, *args, **options)

        return call


async def closed(*asked: Asked) -> list[bool]:
    """Whether requests close their connections, instead of getting an answer."""
    async with asyncio.timeout(30):
        assert [await one.answer for one in asked] == [None] * len(asked)
    return [one.closed is not None for one in asked]


@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
async def test_fetch_without_an_answer_at_its_deadline_closes(
    session: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    broker = FakeBroker(given_logs(0))
    monkeypatch.setattr(Fetching, "_reported", FailsOnce(Fetching._reported))
    asked = broker.connect().send(fetch_request([("t", [(0, 0)])], session=session, max_wait_ms=20))

    assert await closed(asked) == [True]
    assert len(broker.context.log_ends) == 0


async def test_fetch_that_fails_when_its_records_arrive_closes(monkeypatch: pytest.MonkeyPatch):
    logs = given_logs(1, 1)
    logs[0].held = True
    asked = FakeBroker(logs).connect().send(fetch_request([("t", [(0, 0), (1, 0)])]))
    await until(lambda: logs[0].waiting)
    monkeypatch.setattr(Fetching, "_take", FailsOnce(Fetching._take))
    logs[0].release()

    assert await closed(asked) == [True]


async def test_fetch_that_fails_among_other_partitions_closes_once(monkeypatch: pytest.MonkeyPatch):
    broker = FakeBroker(given_logs(0, 0))
    monkeypatch.setattr(Fetching, "_take", FailsOnce(Fetching._take))
    asked = broker.connect().send(fetch_request([("t", [(0, 0), (1, 0)])], max_wait_ms=60_000))

    assert await closed(asked) == [True]
    assert not any(broker.context.fetch_waits._parked.values())


async def test_fetch_that_fails_after_its_topic_was_found_closes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Fetching, "_read", FailsOnce(Fetching._read))
    asked = FakeBroker(given_logs(1), found=False).connect().send(fetch_request([("t", [(0, 0)])]))

    assert await closed(asked) == [True]


async def test_fetch_that_fails_in_a_later_slice_closes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Fetching, "_read", FailsOnce(Fetching._read, SLICE + 1))
    wanted = [("t", [(index, 0) for index in range(SLICE + 2)])]
    asked = FakeBroker(given_logs(*[0] * (SLICE + 2))).connect().send(fetch_request(wanted))

    assert await closed(asked) == [True]


async def test_fetch_that_fails_with_shared_records_closes(monkeypatch: pytest.MonkeyPatch):
    logs = given_logs(0)
    broker = FakeBroker(logs)
    asked = broker.connect().send(fetch_request([("t", [(0, 0)])], session=(0, 0), max_wait_ms=60_000))
    await until(lambda: logs[0].listeners)
    monkeypatch.setattr(SharedFetch, "in_session", FailsOnce(SharedFetch.in_session))
    logs[0].grow()

    assert await closed(asked) == [True]


async def test_fetch_that_fails_when_resumed_closes_and_others_are_answered(monkeypatch: pytest.MonkeyPatch):
    logs = given_logs(0, 0)
    broker = FakeBroker(logs)
    request = fetch_request([("t", [(0, 0), (1, 0)])], min_bytes=2 * BATCH_BYTES, max_wait_ms=60_000)
    asked = [broker.connect(number).send(request) for number in (1, 2)]
    await until(lambda: all(log.listeners for log in logs))
    monkeypatch.setattr(Fetching, "_evaluate", FailsOnce(Fetching._evaluate))
    for log in logs:
        log.grow()

    assert await closed(asked[0]) == [True]
    async with asyncio.timeout(30):
        assert sizes(await asked[1].answer) == {0: BATCH_BYTES, 1: BATCH_BYTES}
