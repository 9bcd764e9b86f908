"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and InitProducerId by scenario, on two brokers over one store."""

from __future__ import annotations

import asyncio
import datetime
import struct
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from bench.cluster import Cluster
from tests.kit.wire import request, request_of_version
from tests.support.log_broker import Connection, LogBroker, fetch_request, produce_request
from tidegate.records.batch import Batch, Codec, iter_headers
from tidegate.records.build import NewRecord, build_batch, seal
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.store import Store

HOUR_MS = 3_600_000
LONG_MS = 600_000  # longer than a test may take: what waits for its end fails


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[tuple[LogBroker, LogBroker]]:
    """Two brokers; topic t with two partitions."""
    first, second = await LogBroker.start(settings), await LogBroker.start(settings)
    await first.create("t", 2)
    await second.catalog.refresh()
    yield first, second
    await first.close()
    await second.close()


@pytest.fixture
def one(brokers: tuple[LogBroker, LogBroker]) -> Connection:
    return brokers[0].connect()


@pytest.fixture
def two(brokers: tuple[LogBroker, LogBroker]) -> Connection:
    return brokers[1].connect()


def batch(*values: bytes, timestamp: int | None = None, **fields: Any) -> bytes:
    now_ms = int(time.time() * 1000) if timestamp is None else timestamp
    return build_batch([NewRecord(value, b"k", now_ms) for value in values], **fields)


def changed(records: bytes, at: int, layout: str, value: int) -> bytes:
    copy = bytearray(records)
    struct.pack_into(layout, copy, at, value)
    return bytes(seal(copy))


async def produce(
    client: Connection, records: bytes | None, *, partition: int = 0, topic: Any = "t", **more: Any
) -> Any:
    """One partition's answer."""
    response = await client.ask(produce_request([(topic, [(partition, records)])], **more))
    return response.responses[0].partition_responses[0]


async def fetched(client: Connection, offset: int, *, partition: int = 0, topic: Any = "t", **more: Any) -> Any:
    """One partition's answer to a sessionless fetch."""
    response = await client.ask(fetch_request([(topic, [(partition, offset)])], **more))
    return response.responses[0].partitions[0]


def reported(response: Any) -> dict[tuple[Any, int], Any]:
    """The partitions of a Fetch answer."""
    return {
        (getattr(topic, "topic", None) or getattr(topic, "topic_id", None), part.partition_index): part
        for topic in response.responses
        for part in topic.partitions
    }


# -- C. Produce and record validation


async def test_26_only_place_is_rewritten(one: Connection):
    await produce(one, batch(*[b"v"] * 10))
    sent = batch(b"eleventh")
    assert (await produce(one, sent)).base_offset == 10

    stored = bytes((await fetched(one, 10)).records)
    assert stored[16:] == sent[16:]
    header = Batch.parse(stored)
    header.verify_crc()
    assert (header.base_offset, header.leader_epoch) == (10, 0)


async def test_27_corrupt_batch_harms_no_other_partition(one: Connection):
    corrupt = bytearray(batch(b"value"))
    corrupt[-3] ^= 1
    response = await one.ask(produce_request([("t", [(0, bytes(corrupt)), (1, batch(b"ok"))])], version=8))

    bad, good = response.responses[0].partition_responses
    assert (bad.error_code, bad.base_offset) == (ErrorCode.corrupt_message, -1)
    assert (good.error_code, good.base_offset) == (ErrorCode.none, 0)


async def test_28_29_malformed_record_sets(one: Connection):
    magic_1 = bytearray(batch(b"v"))
    magic_1[16] = 1
    whole = batch(b"v")
    for records in (
        whole + whole,
        bytes(magic_1),
        b"",
        None,
        changed(whole, 0, ">q", 7),
        changed(whole, 57, ">i", 3),
        changed(whole, 21, ">h", 0x20),
    ):
        answer = await produce(one, records)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.invalid_record, -1)
        assert answer.error_message
    assert (await produce(one, whole, acks=2)).error_code is ErrorCode.invalid_required_acks
    assert (await fetched(one, 0)).high_watermark == 0


