"""Records read back, whatever built and compressed them; and nothing is opened beyond its bound."""

from __future__ import annotations

import contextlib
import gzip

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.markers import build_marker
from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.records.batch import Batch, Codec
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.compression import compress, decompress
from tidegate.records.record import Record, iter_heads, read_records

CODECS = list(Codec)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
records = st.builds(
    NewRecord,
    value=st.none() | st.binary(max_size=300),
    key=st.none() | st.binary(max_size=20),
    timestamp=st.integers(0, 1 << 41),
    headers=headers,
)


def expected(built: list[NewRecord], base_offset: int = 0) -> list[Record]:
    return [Record(base_offset + i, r.timestamp, r.key, r.value, tuple(r.headers)) for i, r in enumerate(built)]


@given(st.sampled_from(CODECS), st.lists(records, min_size=1, max_size=20), st.integers(0, 1 << 50))
@settings(max_examples=60)
def test_record_built_is_read_back(codec: Codec, built: list[NewRecord], base_offset: int):
    batch = Batch.parse(build_batch(built, codec=codec, base_offset=base_offset))

    batch.verify_crc()
    assert read_records(batch) == expected(built, base_offset)
    assert list(iter_heads(batch)) == [(i, r.timestamp, r.key is not None) for i, r in enumerate(built)]


@pytest.mark.parametrize("codec", CODECS)
def test_clients_batches_are_read(codec: Codec):
    builder = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    built = [NewRecord(b"value %d" % i * 50, b"key" if i % 2 else None, 1_000 + i, [("h", b"x")]) for i in range(100)]
    for i, record in enumerate(built):
        builder.append(i, record.timestamp, record.key, record.value, list(record.headers))
    batch = Batch.parse(bytes(builder.build()))

    batch.verify_crc()
    assert batch.codec == codec
    assert read_records(batch) == expected(built)


@pytest.mark.parametrize("codec", CODECS)
def test_client_reads_our_batches(codec: Codec):
    built = [NewRecord(b"value %d" % i * 50, b"key", 1_000 + i, [("h", None)]) for i in range(100)]

    read = DefaultRecordBatch(build_batch(built, codec=codec, base_offset=40))

    assert read.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read] == [
        (40 + i, r.timestamp, r.key, r.value) for i, r in enumerate(built)
    ]


def test_blocks_of_an_lz4_frame_do_not_depend_on_each_other():
    frame = Batch.parse(build_batch([NewRecord(b"x" * 300_000)], codec=Codec.LZ4)).records

    assert frame[4] & 0x20, "Java's clients refuse it otherwise"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_bomb_is_not_opened(codec: Codec):
    batch = Batch.parse(build_batch([NewRecord(bytes(5_000_000))], codec=codec))

    with pytest.raises(CorruptMessage, match="larger than"):
        read_records(batch, bytes_max=1_000_000)
    assert len(read_records(batch, bytes_max=5_000_100)[0].value or b"") == 5_000_000


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@given(data=st.binary(max_size=80))
@settings(max_examples=40)
def test_bad_compressed_data_is_corrupt(codec: Codec, data: bytes):
    with contextlib.suppress(CorruptMessage):
        decompress(codec, data, 1 << 20)


def test_raw_snappy_and_plain_gzip_are_read():
    import cramjam

    text = b"records " * 1_000
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(text)), 1 << 20)) == text
    assert bytes(decompress(Codec.GZIP, gzip.compress(text), 1 << 20)) == text
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, compress(Codec.SNAPPY, text)[:-1], 1 << 20)


@given(st.integers(62, 200), st.integers(0, 255))
@settings(max_examples=200)
def test_damaged_records_area_is_invalid(at: int, byte: int):
    whole = build_batch([NewRecord(b"value", b"key", 5 + i, [("h", b"v")]) for i in range(5)])
    damaged = bytearray(whole)
    damaged[at % (len(whole) - 61) + 61] = byte
    batch = Batch.parse(damaged)
    for read in (read_records, iter_heads):
        with contextlib.suppress(InvalidRecord):
            assert len(list(read(batch))) == 5


def test_wrong_counts_and_trailing_bytes_are_invalid():
    batch = Batch.parse(build_batch([NewRecord(b"v"), NewRecord(b"w")]))
    for count in (1, 3):
        batch.record_count = count
        with pytest.raises(InvalidRecord):
            read_records(batch)


def test_marker_contains_the_outcome_of_the_transaction():
    marker = build_marker(producer_id=3, producer_epoch=1, coordinator_epoch=5, committed=False, timestamp_ms=8)

    (record,) = read_records(Batch.parse(marker))

    assert (record.key, record.value) == (b"\0\0\0\0", b"\0\0\0\0\0\5")
