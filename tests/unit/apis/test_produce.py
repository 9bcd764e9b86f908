"""Produce over logs that answer late, not at all, or with failure."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.log_broker import produce_request
from tests.support.rounds import counted_rounds
from tests.unit.apis.fakes import FakeBroker, FakeLog
from tests.unit.apis.test_listings import noted
from tests.unit.server.fakes import until
from tidegate.errors import KafkaError, OutOfOrderSequenceNumber, RequestTimedOut, StoreUnavailable
from tidegate.log.unresolved import LogUnreachable
from tidegate.protocol import log_writers
from tidegate.records.batch import Codec
from tidegate.records.build import NewRecord, build_batch, seal
from tidegate.records.validation import INLINE_RECORDS_MAX, OPENED_RECORDS_MAX

NOW = NewRecord(b"value", b"key", int(time.time() * 1000))


def answers(response: Any) -> list[tuple[int, ErrorCode, int]]:
    return [
        (part.index, part.error_code, part.base_offset)
        for topic in response.responses
        for part in topic.partition_responses
    ]


async def test_partitions_are_answered_together_in_the_order_asked():
    slow, fast = FakeLog(), FakeLog()
    slow.held = True
    asked = (
        FakeBroker([fast, slow])
        .connect()
        .send(produce_request([("t", [(1, build_batch([NOW])), (0, build_batch([NOW]))]), ("t", [(5, None)])]))
    )
    await until(lambda: fast.end == 1 and slow.waiting)
    assert not asked.answer.done()
    slow.release()
    assert answers(await asked.answer) == [
        (1, ErrorCode.none, 0),
        (0, ErrorCode.none, 0),
        (5, ErrorCode.unknown_topic_or_partition, -1),
    ]


async def test_produce_unfinished_at_the_timeout_is_answered_so():
    slow, fast = FakeLog(), FakeLog()
    slow.held = True
    request = produce_request([("t", [(0, build_batch([NOW])), (1, build_batch([NOW]))])], timeout_ms=30)
    response = await FakeBroker([slow, fast]).connect().ask(request)

    assert answers(response) == [(0, ErrorCode.request_timed_out, -1), (1, ErrorCode.none, 0)]
    slow.release()  # too late for a reply, and no harm
    assert slow.end == 1


async def test_produce_without_a_timeout_has_the_time_of_an_append():
    log = FakeLog()
    log.held = True
    asked = FakeBroker([log]).connect().send(produce_request([("t", [(0, build_batch([NOW]))])], timeout_ms=0))
    await until(lambda: log.waiting)
    log.release()
    assert answers(await asked.answer) == [(0, ErrorCode.none, 0)]


@pytest.mark.parametrize("acks", [0, 1, -1])
async def test_produce_that_was_answered_is_released(acks: int):
    slow, fast = FakeLog(), FakeLog()
    slow.held = True
    broker = FakeBroker([slow, fast])
    for partition in (0, 1, 1, 1):
        broker.connect().send(produce_request([("t", [(partition, build_batch([NOW]))])], acks=acks))
    await until(lambda: fast.end == 3 and slow.waiting)

    assert [len(queue) for queue in broker.context.produce_timeouts._queues.values()] == [1]
    slow.release()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreUnavailable("away"), ErrorCode.kafka_storage_error),
        (RequestTimedOut("unknown"), ErrorCode.request_timed_out),
        (OutOfOrderSequenceNumber(), ErrorCode.out_of_order_sequence_number),
        (KafkaError(), ErrorCode.unknown_server_error),
    ],
)
async def test_failures_of_the_log_become_codes(failure: KafkaError, code: ErrorCode):
    log = FakeLog()
    log.failure = failure
    response = await FakeBroker([log]).connect().ask(produce_request([("t", [(0, build_batch([NOW]))])]))
    assert answers(response) == [(0, code, -1)]


async def test_produce_log_unreachable_closes_the_connection():
    log, other = FakeLog(), FakeLog()
    log.failure = LogUnreachable("away")
    request = produce_request([("t", [(0, build_batch([NOW])), (1, build_batch([NOW]))])])
    asked = FakeBroker([log, other]).connect().send(request)
    await until(lambda: asked.closed is not None)
    assert asked.closed is not None and "away" in asked.closed


async def test_produce_topic_absent_from_the_cache_is_refreshed_once():
    broker = FakeBroker([FakeLog()], found=False)
    response = await broker.connect().ask(
        produce_request([("t", [(0, build_batch([NOW]))]), ("nope", [(0, build_batch([NOW]))])])
    )
    assert answers(response) == [(0, ErrorCode.none, 0), (0, ErrorCode.unknown_topic_or_partition, -1)]
    assert broker.lookups == 2


async def test_nothing_is_stored_when_acks_or_transactions_are_wrong():
    log = FakeLog()
    client = FakeBroker([log]).connect()
    transactional = [
        build_batch([NOW], producer_id=pid, producer_epoch=0, base_sequence=0, attributes=0x10) for pid in (1, 2)
    ]
    for fields, code in (
        ({"acks": 5}, ErrorCode.invalid_required_acks),
        ({}, ErrorCode.transactional_id_authorization_failed),
        ({"transactional_id": ""}, ErrorCode.invalid_request),
        ({"transactional_id": "T"}, ErrorCode.invalid_producer_id_mapping),
    ):
        request = produce_request([("t", [(0, transactional[0]), (0, transactional[1])])], **fields)
        response = await client.ask(request)
        assert answers(response) == [(0, code, -1)] * 2
    assert not log.appended


async def test_produce_small_batch_releases_its_frame():
    log, other = FakeLog(), FakeLog()
    large = build_batch([NOW._replace(value=bytes(50_000))])
    await FakeBroker([log, other]).connect().ask(produce_request([("t", [(0, build_batch([NOW])), (1, large)])]))

    assert len(log.appended[0].buffer.obj) == log.appended[0].size  # type: ignore[arg-type]
    assert len(other.appended[0].buffer.obj) > other.appended[0].size  # type: ignore[arg-type]


@pytest.mark.parametrize("version", range(3, 13))
async def test_every_version_is_answered(version: int):
    response = (
        await FakeBroker([FakeLog()])
        .connect()
        .ask(produce_request([("t", [(0, build_batch([NOW])), (1, None)])], version=version))
    )
    assert answers(response) == [(0, ErrorCode.none, 0), (1, ErrorCode.unknown_topic_or_partition, -1)]


async def test_large_batch_is_opened_in_a_thread_and_later_requests_wait():
    log = FakeLog()
    broker = FakeBroker([log])
    log.topic.config.cleanup_policy = frozenset({"compact"})
    connection = broker.connect()
    records = [NOW] * (INLINE_RECORDS_MAX + 1)

    response = await connection.ask(produce_request([("t", [(0, build_batch(records, codec=Codec.ZSTD))])]))
    assert answers(response) == [(0, ErrorCode.none, 0)]
    assert connection.ran_alone == 1

    response = await connection.ask(produce_request([("t", [(0, build_batch([NOW]))])]))
    assert answers(response) == [(0, ErrorCode.none, 1)]
    assert connection.ran_alone == 1


async def test_batch_that_claims_too_many_records_is_not_opened():
    log = FakeLog()
    broker = FakeBroker([log])
    log.topic.config.cleanup_policy = frozenset({"compact"})
    batch = bytearray(build_batch([NOW], codec=Codec.ZSTD))
    struct.pack_into(">i", batch, 23, OPENED_RECORDS_MAX)
    struct.pack_into(">i", batch, 57, OPENED_RECORDS_MAX + 1)

    response = await broker.connect().ask(produce_request([("t", [(0, bytes(seal(batch)))])]))

    assert answers(response) == [(0, ErrorCode.invalid_record, -1)]
    assert log.appended == []


async def test_produce_many_partitions_are_queued_in_slices_and_answered_in_order():
    broker = FakeBroker([FakeLog()])
    connection = broker.connect()
    asked = [(0, build_batch([NOW])), *((index, None) for index in range(1, 1_200))]

    response = await connection.ask(produce_request([("t", asked)]))

    assert [index for index, *_ in answers(response)] == list(range(1_200))
    assert answers(response)[0] == (0, ErrorCode.none, 0)
    assert connection.ran_alone == 1


@pytest.mark.parametrize("name", ["t", "nope"])
async def test_produce_topics_without_partitions_are_not_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    broker = FakeBroker([FakeLog()], found=name == "t")
    with counted_rounds() as gets:
        noted(monkeypatch, gets, broker.context.catalog, "get")
        asked = [*[(name, [])] * 10_000, ("t", [(0, build_batch([NOW]))])]
        response = await broker.connect().ask(produce_request(asked))

    assert [topic.name for topic in response.responses] == [topic for topic, _ in asked]
    assert answers(response) == [(0, ErrorCode.none, 0)]
    assert broker.lookups == (name != "t")
    assert gets.total <= 2


@pytest.mark.parametrize(("count", "of_each"), [(1_800, 0), (10_000, 0), (1_100, 1)])
async def test_produce_large_answer_is_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, count: int, of_each: int
) -> None:
    threads: list[threading.Thread] = []
    write = log_writers.produce

    def noting(*args: Any) -> bytes:
        threads.append(threading.current_thread())
        return write(*args)

    monkeypatch.setattr(log_writers, "produce", noting)
    response = await FakeBroker([FakeLog()]).connect().ask(produce_request([("t", [(5, None)] * of_each)] * count))

    assert len(response.responses) == count
    assert [thread is threading.main_thread() for thread in threads] == [count == 1_800]


async def test_produce_batch_that_readers_cannot_read_is_refused() -> None:
    log = FakeLog()
    broker = FakeBroker([log])
    batch = bytearray(build_batch([NOW] * 3, codec=Codec.GZIP))
    batch[-20:] = b"garbage-garbage-garb"
    claims = bytearray(build_batch([NOW], codec=Codec.ZSTD))
    struct.pack_into(">i", claims, 23, 2**31 - 2)
    struct.pack_into(">i", claims, 57, 2**31 - 1)
    partitions = [(0, bytes(seal(batch))), (0, bytes(seal(claims)))]

    response = await broker.connect().ask(produce_request([("t", partitions)]))

    codes = [code for _, code, _ in answers(response)]
    assert codes == [ErrorCode.corrupt_message, ErrorCode.invalid_record]
    assert log.appended == []


@pytest.mark.parametrize("cleanup_policy", ["delete", "compact"])
async def test_produce_of_trusted_producers_opens_compressed_batches_only_where_a_rule_needs_it(cleanup_policy: str):
    log = FakeLog()
    broker = FakeBroker([log])
    log.topic.config.validates = False
    log.topic.config.cleanup_policy = frozenset({cleanup_policy})
    compressed = bytearray(build_batch([NOW] * 3, codec=Codec.GZIP))
    compressed[-20:] = b"garbage-garbage-garb"
    plain = bytearray(build_batch([NOW] * 3))
    plain[-9:] = b"\xff" * 9
    claims = bytearray(compressed)
    struct.pack_into(">i", claims, 23, OPENED_RECORDS_MAX)
    struct.pack_into(">i", claims, 57, OPENED_RECORDS_MAX + 1)
    bad_checksum = bytes(compressed)
    batches = [bytes(seal(compressed)), bytes(seal(plain)), bytes(seal(claims)), bad_checksum]

    response = await broker.connect().ask(produce_request([("t", [(0, batch) for batch in batches])]))

    codes = [code for _, code, _ in answers(response)]
    stored = ErrorCode.none if cleanup_policy == "delete" else ErrorCode.corrupt_message
    assert codes == [stored, ErrorCode.invalid_record, ErrorCode.invalid_record, ErrorCode.corrupt_message]


@pytest.mark.parametrize(("timeout_ms", "others"), [(20, 0), (60_000, 0), (60_000, 3_000)])
async def test_produce_without_an_answer_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: int, others: int
):
    """The log or the timeout calls back: there is no handler to answer for."""
    log = FakeLog()
    log.held = True

    def fail(version: int, topics: Any) -> bytes:
        raise MemoryError

    monkeypatch.setattr(log_writers, "produce", fail)
    topics = [("t", [(0, build_batch([NOW]))]), *[("t", [])] * others]
    asked = FakeBroker([log]).connect().send(produce_request(topics, timeout_ms=timeout_ms))
    if timeout_ms == 60_000:
        await until(lambda: log.waiting)
        log.release()

    async with asyncio.timeout(30):
        assert await asked.answer is None
    assert asked.closed is not None
