"""A batch's header, and the checks of a produced batch in Kafka's order."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.markers import build_marker
from tidegate.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from tidegate.records.batch import Batch, Codec, iter_headers, parse_produced, place
from tidegate.records.batch_header import CONTROL, TRANSACTIONAL
from tidegate.records.build import NewRecord, build_batch, seal, with_create_time, with_log_append_time

ONE = build_batch([NewRecord(b"value", timestamp=5)])
THREE = build_batch(
    [NewRecord(b"v", b"k", 100 + i) for i in range(3)], producer_id=7, producer_epoch=2, base_sequence=9
)
ANY_BYTES = 1 << 30


def changed(batch: bytes, at: int, layout: str, value: int, *, sealed: bool = True) -> bytes:
    copy = bytearray(batch)
    struct.pack_into(layout, copy, at, value)
    return bytes(seal(copy) if sealed else copy)


def test_header_is_read_by_name():
    batch = Batch.parse(THREE)

    assert (batch.size, batch.base_offset, batch.leader_epoch) == (len(THREE), 0, -1)
    assert (batch.last_offset_delta, batch.record_count, batch.next_offset) == (2, 3, 3)
    assert (batch.base_timestamp, batch.max_timestamp) == (100, 102)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 9)
    assert (batch.codec, batch.is_transactional, batch.is_control, batch.is_log_append_time) == (0, False, False, False)


@pytest.mark.parametrize(
    ("buffer", "version", "batch_bytes_max", "error"),
    [
        (None, 9, ANY_BYTES, InvalidRecord),
        (b"", 9, ANY_BYTES, InvalidRecord),
        (ONE[:16], 9, ANY_BYTES, InvalidRecord),
        (ONE[:-1], 9, ANY_BYTES, InvalidRecord),
        (ONE + ONE, 9, ANY_BYTES, InvalidRecord),
        (changed(ONE, 16, ">b", 1), 9, ANY_BYTES, InvalidRecord),
        (changed(ONE, 16, ">b", 3), 9, ANY_BYTES, CorruptMessage),
        (changed(ONE, 16, ">b", -1), 9, ANY_BYTES, CorruptMessage),
        (changed(changed(ONE, 16, ">b", 1), 8, ">i", 13), 9, ANY_BYTES, CorruptMessage),
        (ONE + bytes(70), 9, ANY_BYTES, CorruptMessage),
        (ONE + changed(ONE, 16, ">b", 3), 9, ANY_BYTES, CorruptMessage),
        (changed(ONE, 21, ">h", Codec.ZSTD), 6, ANY_BYTES, UnsupportedCompressionType),
        (changed(ONE, 0, ">q", 7), 9, ANY_BYTES, InvalidRecord),
        (ONE, 9, len(ONE) - 1, MessageTooLarge),
        (changed(ONE, 8, ">i", 40), 9, ANY_BYTES, CorruptMessage),
        (changed(ONE, len(ONE) - 3, ">b", 1, sealed=False), 9, ANY_BYTES, CorruptMessage),
        (changed(ONE, 21, ">h", 5), 9, ANY_BYTES, CorruptMessage),
        (changed(ONE, 57, ">i", 0), 9, ANY_BYTES, InvalidRecord),
        (changed(ONE, 57, ">i", 2), 9, ANY_BYTES, InvalidRecord),
        (changed(changed(ONE, 57, ">i", 100), 23, ">i", 99), 9, ANY_BYTES, InvalidRecord),
        (changed(ONE, 21, ">h", CONTROL), 9, ANY_BYTES, InvalidRecord),
        (changed(ONE, 43, ">q", 1), 9, ANY_BYTES, InvalidRecord),
        (changed(THREE, 51, ">h", -7), 9, ANY_BYTES, InvalidProducerEpoch),
    ],
)
def test_malformed_batches_are_refused(
    buffer: bytes | None, version: int, batch_bytes_max: int, error: type[KafkaError]
):
    with pytest.raises(error):
        parse_produced(buffer, version, batch_bytes_max)


def test_first_failing_check_names_the_error():
    oversized_and_corrupt = changed(ONE, len(ONE) - 3, ">b", 1, sealed=False)
    with pytest.raises(MessageTooLarge):
        parse_produced(oversized_and_corrupt, 9, len(ONE) - 1)
    zstd_with_base_offset = changed(changed(ONE, 21, ">h", Codec.ZSTD), 0, ">q", 7)
    with pytest.raises(UnsupportedCompressionType):
        parse_produced(zstd_with_base_offset, 6, ANY_BYTES)


def test_batch_of_exactly_the_limit_passes():
    assert parse_produced(memoryview(ONE), 3, len(ONE)).size == len(ONE)


def test_headers_of_several_batches():
    marker = build_marker(producer_id=7, producer_epoch=2, coordinator_epoch=1, committed=True, timestamp_ms=9)

    batches = list(iter_headers(ONE + THREE + marker))

    assert [batch.record_count for batch in batches] == [1, 3, 1]
    assert [bytes(batch.buffer) for batch in batches] == [ONE, THREE, marker]
    assert (batches[2].attributes, batches[2].base_sequence) == (TRANSACTIONAL | CONTROL, -1)
    with pytest.raises(InvalidRecord):
        list(iter_headers(ONE + THREE[:-1]))


def test_placing_changes_only_what_the_crc_does_not_cover():
    placed = b"".join(place(THREE, 40, 6))

    batch = Batch.parse(placed)
    batch.verify_crc()
    assert (batch.base_offset, batch.leader_epoch) == (40, 6)
    assert placed[16:] == THREE[16:] and placed[8:12] == THREE[8:12]


def test_log_append_time_rewrites_bit_maximum_and_crc_only():
    stamped = with_log_append_time(Batch.parse(THREE), 9_000)

    stamped.verify_crc()
    assert stamped.is_log_append_time
    assert (stamped.base_timestamp, stamped.max_timestamp) == (100, 9_000)
    cleared = with_create_time(stamped)
    cleared.verify_crc()
    assert not cleared.is_log_append_time


def test_small_batch_does_not_keep_a_large_frame():
    frame = bytes(100_000) + THREE
    batch = Batch.parse(memoryview(frame)[100_000:])
    batch.release_frame()
    assert bytes(batch.buffer) == THREE and batch.buffer.obj is not frame

    large = Batch.parse(memoryview(build_batch([NewRecord(bytes(50_000))])))
    held = large.buffer.obj
    large.release_frame()
    assert large.buffer.obj is held


@given(st.binary(max_size=200))
def test_no_bytes_fail_otherwise_than_by_a_code(data: bytes):
    try:
        parse_produced(data, 9, ANY_BYTES)
    except (InvalidRecord, CorruptMessage):
        return
    raise AssertionError("random bytes passed")


@given(st.integers(0, len(THREE) - 1), st.integers(0, 255))
def test_changed_byte_under_the_crc_is_found(at: int, byte: int):
    copy = bytearray(THREE)
    if at < 17 or copy[at] == byte:
        return
    copy[at] = byte
    with pytest.raises(CorruptMessage):
        parse_produced(copy, 9, ANY_BYTES)