async def test_30_too_large(brokers: tuple[LogBroker, LogBroker], one: Connection):
    await brokers[0].create("small", max_message_bytes="1000")
    exact = batch(b"x" * (1000 - len(batch(b"x" * 500)) + 500))
    assert len(exact) == 1000

    assert (await produce(one, exact, topic="small")).error_code is ErrorCode.none
    assert (await produce(one, batch(b"x" * 1000), topic="small")).error_code is ErrorCode.message_too_large


async def test_31_33_record_errors(brokers: tuple[LogBroker, LogBroker], one: Connection):
    await brokers[0].create("keyed", cleanup_policy="compact", message_timestamp_after_max_ms="1000")
    now_ms = int(time.time() * 1000)
    unkeyed = build_batch([NewRecord(b"v", b"k", now_ms), NewRecord(b"v", None, now_ms), NewRecord(b"v", b"k", now_ms)])
    answer = await produce(one, unkeyed, topic="keyed", version=8)
    assert answer.error_code is ErrorCode.invalid_record
    assert [error.batch_index for error in answer.record_errors] == [1]

    mixed = build_batch([NewRecord(b"v", None, now_ms), NewRecord(b"v", b"k", now_ms + HOUR_MS)], codec=Codec.LZ4)
    answer = await produce(one, mixed, topic="keyed")
    assert answer.error_code is ErrorCode.invalid_timestamp
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert (await fetched(one, 0, topic="keyed")).high_watermark == 0


async def test_32_timestamp_out_of_range(brokers: tuple[LogBroker, LogBroker], one: Connection):
    await brokers[0].create("timed", message_timestamp_after_max_ms="1000")
    now_ms = int(time.time() * 1000)
    late = build_batch([NewRecord(b"v", None, now_ms), NewRecord(b"v", None, now_ms + HOUR_MS)])

    answer = await produce(one, late, topic="timed")
    assert answer.error_code is ErrorCode.invalid_timestamp
    assert [error.batch_index for error in answer.record_errors] == [1]
    assert (await produce(one, batch(b"v"), topic="timed")).base_offset == 0


async def test_34_log_append_time(brokers: tuple[LogBroker, LogBroker], one: Connection):
    await brokers[0].create("logged", message_timestamp_type="LogAppendTime")
    before, second = datetime.datetime.now(datetime.UTC), datetime.timedelta(seconds=1)
    sent = build_batch([NewRecord(b"v", None, timestamp) for timestamp in (1, 2, 3)])

    answer = await produce(one, sent, topic="logged")
    assert before - second < answer.log_append_time < datetime.datetime.now(datetime.UTC) + second
    stored = Batch.parse(bytes((await fetched(one, 0, topic="logged")).records))
    stored.verify_crc()
    assert stored.is_log_append_time and stored.base_timestamp == 1
    assert stored.max_timestamp == round(answer.log_append_time.timestamp() * 1000)
    claimed = await produce(one, changed(sent, 21, ">h", 0x08), topic="logged")
    assert claimed.error_code is ErrorCode.invalid_timestamp


async def test_create_time_topic_clears_the_timestamp_type(one: Connection):
    now_ms = int(time.time() * 1000)
    assert (await produce(one, changed(batch(b"v", timestamp=now_ms), 21, ">h", 0x08))).error_code is ErrorCode.none

    stored = Batch.parse(bytes((await fetched(one, 0)).records))
    stored.verify_crc()
    assert not stored.is_log_append_time


async def test_35_zstd_gating(one: Connection):
    zstd = batch(b"v" * 5000, codec=Codec.ZSTD)
    big = build_batch([NewRecord(uuid.uuid4().bytes * 600, None, 1)], codec=Codec.ZSTD)

    assert (await produce(one, zstd, version=6)).error_code is ErrorCode.unsupported_compression_type
    assert (await produce(one, zstd, version=7)).error_code is ErrorCode.none
    assert (await fetched(one, 0, version=9)).error_code is ErrorCode.unsupported_compression_type
    assert (await fetched(one, 0, version=10)).error_code is ErrorCode.none
    await produce(one, batch(b"plain" * 2000), partition=1)
    assert (await fetched(one, 0, partition=1, version=9)).error_code is ErrorCode.none
    await produce(one, big, partition=1)
    assert (await fetched(one, 0, partition=1, version=4)).error_code is ErrorCode.unsupported_compression_type


