"""Produce, validation and positions on a real server, by the numbers of the specification of logs.

Each runs with one broker, and with two that take turns.
"""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.log_broker import fetch_request, produce_request
from tests.support.transactions import NONE, Brokers, brokers_of
from tidegate.apis import fetch, positions, produce
from tidegate.records.batch import Batch, Codec, iter_headers
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.compression import decompress
from tidegate.records.record import iter_heads
from tidegate.settings import Settings
from tidegate.store.store import Store

assert fetch and positions and produce  # registered

E = ErrorCode
HOUR_MS = 3_600_000


@pytest.fixture(params=[1, 2], ids=["one broker", "two brokers"])
async def brokers(request: pytest.FixtureRequest, store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Brokers without topics; `store` has emptied the server."""
    async with brokers_of(settings, request.param) as opened:
        yield opened


def _now_ms() -> int:
    return int(time.time() * 1000)


def _batch(count: int = 1, *, codec: int = Codec.NONE, value: bytes = b"v", **changes: Any) -> bytes:
    """A batch of records of now; `changes` are those of `build_batch`."""
    return build_batch([NewRecord(value, b"k", _now_ms())] * count, codec=codec, **changes)


def _changed(raw: bytes, at: int, form: str, value: int) -> bytes:
    """The batch with another field, and the CRC of that."""
    changed = bytearray(raw)
    struct.pack_into(form, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return bytes(changed)


async def _produce(brokers: Brokers, raw: bytes | None, topic: Any = "t", **asked: Any) -> Any:
    """The partition's answer."""
    answer = await brokers.ask(produce_request([(topic, [(0, raw)])], **asked))
    [found] = answer.responses[0].partition_responses
    return found


async def _codes(brokers: Brokers, raws: Sequence[bytes | None], **asked: Any) -> list[ErrorCode]:
    return [(await _produce(brokers, raw, **asked)).error_code for raw in raws]


# -- C. Produce and record validation


async def test_log_26_the_rewrite_of_a_batch_is_minimal(brokers: Brokers) -> None:
    await brokers.create("t")
    await brokers.clients[0].produce("t", 10)
    sent = _batch()
    await _produce(brokers, sent)
    [stored] = (await brokers.fetch("t", 10, end=11)).batches
    assert bytes(stored.buffer[21:]) == sent[21:]
    assert stored.base_offset == 10
    stored.verify_crc()


async def test_log_27_a_corrupt_batch_affects_its_partition_only(brokers: Brokers) -> None:
    await brokers.create("t", 2)
    flipped = bytearray(_batch())
    flipped[-1] ^= 1
    answer = await brokers.ask(produce_request([("t", [(0, bytes(flipped)), (1, _batch())])], version=8))
    first, second = answer.responses[0].partition_responses
    assert (first.error_code, first.base_offset) == (E.corrupt_message, -1)
    assert second.error_code is NONE


async def test_log_28_malformed_record_sets(brokers: Brokers) -> None:
    await brokers.create("t")
    good = _batch()
    malformed = [good + good, _changed(good, 16, ">b", 1), b"", good[:-3], _changed(good, 0, ">q", 7)]
    assert await _codes(brokers, malformed) == [E.invalid_record] * 5
    corrupt = [_changed(good, 16, ">b", 3), _changed(good, 8, ">i", 10)]
    assert await _codes(brokers, corrupt) == [E.corrupt_message] * 2
    assert await _codes(brokers, [good], acks=2) == [E.invalid_required_acks]
    assert (await brokers.fetch("t")).high_watermark == 0


async def test_log_29_counts_and_control_bit(brokers: Brokers) -> None:
    await brokers.create("t")
    good = _batch(3)
    wrong = [
        _changed(good, 23, ">i", 4),
        _changed(good, 57, ">i", 0),
        _changed(_changed(good, 57, ">i", 30), 23, ">i", 29),
        _changed(good, 21, ">h", 0x20),
        _changed(good, 43, ">q", 5),
    ]
    answers = [await _produce(brokers, raw) for raw in wrong]
    assert [(one.error_code, one.log_start_offset) for one in answers] == [(E.invalid_record, -1)] * 5


async def test_log_30_too_large(brokers: Brokers) -> None:
    small = len(_batch(value=b""))
    await brokers.create("t", max_message_bytes="1000")
    exact = _batch(value=bytes(1000 - small - 3))
    exact = _batch(value=bytes(1000 - small - 3 + 1000 - len(exact)))
    assert len(exact) == 1000
    assert await _codes(brokers, [exact, _batch(value=bytes(1000))]) == [NONE, E.message_too_large]


async def test_log_31_compacted_topics_need_keys(brokers: Brokers) -> None:
    await brokers.create("t", cleanup_policy="compact")
    now = _now_ms()
    raw = build_batch([NewRecord(b"v", key, now) for key in (b"a", None, b"c")])
    found = await _produce(brokers, raw, version=8)
    assert found.error_code is E.invalid_record
    assert [one.batch_index for one in found.record_errors] == [1]
    assert (await brokers.fetch("t")).high_watermark == 0


async def test_log_32_timestamps_out_of_range(brokers: Brokers) -> None:
    await brokers.create("t", message_timestamp_after_max_ms="1000")
    now = _now_ms()
    raw = build_batch([NewRecord(b"v", None, at) for at in (now, now + HOUR_MS)])
    found = await _produce(brokers, raw, version=8)
    assert found.error_code is E.invalid_timestamp
    assert [one.batch_index for one in found.record_errors] == [1]
    await brokers.create("u", message_timestamp_before_max_ms="1000")
    old = build_batch([NewRecord(b"v", None, now - HOUR_MS)])
    assert (await _produce(brokers, old, "u")).error_code is E.invalid_timestamp


async def test_log_33_mixed_record_errors(brokers: Brokers) -> None:
    await brokers.create("t", cleanup_policy="compact", message_timestamp_after_max_ms="1000")
    now = _now_ms()
    raw = build_batch([NewRecord(b"v", None, now), NewRecord(b"v", b"k", now + HOUR_MS)])
    found = await _produce(brokers, raw)
    assert found.error_code is E.invalid_timestamp
    assert [one.batch_index for one in found.record_errors] == [0, 1]


async def test_log_34_log_append_time(brokers: Brokers) -> None:
    await brokers.create("t", message_timestamp_type="LogAppendTime")
    before = _now_ms()
    found = await _produce(brokers, build_batch([NewRecord(b"v", None, at) for at in (1, 2, 3)]))
    appended_ms = int(found.log_append_time.timestamp() * 1000)
    assert before - 1_000 <= appended_ms <= _now_ms() + 1_000
    [stored] = (await brokers.fetch("t", end=3)).batches
    assert stored.is_log_append_time and stored.base_timestamp == 1
    assert abs(stored.max_timestamp - appended_ms) <= 1
    stored.verify_crc()


async def test_log_35_zstd_needs_produce_7(brokers: Brokers) -> None:
    await brokers.create("t")
    raw = _batch(codec=Codec.ZSTD)
    assert await _codes(brokers, [raw], version=6) == [E.unsupported_compression_type]
    assert await _codes(brokers, [raw], version=7) == [NONE]
    for _ in brokers.clients:
        await brokers.fetch("t", end=1)  # each broker knows the high watermark
    found = [
        (await brokers.ask(fetch_request([("t", [(0, 0)])], version=version))).responses[0].partitions[0]
        for version in (9, 10)
    ]
    # Kafka 4 no longer refuses the first, whose client cannot read zstd; before 4.0 it did
    assert [one.error_code for one in found] == [E.unsupported_compression_type, NONE]
    [stored] = iter_headers(found[1].records)
    assert stored.codec == Codec.ZSTD


async def test_log_36_all_codecs(brokers: Brokers) -> None:
    await brokers.create("t")
    codecs = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
    assert await _codes(brokers, [_batch(100, codec=codec) for codec in codecs]) == [NONE] * 4
    found = await brokers.fetch("t", end=400)
    assert [batch.codec for batch in found.batches] == codecs
    assert found.offsets == list(range(400))


async def test_log_37_produce_by_topic_id(brokers: Brokers) -> None:
    await brokers.create("t")
    await brokers.create("gone")
    topic, gone = (brokers.all[0].context.catalog.get("default", name) for name in ("t", "gone"))
    assert topic is not None and gone is not None
    await brokers.all[0].context.catalog.delete("default", "gone")
    for broker in brokers.all:
        await broker.context.catalog.refresh()
    assert await _codes(brokers, [_batch()], topic=topic.topic_id, version=13) == [NONE]
    for unknown in (uuid4(), gone.topic_id):
        assert await _codes(brokers, [_batch()], topic=unknown, version=13) == [E.unknown_topic_id]


async def test_log_124_junk_behind_the_batch_is_dropped(brokers: Brokers) -> None:
    await brokers.create("t")
    good = _batch()
    sent = [good + b"abc", good + good[:40], _changed(good, 12, ">i", 5), _changed(good, 21, ">h", 0x80)]
    assert await _codes(brokers, sent) == [NONE] * 4
    found = await brokers.fetch("t", end=4)
    assert {batch.leader_epoch for batch in found.batches} == {0}
    assert found.batches[0].size == len(good)


async def test_log_125_wrong_offset_deltas(brokers: Brokers) -> None:
    await brokers.create("t")
    shifted = bytearray(_batch(1))
    shifted[61 + 3] = 10  # length, attributes and timestamp delta are a byte each
    raw = _changed(bytes(shifted), 16, ">b", 2)
    assert await _codes(brokers, [raw]) == [E.invalid_record]


async def test_log_126_bad_compression(brokers: Brokers) -> None:
    await brokers.create("t")
    plain = _batch()
    bits = [5, 7, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
    assert await _codes(brokers, [_changed(plain, 21, ">h", one) for one in bits]) == [E.corrupt_message] * 6


async def test_log_127_decompression_limit(brokers: Brokers) -> None:
    await brokers.create("t", max_decompressed_message_bytes="1000")
    sent = [
        _batch(codec=Codec.GZIP, value=bytes(5_000)),
        _batch(5, codec=Codec.ZSTD, value=bytes(400)),
        _batch(value=bytes(5_000)),
    ]
    assert await _codes(brokers, sent) == [E.invalid_record, NONE, NONE]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("claimed", ["later", "none", "1970"])
async def test_log_128_the_header_timestamp_lies(brokers: Brokers, codec: int, claimed: str) -> None:
    """Without a time a batch is not deleted by its age, nor found by it; with that of 1970 it is deleted at once."""
    await brokers.create("t", **({"message_timestamp_after_max_ms": "1000"} if claimed == "later" else {}))
    raw = _batch(2, codec=codec)
    lying = _changed(raw, 35, ">q", {"later": _now_ms() + 10 * HOUR_MS, "none": -1, "1970": 0}[claimed])
    assert await _codes(brokers, [lying]) == [NONE]
    [stored] = (await brokers.fetch("t", end=2)).batches
    assert stored.max_timestamp == Batch.parse(raw).max_timestamp
    stored.verify_crc()


@pytest.mark.parametrize("name", ["gzip", "zstd", "lz4", "snappy", "uncompressed"])
async def test_log_129_recompression(brokers: Brokers, name: str) -> None:
    codec = Codec.NONE if name == "uncompressed" else Codec[name.upper()]
    await brokers.create("t", compression_type=name)
    sent = [_batch(20, codec=one, value=b"value" * 40, producer_id=7, producer_epoch=0, base_sequence=20 * i)
            for i, one in enumerate((Codec.NONE, Codec.ZSTD, Codec.GZIP))]  # fmt: skip
    assert await _codes(brokers, sent) == [NONE] * 3
    found = await brokers.fetch("t", end=60)
    assert [batch.codec for batch in found.batches] == [codec] * 3
    for batch, raw in zip(found.batches, sent, strict=True):
        batch.verify_crc()
        before = Batch.parse(raw)
        area = bytes(decompress(before.codec, before.records, 1 << 20))
        assert bytes(decompress(batch.codec, batch.records, 1 << 20)) == area
        assert (batch.base_sequence, batch.max_timestamp) == (before.base_sequence, before.max_timestamp)
        assert len(list(iter_heads(batch))) == 20
    repeated = await _produce(brokers, sent[0])
    assert (repeated.error_code, repeated.base_offset) == (NONE, 0)


async def test_log_129_what_grows_above_the_limit_is_refused(brokers: Brokers) -> None:
    await brokers.create("t", compression_type="uncompressed", max_message_bytes="1000")
    raw = _batch(codec=Codec.GZIP, value=bytes(5_000))
    assert len(raw) < 1000
    assert await _codes(brokers, [raw]) == [E.message_too_large]


async def test_log_130_the_time_of_a_duplicate(brokers: Brokers) -> None:
    await brokers.create("t")
    await brokers.create("appended", message_timestamp_type="LogAppendTime")
    raw = _batch(producer_id=7, producer_epoch=0, base_sequence=0)
    first, repeated = [await _produce(brokers, raw) for _ in range(2)]
    assert first.log_append_time is None and repeated.log_append_time is None
    assert (first.base_offset, repeated.base_offset) == (0, 0)
    first, repeated = [await _produce(brokers, raw, "appended") for _ in range(2)]
    assert first.log_append_time == repeated.log_append_time


# -- D. Positions


async def _position(brokers: Brokers, timestamp: int, version: int = 9, isolation: int = 0, **asked: Any) -> Any:
    """(code, offset, timestamp) of ListOffsets."""
    partition = {"partition_index": 0, "timestamp": timestamp, **asked}
    if version >= 4:
        partition.setdefault("current_leader_epoch", -1)
    topics = [{"name": "t", "partitions": [partition]}]
    values = {"timeout": timedelta(seconds=1)} if version >= 10 else {}
    answer = await brokers.ask(request(2, version, replica_id=-1, isolation_level=isolation, topics=topics, **values))
    [found] = answer.topics[0].partitions
    return found.error_code, int(found.offset), int(found.timestamp)


async def test_log_53_list_offsets_specials(brokers: Brokers) -> None:
    await brokers.create("t")
    await _produce(brokers, build_batch([NewRecord(b"v", None, at) for at in (100, 300, 200)]))
    found = {at: await _position(brokers, at) for at in (-1, -2, -3, -4, -5, 150, 400, -9)}
    assert found == {
        -1: (NONE, 3, -1), -2: (NONE, 0, -1), -3: (NONE, 1, 300), -4: (NONE, 0, -1), -5: (NONE, -1, -1),
        150: (NONE, 1, 300), 400: (NONE, -1, -1), -9: (E.unsupported_version, -1, -1),
    }  # fmt: skip
    too_old = [(6, -3), (7, -4), (8, -5), (10, -6)]
    assert [(await _position(brokers, at, version))[0] for version, at in too_old] == [E.unsupported_version] * 4
    assert await _position(brokers, -6, 11) == (NONE, -1, -1)
    assert (await _position(brokers, -9, partition_index=9))[0] is E.unsupported_version


async def test_log_54_list_offsets_read_committed(brokers: Brokers) -> None:
    await brokers.create("t")
    await brokers.clients[0].produce("t", 10)
    producer = await brokers.producer().init()
    await producer.write("t", 5)
    await brokers.fetch("t", end=15)
    assert [(await _position(brokers, -1, 5, isolation))[1] for isolation in (0, 1)] == [15, 10]


async def test_log_137_a_negative_epoch_is_an_old_one(brokers: Brokers) -> None:
    await brokers.create("t")
    await brokers.clients[0].produce("t", 10)
    assert (await _position(brokers, -1, 9, current_leader_epoch=-2))[0] is E.fenced_leader_epoch
    assert [await _epoch_end(brokers, epoch) for epoch in (-1, 0, 1, -2)] == [(-1, -1), (0, 10), (-1, -1), (-2, 0)]


async def _epoch_end(brokers: Brokers, epoch: int) -> tuple[int, int]:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch,
    }  # fmt: skip
    topics = [{"topic": "t", "partitions": [partition]}]
    answer = await brokers.ask(request(23, 2, topics=topics))
    [found] = answer.topics[0].partitions
    assert found.error_code is NONE
    return int(found.leader_epoch), int(found.end_offset)


@pytest.mark.parametrize(
    ("topic", "first", "step", "code"),
    [
        ("t", 0, 0, NONE),
        ("t", 1, 1, E.unknown_topic_or_partition),
        ("nope", 0, 1, E.unknown_topic_or_partition),
    ],
    ids=["one-partition", "unknown-partitions", "unknown-topic"],
)
async def test_offset_for_leader_epoch_refreshes_once_a_slice(
    brokers: Brokers, store: Store, topic: str, first: int, step: int, code: E
) -> None:
    """20,000 elements took two commands each, 131,072 of them 24 s."""
    await brokers.create("t")
    await brokers.clients[0].produce("t", 3)
    asked = [
        {
            "partition": first + step * number, "current_leader_epoch": -1,
            "leader_epoch": 0,
        }
        for number in range(20_000)
    ]  # fmt: skip
    topics = [{"topic": topic, "partitions": asked[:19_000]},
              {"topic": topic, "partitions": asked[19_000:]}]  # fmt: skip
    before = (await store.command("INFO", "stats")).partition(b"total_commands_processed:")[2]
    answer = await brokers.ask(request(23, 2, topics=topics))
    after = (await store.command("INFO", "stats")).partition(b"total_commands_processed:")[2]
    found = [one for of in answer.topics for one in of.partitions]
    assert len(found) == 20_000 and {one.error_code for one in found} == {code}
    assert {int(one.end_offset) for one in found} == {3 if code is NONE else -1}
    assert int(after.split()[0]) - int(before.split()[0]) < 1_000  # brokers do other work meanwhile


async def test_log_131_repeats_in_one_request(brokers: Brokers) -> None:
    """Kafka drops all batches but the last of a partition that one topic entry names twice; here all are appended."""
    await brokers.create("t")
    raw = _batch()
    once = await brokers.ask(produce_request([("t", [(0, raw), (0, raw)])]))
    assert [[one.error_code for one in topic.partition_responses] for topic in once.responses] == [[NONE, NONE]]
    assert (await brokers.fetch("t", end=2)).high_watermark == 2
    twice = await brokers.ask(produce_request([("t", [(0, raw)]), ("t", [(0, raw)])]))
    assert [[one.error_code for one in topic.partition_responses] for topic in twice.responses] == [[NONE], [NONE]]
    assert (await brokers.ask(produce_request([]))).responses == ()
    await brokers.fetch("t", end=4)
    fetched = await brokers.ask(fetch_request([("t", [(0, 0), (0, 3)])]))
    [found] = [one for topic in fetched.responses for one in topic.partitions]
    assert [batch.base_offset for batch in iter_headers(found.records)] == [3]
    partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    listed = await brokers.ask(
        request(
            2, 5, replica_id=-1, isolation_level=0,
            topics=[{"name": "t", "partitions": [partition, partition]}],
        )
    )  # fmt: skip
    assert [one.error_code for one in listed.topics[0].partitions] == [E.invalid_request] * 2


async def test_log_156_min_insync_replicas_above_the_replicas(brokers: Brokers) -> None:
    await brokers.create("t", min_insync_replicas="2")
    assert await _codes(brokers, [_batch()], acks=-1) == [NONE]
