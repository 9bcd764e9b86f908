"""Message sets of magic 0 and 1, byte for byte, and there and back."""

from __future__ import annotations

import contextlib
import random
import zlib
from typing import Any

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.records.batch import Codec
from tidegate.records.batch_header import TIMESTAMP_TYPE
from tidegate.records.compression import RecordsTooLarge, compress
from tidegate.records.message_set import (
    InvalidMessageSize,
    Message,
    build_message,
    build_wrapper,
    iter_messages,
    message_bytes,
    unwrap,
)
from tidegate.records.old_lz4 import with_correct_checksum

CODECS = (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
FIELDS = st.none() | st.binary(max_size=64)
MESSAGES = st.lists(st.tuples(FIELDS, FIELDS, st.integers(0, 1 << 41)), min_size=1, max_size=20)

# Offset 5, key k, value vv; the CRC-32 from `magic` on is by zlib.
MAGIC_0 = bytes.fromhex("0000000000000005 00000011 89e88014 00 00 00000001 6b 00000002 7676".replace(" ", ""))
MAGIC_1 = bytes.fromhex(
    "0000000000000005 00000019 36ca4fe9 01 08 00000000000003e8 00000001 6b 00000002 7676".replace(" ", "")
)


def parsed(data: bytes) -> list[Message]:
    return list(iter_messages(memoryview(data)))


def test_build_message_has_the_bytes_of_the_guide() -> None:
    assert build_message(Message(5, -1, b"k", b"vv"), 0) == MAGIC_0
    assert build_message(Message(5, 1_000, b"k", b"vv", attributes=TIMESTAMP_TYPE), 1) == MAGIC_1
    assert message_bytes(Message(5, 1_000, b"k", b"vv"), 0) == len(MAGIC_0)
    assert message_bytes(Message(5, 1_000, b"k", b"vv"), 1) == len(MAGIC_1)


def test_iter_messages_reads_the_bytes_of_the_guide() -> None:
    first, second = parsed(MAGIC_0 + MAGIC_1)
    assert first == Message(5, -1, b"k", b"vv", 0, 0, len(MAGIC_0))
    assert second == Message(5, 1_000, b"k", b"vv", 1, TIMESTAMP_TYPE, len(MAGIC_1))


@given(MESSAGES, st.sampled_from([0, 1]))
def test_messages_there_and_back(fields: list[tuple[Any, Any, int]], magic: int) -> None:
    messages = [
        Message(offset, timestamp if magic else -1, key, value, magic, 0)
        for offset, (key, value, timestamp) in enumerate(fields)
    ]
    found = parsed(b"".join(build_message(one, magic) for one in messages))
    assert [one._replace(size=0) for one in found] == messages
    assert [one.size for one in found] == [message_bytes(one, magic) for one in messages]


@given(MESSAGES, st.sampled_from([0, 1]), st.sampled_from(CODECS), st.integers(0, 1 << 40))
def test_wrappers_there_and_back(fields: list[tuple[Any, Any, int]], magic: int, codec: int, base: int) -> None:
    offsets = [base + 3 * number for number in range(len(fields))]  # with gaps, as after compaction
    messages = [
        Message(offset, timestamp if magic else -1, key, value, magic, 0)
        for offset, (key, value, timestamp) in zip(offsets, fields, strict=True)
    ]
    [wrapper] = parsed(build_wrapper(messages, magic, codec))
    inner = parsed(bytes(unwrap(wrapper, 1 << 20)))

    assert (wrapper.offset, wrapper.codec, wrapper.key) == (offsets[-1], codec, None)
    assert wrapper.timestamp == max(one.timestamp for one in messages)
    start = wrapper.offset - inner[-1].offset if magic else 0
    assert [one.offset + start for one in inner] == offsets
    assert inner[0].offset == (0 if magic else base)
    assert [one._replace(offset=0, size=0) for one in inner] == [one._replace(offset=0) for one in messages]


@given(st.data())
def test_iter_messages_refuses_every_flipped_bit(data: st.DataObject) -> None:
    magic = data.draw(st.sampled_from([0, 1]))
    whole = bytearray(MAGIC_1 if magic else MAGIC_0)
    at, bit = data.draw(st.integers(8, len(whole) - 1)), data.draw(st.integers(0, 7))
    whole[at] ^= 1 << bit
    with pytest.raises((CorruptMessage, InvalidRecord, InvalidMessageSize)):
        parsed(bytes(whole))


@given(st.binary(max_size=200))
def test_iter_messages_answers_any_bytes_with_a_code(data: bytes) -> None:
    with contextlib.suppress(CorruptMessage, InvalidRecord, InvalidMessageSize):
        parsed(data)


def with_size(size: int) -> bytes:
    return MAGIC_0[:8] + size.to_bytes(4, "big", signed=True) + MAGIC_0[12:]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (MAGIC_0[:11], CorruptMessage),
        (MAGIC_0[:-1], CorruptMessage),
        (MAGIC_0 + MAGIC_0[:20], CorruptMessage),
        (with_size(-1), InvalidMessageSize),
        (with_size(13), CorruptMessage),
        (with_size(1 << 30), CorruptMessage),
        (MAGIC_0[:16] + b"\2" + MAGIC_0[17:], InvalidRecord),
        (MAGIC_0[:16] + b"\xff" + MAGIC_0[17:], InvalidRecord),
        (MAGIC_0[:12] + bytes(4) + MAGIC_0[16:], CorruptMessage),
    ],
)
def test_iter_messages_refuses(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        parsed(data)


def test_iter_messages_refuses_fields_that_do_not_fill_it() -> None:
    longer = build_message(Message(0, -1, b"k", b"v" * 40), 0)
    body = bytearray(longer[16:])
    body[6 + 1 : 6 + 1 + 4] = (39).to_bytes(4, "big")  # the value's length

    wrong = longer[:12] + zlib.crc32(body).to_bytes(4, "big") + body
    with pytest.raises(CorruptMessage):
        parsed(wrong)


# -- wrappers


def test_unwrap_reads_raw_snappy_as_other_clients_write_it() -> None:

    raw = bytes(cramjam.snappy.compress_raw(MAGIC_0))
    wrapper = Message(0, -1, None, raw, 0, Codec.SNAPPY)
    assert bytes(unwrap(wrapper, 1 << 20)) == MAGIC_0


@pytest.mark.parametrize("codec", CODECS)
def test_unwrap_stops_at_the_limit(codec: int) -> None:
    wrapper = Message(0, -1, None, compress(codec, bytes(1 << 20)), 1, codec)
    with pytest.raises(RecordsTooLarge):
        unwrap(wrapper, 1 << 16)


@pytest.mark.parametrize(
    "wrapper",
    [
        Message(0, -1, None, None, 0, Codec.GZIP),
        Message(0, -1, None, b"", 0, Codec.GZIP),
        Message(0, -1, None, b"nonsense", 0, Codec.GZIP),
        Message(0, -1, None, b"nonsense", 0, Codec.SNAPPY),
        Message(0, -1, None, b"", 0, Codec.LZ4),
        Message(0, -1, None, b"\x04\x22\x4d\x18\x60", 0, Codec.LZ4),
        Message(0, -1, None, MAGIC_0, 0, Codec.ZSTD),
        Message(0, -1, None, MAGIC_0, 0, 7),
    ],
)
def test_unwrap_refuses(wrapper: Message) -> None:
    with pytest.raises(CorruptMessage):
        unwrap(wrapper, 1 << 20)


# -- lz4


@pytest.mark.parametrize("store_size", [True, False])
@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_old_checksum_lz4_corrected_is_what_lz4_writes(store_size: bool, size: int) -> None:
    frame = lz4.frame.compress(random.Random(size).randbytes(size), store_size=store_size)
    at = 14 if frame[4] & 8 else 6
    broken = frame[:at] + bytes((frame[at] ^ 0x55,)) + frame[at + 1 :]
    assert with_correct_checksum(broken) == frame == with_correct_checksum(frame)


def test_unwrap_lz4_accepts_any_header_checksum_with_magic_0_only() -> None:
    frame = compress(Codec.LZ4, MAGIC_0)
    wrong = frame[:6] + bytes((frame[6] ^ 1,)) + frame[7:]
    for value in (frame, wrong):
        assert bytes(unwrap(Message(0, -1, None, value, 0, Codec.LZ4), 1 << 20)) == MAGIC_0
    with pytest.raises(CorruptMessage):
        unwrap(Message(0, -1, None, wrong, 1, Codec.LZ4), 1 << 20)


# -- against another implementation


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY])
def test_message_sets_of_kafka_python_are_read(magic: int, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=int(codec), batch_size=1 << 20)
    for offset in range(5):
        builder.append(offset, timestamp=1_000 + offset, key=b"k%d" % offset, value=None if offset == 3 else b"v" * 50)
    messages = parsed(bytes(builder.build()))
    if codec:
        [wrapper] = messages
        messages = parsed(bytes(unwrap(wrapper, 1 << 20)))

    assert [one.offset for one in messages] == list(range(5))
    assert [one.key for one in messages] == [b"k0", b"k1", b"k2", b"k3", b"k4"]
    assert [one.value for one in messages] == [b"v" * 50] * 3 + [None] + [b"v" * 50]
    assert [one.timestamp for one in messages] == ([1_000, 1_001, 1_002, 1_003, 1_004] if magic else [-1] * 5)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY])
@pytest.mark.parametrize("kind", [0, TIMESTAMP_TYPE])
def test_message_sets_are_read_by_kafka_python(magic: int, codec: int, kind: int) -> None:
    messages = [Message(70 + 2 * n, 1_000 + n, b"k%d" % n, b"v%d" % n, magic, kind * magic) for n in range(4)]
    data = build_wrapper(messages, magic, codec) if codec else b"".join(build_message(one, magic) for one in messages)
    read = [record for batch in iter(MemoryRecords(data).next_batch, None) for record in batch]

    assert [record.offset for record in read] == [70, 72, 74, 76]
    assert [record.value for record in read] == [b"v0", b"v1", b"v2", b"v3"]
    if magic:
        logged = kind and codec
        assert [record.timestamp for record in read] == ([1_003] * 4 if logged else [1_000, 1_001, 1_002, 1_003])
        assert {record.timestamp_type for record in read} == {1 if kind else 0}