async def test_36_all_codecs(one: Connection, two: Connection):
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        await produce(one, batch(*[b"value %d" % i for i in range(100)], codec=codec))

    records = bytes((await fetched(two, 0)).records)
    offsets = [record.offset for header in iter_headers(records) for record in read_records(header)]
    assert offsets == list(range(400))


async def test_37_produce_by_topic_id(brokers: tuple[LogBroker, LogBroker], one: Connection):
    topic = brokers[0].catalog.get("default", "t")
    assert topic is not None
    request = produce_request([(topic.topic_id, [(0, batch(b"v"))]), (uuid.uuid4(), [(0, batch(b"v"))])], version=13)
    response = await one.ask(request)

    assert [answer.partition_responses[0].error_code for answer in response.responses] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_id,
    ]


async def test_38_concurrent_producers(brokers: tuple[LogBroker, LogBroker]):
    async def run(client: Connection, number: int) -> list[int]:
        return [(await produce(client, batch(b"%d" % number, b"second"))).base_offset for _ in range(20)]

    runs = await asyncio.gather(*(run(brokers[i % 2].connect(), i) for i in range(20)))

    assert sorted(offset for run in runs for offset in run) == list(range(0, 800, 2))
    assert all(run == sorted(run) for run in runs)


async def test_unknown_topics_and_partitions(one: Connection):
    assert (await produce(one, batch(b"v"), topic="nope")).error_code is ErrorCode.unknown_topic_or_partition
    assert (await produce(one, batch(b"v"), partition=2)).error_code is ErrorCode.unknown_topic_or_partition
    assert (await produce(one, batch(b"v"), partition=-1)).error_code is ErrorCode.unknown_topic_or_partition


async def test_produce_internal_topic_answers_invalid_topic(one: Connection):
    refused = await produce(one, batch(b"v"), topic="__consumer_offsets")
    assert refused.error_code is ErrorCode.invalid_topic_exception


async def test_topic_made_elsewhere_is_found_at_once(brokers: tuple[LogBroker, LogBroker], two: Connection):
    await brokers[0].create("fresh")
    assert (await produce(two, batch(b"v"), topic="fresh")).error_code is ErrorCode.none


async def test_acks_0_is_not_answered_and_failure_closes(one: Connection):
    silent = one.send(produce_request([("t", [(0, batch(b"v"))])], acks=0))
    assert await asyncio.wait_for(silent.answer, 30) is None
    assert silent.closed is None
    failed = one.send(produce_request([("t", [(7, batch(b"v"))])], acks=0))
    assert await asyncio.wait_for(failed.answer, 30) is None
    assert failed.closed is not None
    assert (await fetched(one, 0)).high_watermark == 1


async def test_produce_transactional_batch_of_no_transaction_is_refused(one: Connection):
    records = batch(b"v", producer_id=4, producer_epoch=0, base_sequence=0, attributes=0x10)
    answer = await produce(one, records)
    assert answer.error_code is ErrorCode.transactional_id_authorization_failed
    assert (await produce(one, records, transactional_id="T")).error_code is ErrorCode.invalid_producer_id_mapping


async def test_malformed_produce_closes(one: Connection):
    for body in (b"", b"\0", b"\0\0\xff\xff"):
        asked = one.send_bytes(0, 9, body)
        assert await asked.answer is None
        assert asked.closed is not None


# -- D. Fetch, sessions, ListOffsets


async def test_39_offset_inside_a_batch(one: Connection):
    await produce(one, batch(*[b"v"] * 10))
    assert Batch.parse(bytes((await fetched(one, 5)).records)).base_offset == 0


async def test_40_first_batch_above_limits(one: Connection):
    await produce(one, batch(b"x" * 500_000))
    await produce(one, batch(b"small"), partition=1)

    response = await one.ask(fetch_request([("t", [(0, 0), (1, 0)])], max_bytes=1, partition_max_bytes=1))
    first, second = response.responses[0].partitions
    assert len(first.records) > 500_000
    assert (second.error_code, second.records, second.high_watermark) == (ErrorCode.none, b"", 1)


