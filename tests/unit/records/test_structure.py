"""A produced batch is stored only if every reader can read it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.records import structure
from tidegate.records.batch import Batch, Codec
from tidegate.records.build import NewRecord, build_batch, encode_record, seal
from tidegate.records.compression import compress
from tidegate.records.record import read_records
from tidegate.records.structure import check_records
from tidegate.records.validation import INLINE_RECORDS_MAX, RecordRules, RecordsRefused, open_and_check, open_inline

RULES = RecordRules(compacted=False, log_append_time=False, oldest_ms=-1, newest_ms=1 << 60)
BYTES_MAX = 1 << 20
ONE = encode_record(NewRecord(b"value", b"key"), 0, 0)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        value=st.none() | st.binary(max_size=300),
        key=st.none() | st.binary(max_size=300),
        timestamp=st.integers(-(1 << 62), 1 << 62),
        headers=st.lists(st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70)), max_size=3),
    ),
    min_size=1,
    max_size=80,
)


def with_area(area: bytes, count: int, codec: int = Codec.NONE) -> Batch:
    """A batch of `count` records by its header, whatever lies in its area."""
    batch = Batch.parse(build_batch([NewRecord(b"")] * count, codec=codec))
    return Batch(memoryview(bytes(batch.buffer[:61]) + area))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_truncated_records_are_refused_within_a_limit(codec: int) -> None:
    batch = with_area(compress(codec, b""), 1, codec)

    with pytest.raises(InvalidRecord):
        open_and_check(batch, RULES._replace(record_bytes_max=100), BYTES_MAX)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_open_inline_garbage_instead_of_compressed_records_is_corrupt(codec: Codec):
    with pytest.raises(CorruptMessage):
        open_inline(with_area(b"\xd9garbage" * 9, 3, codec), RULES, BYTES_MAX)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    ("area", "count"),
    [
        (ONE * 3, 3),  # three records at one offset delta
        (ONE, 2),  # fewer than the header says
        (ONE + encode_record(NewRecord(b"v"), 1, 0), 1),  # more
        (ONE + b"\x00", 1),
        (ONE[:-1], 1),
        (b"\x80\x80\x80\x80\x80\x80\x00", 1),
        (b"\x0d" + ONE[1:], 1),  # negative length
        (b"\x0e\x00\x00\x00\x01\x01\x01\x00", 1),  # negative header count
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1),  # a header without a name
        (b"\x0e\x00\x00\x00\x14\x01\x00\x00", 1),  # a key beyond the record
        (b"\x20\x00" + b"\xff" * 10 + b"\x00\x00\x01\x01\x00", 1),  # a timestamp that no reader takes
        (b"", 1),
    ],
)
def test_open_inline_area_that_readers_cannot_read_is_invalid(area: bytes, count: int, codec: Codec):
    with pytest.raises(InvalidRecord):
        open_inline(with_area(compress(codec, area), count, codec), RULES, BYTES_MAX)


def test_open_inline_claims_of_many_records_are_refused_or_left_to_the_thread():
    few, many = with_area(compress(Codec.ZSTD, ONE), 3, Codec.ZSTD), with_area(compress(Codec.ZSTD, ONE), 3, Codec.ZSTD)
    few.record_count = INLINE_RECORDS_MAX + 1
    many.record_count = 2**31 - 1

    assert open_inline(few, RULES, BYTES_MAX) is None
    with pytest.raises(InvalidRecord):
        open_and_check(few, RULES, BYTES_MAX)
    with pytest.raises(InvalidRecord):
        open_inline(many, RULES, BYTES_MAX)


@given(RECORDS, st.sampled_from(list(Codec)))
@settings(max_examples=150)
@example([NewRecord(b"")] * 10_000, Codec.ZSTD)
def test_open_and_check_takes_what_can_be_built(built: list[NewRecord], codec: Codec):
    batch = Batch.parse(build_batch(built, codec=codec))
    assert open_and_check(batch, RULES._replace(log_append_time=True), 1 << 24) is batch


@given(RECORDS, st.data())
@settings(max_examples=300)
def test_check_records_what_is_accepted_can_be_read(built: list[NewRecord], data: st.DataObject):
    batch = bytearray(build_batch(built))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    damaged = Batch.parse(batch)
    try:
        largest = check_records(damaged.records, damaged.record_count)
    except (InvalidRecord, IndexError):
        return
    read = read_records(damaged)
    assert [record.offset for record in read] == list(range(len(built)))
    deltas = [record.timestamp - damaged.base_timestamp for record in read]
    assert largest == (max(deltas) if max(deltas) >= 0 else structure.BELOW_BASE)


@pytest.mark.parametrize("count", [1, 40])
def test_open_and_check_timestamp_beyond_64_bits_is_refused(count: int):
    area = b"".join(encode_record(NewRecord(b"v", timestamp=1 << 62), index, 0) for index in range(count))
    batch = with_area(area, count)
    batch.base_timestamp = (1 << 62) + 5

    with pytest.raises(RecordsRefused):
        open_and_check(batch, RULES._replace(newest_ms=1 << 64), BYTES_MAX)


SAME = st.builds(
    lambda size, keyed, step, count: [
        NewRecord(b"v" * size, b"k" * 9 if keyed else None, timestamp=1_000 + index * step) for index in range(count)
    ],
    st.integers(0, 200),
    st.booleans(),
    st.sampled_from([0, 1, 7, 100, 100_000, 1 << 40, 1 << 55]),
    st.integers(8, 140),
)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("count", [3, 40, INLINE_RECORDS_MAX + 40])
@pytest.mark.parametrize("claimed_ms", [-1, 999, 1_000, 4_999, 9_000])
def test_open_and_check_corrects_the_largest_timestamp(claimed_ms: int, count: int, codec: Codec):
    built = [NewRecord(b"v" * 50, timestamp=5_000 if index == count // 2 else 1_000) for index in range(count)]
    right = build_batch(built, codec=codec)
    wrong = bytearray(right)
    struct.pack_into(">q", wrong, 35, claimed_ms)
    batch = Batch.parse(seal(wrong))

    assert bytes(open_and_check(batch, RULES, BYTES_MAX).buffer) == right
    inline = open_inline(batch, RULES, BYTES_MAX)
    assert inline is None if count > INLINE_RECORDS_MAX else inline is not None and bytes(inline.buffer) == right
    assert open_and_check(batch, RULES._replace(log_append_time=True), BYTES_MAX) is batch


@given(SAME, st.data())
@settings(max_examples=400)
def test_check_records_runs_are_judged_as_their_records(built: list[NewRecord], data: st.DataObject):
    batch = bytearray(build_batch(built))
    for _ in range(data.draw(st.integers(0, 2))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    area = bytes(batch[61:])

    assert judged(area, len(built), in_runs=True) == judged(area, len(built), in_runs=False)


def judged(area: bytes, count: int, *, in_runs: bool) -> int | str:
    """The largest timestamp delta, if the records are taken."""
    try:
        if in_runs:
            largest = check_records(memoryview(area), count)
            assert largest is not None
            return largest
        _, end, encoded = structure._walk(area, len(area), 0, count, 0)
        if end != len(area):
            raise InvalidRecord("bytes follow")
    except (InvalidRecord, IndexError):
        return "refused"
    return encoded >> 1 if encoded >= 0 else structure.BELOW_BASE


@pytest.mark.parametrize("count", [8, 64, 65, 66, 72, 8_191, 8_192, 8_193, 8_300, 16_384])
@pytest.mark.parametrize("wrong", [None, 0, -1])
def test_check_records_of_one_size_by_their_deltas(count: int, wrong: int | None):
    area = [encode_record(NewRecord(b"v" * 90), delta, 0) for delta in range(count)]
    if wrong is not None:
        area[wrong] = encode_record(NewRecord(b"v" * 90), count // 2 + 1, 0)

    assert judged(b"".join(area), count, in_runs=True) == (0 if wrong is None else "refused")


def test_check_records_delta_with_more_bytes_than_it_needs_is_taken():
    longer = b"\x12\x00\x00\x82\x00\x01\x04vv\x00"  # record 1: its delta has two bytes
    area = encode_record(NewRecord(b"vv"), 0, 0) + longer
    area += b"".join(encode_record(NewRecord(b"vv"), delta, 0) for delta in range(2, 20))

    assert judged(area, 20, in_runs=True) == judged(area, 20, in_runs=False) == 0


def test_open_inline_large_batch_of_records_of_one_size_needs_no_thread():
    same = Batch.parse(build_batch([NewRecord(b"v" * 100)] * 10_000))
    varied = Batch.parse(build_batch([NewRecord(b"v" * (index % 7)) for index in range(10_000)]))

    assert open_inline(same, RULES, BYTES_MAX) is same
    assert open_inline(varied, RULES, BYTES_MAX) is None