async def test_fetch_later_partition_may_contain_the_first_batch(one: Connection):
    await produce(one, batch(b"small" * 100), partition=1)

    response = await one.ask(fetch_request([("t", [(0, 0), (1, 0)])], max_bytes=1, partition_max_bytes=1))
    empty, whole = response.responses[0].partitions
    assert empty.records == b""
    assert len(whole.records) > 500


async def test_41_out_of_range(one: Connection):
    await produce(one, batch(*[b"v"] * 5))
    codes = [(await fetched(one, offset)).error_code for offset in (-1, 5, 6)]
    assert codes == [ErrorCode.offset_out_of_range, ErrorCode.none, ErrorCode.offset_out_of_range]


async def test_42_a_fetch_wakes_across_brokers(one: Connection, two: Connection):
    waiting = one.send(fetch_request([("t", [(0, 0)])], max_wait_ms=LONG_MS))
    await asyncio.sleep(0.3)
    assert not waiting.answer.done()
    await produce(two, batch(b"v"))

    response = await asyncio.wait_for(waiting.answer, 30)
    assert reported(response)["t", 0].high_watermark == 1


async def test_43_an_error_answers_at_once(one: Connection):
    response = await one.ask(fetch_request([("t", [(0, 0), (9, 0)])], max_wait_ms=LONG_MS))

    parts = reported(response)
    assert parts["t", 9].error_code is ErrorCode.unknown_topic_or_partition
    assert parts["t", 0].error_code is ErrorCode.none


async def test_44_session_lifecycle(one: Connection):
    for partition in (0, 1):
        await produce(one, batch(b"v"), partition=partition)
    created = await one.ask(fetch_request([("t", [(0, 0), (1, 0)])], session=(0, 0)))
    session_id = created.session_id
    assert session_id > 0 and len(reported(created)) == 2

    moved = await one.ask(fetch_request([("t", [(0, 1), (1, 1)])], session=(session_id, 1)))
    assert (moved.session_id, reported(moved)) == (session_id, {})
    await produce(one, batch(b"w"), partition=1)
    third = await one.ask(fetch_request([], session=(session_id, 2)))
    assert list(reported(third)) == [("t", 1)]
    full = await one.ask(fetch_request([("t", [(0, 0)])], session=(session_id, -1)))
    assert full.session_id == 0 and len(reported(full)) == 1
    ended = await one.ask(fetch_request([], session=(session_id, 3)))
    assert ended.error_code is ErrorCode.fetch_session_id_not_found


async def test_45_wrong_session_epoch(one: Connection, two: Connection):
    session_id = (await one.ask(fetch_request([("t", [(0, 0)])], session=(0, 0)))).session_id
    wrong = await one.ask(fetch_request([], session=(session_id, 2)))
    assert (wrong.error_code, wrong.session_id, wrong.responses) == (ErrorCode.invalid_fetch_session_epoch, 0, ())
    unknown = await one.ask(fetch_request([], session=(session_id ^ 1, 1)))
    assert unknown.error_code is ErrorCode.fetch_session_id_not_found
    elsewhere = await two.ask(fetch_request([], session=(session_id, 1)))
    assert elsewhere.error_code is ErrorCode.fetch_session_id_not_found


async def test_46_forgotten_topics(one: Connection):
    session_id = (await one.ask(fetch_request([("t", [(0, 0), (1, 0)])], session=(0, 0)))).session_id
    await one.ask(fetch_request([], session=(session_id, 1), forgotten=[("t", [0])]))
    for partition in (0, 1):
        await produce(one, batch(b"v"), partition=partition)

    assert list(reported(await one.ask(fetch_request([], session=(session_id, 2))))) == [("t", 1)]
    closed = await one.ask(fetch_request([], session=(session_id, 3), forgotten=[("t", [1])]))
    assert (closed.session_id, closed.responses) == (0, ())


async def test_47_session_error_then_recovery(one: Connection):
    session_id = (await one.ask(fetch_request([("t", [(0, 9)])], session=(0, 0)))).session_id
    for epoch in (1, 2):
        again = await one.ask(fetch_request([], session=(session_id, epoch)))
        assert reported(again)["t", 0].error_code is ErrorCode.offset_out_of_range
    fixed = await one.ask(fetch_request([("t", [(0, 0)])], session=(session_id, 3)))
    assert reported(fixed)["t", 0].error_code is ErrorCode.none
    assert reported(await one.ask(fetch_request([], session=(session_id, 4)))) == {}


async def test_48_names_and_ids_do_not_mix(brokers: tuple[LogBroker, LogBroker], one: Connection):
    session_id = (await one.ask(fetch_request([("t", [(0, 0)])], session=(0, 0)))).session_id
    mixed = await one.ask(fetch_request([], session=(session_id, 1), version=13))
    assert mixed.error_code is ErrorCode.fetch_session_topic_id_error


async def test_sessions_by_topic_id(brokers: tuple[LogBroker, LogBroker], one: Connection):
    topic = brokers[0].catalog.get("default", "t")
    assert topic is not None
    nowhere = uuid.uuid4()
    created = await one.ask(
        fetch_request([(topic.topic_id, [(0, 0)]), (nowhere, [(0, 0)])], session=(0, 0), version=16)
    )
    assert reported(created)[nowhere, 0].error_code is ErrorCode.unknown_topic_id
    again = await one.ask(fetch_request([], session=(created.session_id, 1), version=16))
    assert list(reported(again)) == [(nowhere, 0)]


async def test_50_epoch_fencing(one: Connection):
    await produce(one, batch(b"v"))
    request = fetch_request([("t", [(0, 0, {"current_leader_epoch": 4}), (1, 0, {"current_leader_epoch": 0})])])
    parts = reported(await one.ask(request))
    assert parts["t", 0].error_code is ErrorCode.unknown_leader_epoch
    assert parts["t", 1].error_code is ErrorCode.none


async def test_51_52_epochs_and_divergence(brokers: tuple[LogBroker, LogBroker], store: Store):
    topic = brokers[0].catalog.get("default", "t")
    assert topic is not None
    keys = store.log_keys("default", "t", 0, topic.topic_hex)
    writer = brokers[0].connect()
    await produce(writer, batch(*[b"v"] * 10))
    await produce(writer, batch(*[b"v"] * 10))
    await store.command("HSET", keys.meta, "epochs", "0:0 2:10")
    fresh = await LogBroker.start(store.settings)
    try:
        client = fresh.connect()
        asked = [{"partition": 0, "leader_epoch": epoch} for epoch in (0, 1, 2, 3)]
        topics = [{"topic": "t", "partitions": asked}]
        response = await client.ask(request(23, 3, replica_id=-2, topics=topics))
        ends = [(part.leader_epoch, part.end_offset) for part in response.topics[0].partitions]
        assert ends == [(0, 10), (0, 10), (2, 20), (-1, -1)]

        def at(offset: int, **epochs: int) -> Any:
            return fetch_request([("t", [(0, offset, epochs)])], max_wait_ms=2_000)

        for epoch, code in ((1, ErrorCode.fenced_leader_epoch), (3, ErrorCode.unknown_leader_epoch)):
            part = reported(await client.ask(at(0, current_leader_epoch=epoch)))["t", 0]
            assert part.error_code is code
        part = reported(await client.ask(at(15, last_fetched_epoch=0)))["t", 0]
        assert part.error_code is ErrorCode.none and part.records == b""
        assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 10)
        part = reported(await client.ask(at(15, last_fetched_epoch=2)))["t", 0]
        assert [header.base_offset for header in iter_headers(part.records)] == [10]
        part = reported(await client.ask(at(5, last_fetched_epoch=0)))["t", 0]
        assert [header.leader_epoch for header in iter_headers(part.records)] == [0, 2]
    finally:
        await fresh.close()


async def list_offsets(client: Connection, version: int, *timestamps: int, isolation: int = 0) -> list[Any]:
    answers = []
    for timestamp in timestamps:
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
        response = await client.ask(
            request_of_version(2, version, replica_id=-1, topics=topics, isolation_level=isolation, timeout=5_000)
        )
        part = response.topics[0].partitions[0]
        answers.append((part.offset, part.timestamp) if part.error_code is ErrorCode.none else part.error_code)
    return answers


async def test_53_list_offsets_specials(one: Connection, two: Connection):
    await produce(one, build_batch([NewRecord(b"v", None, timestamp) for timestamp in (100, 300, 200)]))

    answers = await list_offsets(two, 9, -1, -2, -3, -4, -5, 150, 400, -9)
    assert answers == [
        (3, -1), (0, -1), (1, 300), (0, -1), (-1, -1), (1, 300), (-1, -1), ErrorCode.unsupported_version,
    ]  # fmt: skip
    assert await list_offsets(two, 6, -3) == [ErrorCode.unsupported_version]
    assert await list_offsets(two, 1, -1) == [(3, -1)]


# -- waiting


async def test_min_bytes_gathers_across_partitions(one: Connection, two: Connection):
    size = len(batch(b"v"))
    waiting = one.send(fetch_request([("t", [(0, 0), (1, 0)])], max_wait_ms=LONG_MS, min_bytes=3 * size))
    for partition in (0, 1, 0):
        await asyncio.sleep(0.05)
        assert not waiting.answer.done()
        await produce(two, batch(b"v"), partition=partition)

    parts = reported(await asyncio.wait_for(waiting.answer, 30))
    counts = {key[1]: len(list(iter_headers(part.records))) for key, part in parts.items()}
    assert counts == {0: 2, 1: 1}


async def test_deadline_answers_with_what_there_is(one: Connection):
    await produce(one, batch(b"v"))
    started = time.monotonic()
    part = await fetched(one, 0, max_wait_ms=200, min_bytes=1_000)
    assert time.monotonic() - started > 0.15
    assert part.records != b""


async def test_draining_and_leaving_end_waits(brokers: tuple[LogBroker, LogBroker], one: Connection):
    leaving = brokers[0].connect()
    gone = leaving.send(fetch_request([("t", [(0, 0)])], max_wait_ms=LONG_MS, session=(0, 0)))
    waiting = one.send(fetch_request([("t", [(0, 0)])], max_wait_ms=LONG_MS))
    await asyncio.sleep(0.3)
    leaving.close()
    assert len(brokers[0].context.fetch_sessions) == 0
    brokers[0].draining.set()

    response = await asyncio.wait_for(waiting.answer, 30)
    assert reported(response)["t", 0].high_watermark == 0
    assert not gone.answer.done()
    await one.ask(fetch_request([("t", [(0, 0)])], max_wait_ms=LONG_MS))


async def test_deleted_topic_ends_the_wait(brokers: tuple[LogBroker, LogBroker], one: Connection):
    waiting = one.send(fetch_request([("t", [(0, 0)])], max_wait_ms=LONG_MS))
    await asyncio.sleep(0.3)
    await brokers[0].catalog.delete("default", "t")

    part = reported(await asyncio.wait_for(waiting.answer, 30))["t", 0]
    assert part.error_code is ErrorCode.unknown_topic_or_partition


async def test_fetch_session_rotates_returned_partitions(one: Connection):
    for partition in (0, 1):
        await produce(one, batch(b"x" * 50_000), partition=partition)
    first = await one.ask(fetch_request([("t", [(0, 0), (1, 0)])], session=(0, 0), max_bytes=60_000))
    assert {key[1] for key, part in reported(first).items() if part.records} == {0}
    second = await one.ask(fetch_request([], session=(first.session_id, 1), max_bytes=60_000))
    assert {key[1] for key, part in reported(second).items() if part.records} == {1}


async def test_many_waiters_are_served_by_one_append(brokers: tuple[LogBroker, LogBroker], two: Connection):
    waiting = [
        brokers[0].connect().send(fetch_request([("t", [(0, 0)])], max_wait_ms=LONG_MS, session=(0, 0)))
        for _ in range(200)
    ]
    await asyncio.sleep(0.3)
    assert not any(asked.answer.done() for asked in waiting)
    await produce(two, batch(b"v"))

    responses = await asyncio.wait_for(asyncio.gather(*(asked.answer for asked in waiting)), 30)
    assert all(reported(response)["t", 0].high_watermark == 1 for response in responses)


# -- E. Idempotence


def sequenced(first: int, *, producer_id: int = 77, epoch: int = 0, count: int = 1) -> bytes:
    return batch(*[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=first)


async def test_59_duplicate_via_another_broker(one: Connection, two: Connection):
    records = sequenced(0, count=10)
    assert (await produce(one, records)).base_offset == 0
    again = await produce(two, records)
    assert (again.error_code, again.base_offset) == (ErrorCode.none, 0)
    assert (await fetched(two, 10)).high_watermark == 10


async def test_60_61_window_and_gap(one: Connection, two: Connection):
    sent = [sequenced(i) for i in range(6)]
    for i, records in enumerate(sent):
        assert (await produce((one, two)[i % 2], records)).base_offset == i
    again = await produce(one, sent[1])
    assert (again.error_code, again.base_offset) == (ErrorCode.none, 1)
    assert (await produce(two, sent[0])).error_code is ErrorCode.out_of_order_sequence_number
    assert (await produce(one, sequenced(7))).error_code is ErrorCode.out_of_order_sequence_number
    assert (await produce(one, sequenced(6))).error_code is ErrorCode.none


async def test_62_63_64_wrap_epochs_and_unknown_producers(one: Connection):
    for first in (2_147_483_646, 2_147_483_647, 0):
        assert (await produce(one, sequenced(first))).error_code is ErrorCode.none
    assert (await produce(one, sequenced(0, producer_id=9, epoch=1, count=8))).error_code is ErrorCode.none
    codes = [
        (await produce(one, sequenced(first, producer_id=9, epoch=epoch))).error_code
        for epoch, first in ((0, 8), (2, 3), (2, 0))
    ]
    assert codes == [
        ErrorCode.invalid_producer_epoch,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.none,
    ]
    assert (await produce(one, sequenced(42, producer_id=10))).error_code is ErrorCode.none


async def test_pipelined_batches_of_one_producer_keep_their_order(one: Connection):
    asked = [one.send(produce_request([("t", [(0, sequenced(i))])])) for i in range(5)]
    responses = await asyncio.gather(*(each.answer for each in asked))
    assert [r.responses[0].partition_responses[0].base_offset for r in responses] == [0, 1, 2, 3, 4]


async def test_65_init_producer_id(one: Connection, two: Connection):
    async def init(client: Connection, transactional_id: str | None, timeout_ms: int = 1_000) -> Any:
        return await client.ask(request(
            22, 4, transactional_id=transactional_id, transaction_timeout=timeout_ms, producer_id=-1, producer_epoch=-1
        ))  # fmt: skip

    first, second = await init(one, None), await init(two, None)
    assert first.producer_id != second.producer_id
    assert (first.error_code, first.producer_epoch, second.producer_epoch) == (ErrorCode.none, 0, 0)
    codes = [
        (await init(one, transactional_id, timeout_ms)).error_code
        for transactional_id, timeout_ms in (("", 1_000), ("T", 0), ("T", 900_001), ("T", 900_000))
    ]
    assert codes == [
        ErrorCode.invalid_request,
        ErrorCode.invalid_transaction_timeout,
        ErrorCode.invalid_transaction_timeout,
        ErrorCode.none,
    ]


# -- real clients, against broker processes


async def test_36_every_codec_of_one_client_is_read_by_another(cluster: Cluster):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from confluent_kafka import Consumer, Producer

    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    topics = {name: f"codecs-{name}-{uuid.uuid4().hex[:6]}" for name in ("librdkafka", "aiokafka")}
    for codec in codecs:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 50})
        for i in range(100):
            producer.produce(topics["librdkafka"], f"{codec} {i} {'x' * 100}")
        assert await asyncio.to_thread(producer.flush, 60) == 0
        own = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, compression_type=None if codec == "none" else codec, linger_ms=50
        )
        await own.start()
        sent = [await own.send(topics["aiokafka"], f"{codec} {i} {'x' * 100}".encode()) for i in range(100)]
        await asyncio.gather(*sent)
        await own.stop()

    reader = AIOKafkaConsumer(
        topics["librdkafka"], bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", group_id=None
    )
    await reader.start()
    read = [await asyncio.wait_for(reader.getone(), 60) for _ in range(500)]
    await reader.stop()
    assert [record.offset for record in read] == list(range(500))
    assert [record.value.split()[0].decode() for record in read[::100]] == list(codecs)

    other = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    other.subscribe([topics["aiokafka"]])
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len(found) < 500 and time.monotonic() < deadline:
        found += await asyncio.to_thread(other.consume, 500, 1.0)
    await asyncio.to_thread(other.close)
    assert [message.offset() for message in found] == list(range(500))
