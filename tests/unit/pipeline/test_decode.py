"""The decoder against what was built, a client's parser and the plain way (spec 11, groups 1 and 12)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.markers import build_marker
from tests.support.stored_batches import sealed_batch, stored_batch
from tidegate.records.batch import Codec
from tidegate.records.batch_header import TIMESTAMP_TYPE, TRANSACTIONAL
from tidegate.records.build import NewRecord, encode_record
from tidegate_pipeline.decode import plain
from tidegate_pipeline.decode.decoder import Decoder, Engine, EngineName, StoredBatch, find_engine
from tidegate_pipeline.decode.opening import Opener
from tidegate_pipeline.decode.schema import DECODED_ARROW, DECODED_ARROW_WITHOUT_HEADERS
from tidegate_pipeline.errors import UsageError

ENGINES: list[EngineName] = ["numpy", "numba"]
CODECS = list(Codec)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

octets = st.builds(
    lambda size, seed: random.Random(seed).randbytes(size),
    st.sampled_from([0, 1, 11, 12, 13, 63, 64, 4096]),
    st.integers(),
)
headers = st.lists(st.tuples(st.text(max_size=14), st.none() | st.binary(max_size=14)), max_size=50)
records = st.builds(
    NewRecord,
    value=st.none() | octets,
    key=st.none() | octets,
    timestamp=st.integers(-1, 1 << 42) | st.integers(1_700_000_000_000, 1_700_000_000_200),
    headers=st.just([]) | headers,
)


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[StoredBatch], list[tuple[Any, ...]]]:
    """Batches of one partition, and the rows that they hold."""
    stored, rows, offset = [], [], draw(st.integers(0, 1 << 50))
    for _ in range(draw(st.integers(1, 4))):
        built = draw(st.lists(records, min_size=1, max_size=12))
        gaps = draw(
            st.just([0] * len(built)) | st.lists(st.integers(0, 1 << 20), min_size=len(built), max_size=len(built))
        )
        deltas = [index + sum(gaps[: index + 1]) for index in range(len(built))]
        log_time = draw(st.none() | st.integers(0, 1 << 42))
        header = {"attributes": draw(st.sampled_from([0, TRANSACTIONAL]))}
        if log_time is not None:
            header |= {"attributes": TIMESTAMP_TYPE, "max_timestamp": log_time}
        header["last_offset_delta"] = deltas[-1] + draw(st.integers(0, 2))
        stored.append(StoredBatch(stored_batch(built, deltas, draw(st.sampled_from(CODECS)), **header), offset))
        rows += [row_of(each, offset + delta, log_time) for each, delta in zip(built, deltas, strict=True)]
        offset += header["last_offset_delta"] + 1
    return stored, rows


def row_of(record: NewRecord, offset: int, log_time: int | None = None) -> tuple[Any, ...]:
    timestamp = record.timestamp if log_time is None else log_time
    listed = [{"key": name, "value": value} for name, value in record.headers] or None
    at = EPOCH + timedelta(milliseconds=timestamp)
    return record.key, record.value, "topic", 3, offset, at, int(log_time is not None), listed


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    assert batch.schema.equals(DECODED_ARROW, check_metadata=True)
    batch.validate(full=True)
    return [tuple(row.values()) for row in batch.to_pylist()]


class Quick(Decoder):
    """Never takes the plain way: what is asserted of it is true of the quick one."""

    def _plain(self, *_: Any) -> Any:
        raise AssertionError("the quick way had a doubt")


@pytest.fixture(scope="module", params=ENGINES)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return Quick(engine=request.param)


@given(group=groups())
@settings(max_examples=150, deadline=None, print_blob=True)
def test_every_way_gives_the_rows_that_were_built(group: tuple[list[StoredBatch], list[tuple[Any, ...]]]):
    stored, built = group
    opened = [Opener(1 << 20).open(each) for each in stored]

    plainly = [row for each in opened for row in plain.read_rows(each.batch, "topic", 3, 1 << 20)]
    assert rows_of(plain.to_arrow(plainly, DECODED_ARROW)) == built
    for engine in ENGINES:
        batch, faults = Quick(engine=engine).decode("topic", 3, stored)
        assert not faults
        assert rows_of(batch) == built


@given(
    group=groups(), cut=st.tuples(st.floats(0, 1), st.floats(0, 1)), group_bytes=st.sampled_from([1, 5_000, 8 << 20])
)
@settings(max_examples=60, deadline=None, print_blob=True)
def test_slices_within_batches_and_groups_of_any_size(
    decoder: Decoder, group: tuple[list[StoredBatch], list[tuple[Any, ...]]], cut: tuple[float, float], group_bytes: int
):
    stored, built = group
    first, end = (built[0][4] + int(share * (built[-1][4] + 2 - built[0][4])) for share in sorted(cut))

    found = list(decoder.groups("topic", 3, stored, first, end, group_bytes))

    assert [row for batch, _ in found for row in rows_of(batch)] == [row for row in built if first <= row[4] < end]
    assert len(found) == len(stored) if group_bytes == 1 else len(found) <= len(stored)


@pytest.mark.parametrize("codec", CODECS)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=8, deadline=None, print_blob=True)
def test_clients_batches_as_its_parser_reads_them(decoder: Decoder, codec: Codec, seed: int):
    chance = random.Random(seed)
    builder = DefaultRecordBatchBuilder(2, codec, True, 7, 1, 5, 1 << 30)
    for index in range(chance.choice([1, 63, 64, 65, 700])):
        key = chance.choice([None, b"", chance.randbytes(16)])
        value = chance.choice([None, b"", b"v" * chance.randrange(200), chance.randbytes(chance.randrange(80))])
        listed = [(f"h{n}", chance.choice([None, b"", b"x" * 20])) for n in range(chance.choice([0, 0, 0, 2, 50]))]
        builder.append(index, 1_700_000_000_000 + chance.randrange(-9_000, 9_000), key, value, listed)
    buffer = bytes(builder.build())

    batch, faults = decoder.decode("topic", 3, [StoredBatch(memoryview(buffer), 1_000)])

    read = [NewRecord(each.value, each.key, each.timestamp, each.headers) for each in DefaultRecordBatch(buffer)]
    assert not faults
    assert rows_of(batch) == [row_of(each, 1_000 + index) for index, each in enumerate(read)]


@pytest.mark.parametrize("codec", CODECS)
def test_value_of_a_megabyte_between_small_ones_with_keys(decoder: Decoder, codec: Codec):
    sizes = [0, 11, 12, 13, 1 << 20, 4096]
    built = [NewRecord(random.Random(size).randbytes(size), b"k" * size, size, [("n", b"v")]) for size in sizes]
    stored = [StoredBatch(stored_batch(built, codec=codec), 6 * index) for index in range(4)]

    batch, _ = decoder.decode("topic", 3, stored)

    assert batch.nbytes > 8 << 20
    assert rows_of(batch) == [row_of(each, offset) for offset, each in enumerate(built * 4)]


def test_no_rows_of_markers_and_of_batches_that_compaction_emptied(decoder: Decoder):
    marker = build_marker(producer_id=1, producer_epoch=0, coordinator_epoch=0, committed=False, timestamp_ms=5)
    emptied = sealed_batch(b"", last_offset_delta=9, producer_id=4, base_sequence=7)
    data = stored_batch([NewRecord(b"x")], attributes=TRANSACTIONAL)

    batch, faults = decoder.decode("topic", 3, [StoredBatch(marker, 0), StoredBatch(emptied, 1), StoredBatch(data, 11)])
    nothing, _ = decoder.decode("topic", 3, [StoredBatch(marker, 0), StoredBatch(emptied, 1)])

    assert not faults
    assert rows_of(batch) == [row_of(NewRecord(b"x"), 11)]
    assert rows_of(nothing) == rows_of(decoder.decode("topic", 3, [])[0]) == []


def test_without_headers_the_column_is_not_there():
    stored = [StoredBatch(stored_batch([NewRecord(b"x", headers=[("a", b"b")])]), 0)]

    for engine in ENGINES:
        batch, _ = Quick(engine=engine, include_headers=False).decode("topic", 3, stored)
        assert batch.schema.equals(DECODED_ARROW_WITHOUT_HEADERS)
        assert batch["value"].to_pylist() == [b"x"]


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_unsuited_for_the_fast_path_are_decoded_too(engine: EngineName):
    many = NewRecord(b"x", headers=[(str(index), None) for index in range(1_000)])
    no_utf8 = encode_record(NewRecord(b"x", headers=[("abc", b"v")]), 0, 0).replace(b"abc", b"a\xffc")

    batch, faults = Decoder(engine=engine).decode(
        "topic", 3, [StoredBatch(stored_batch([many]), 0), StoredBatch(sealed_batch(no_utf8, record_count=1), 1)]
    )

    assert not faults
    assert rows_of(batch) == [row_of(many, 0), row_of(NewRecord(b"x", headers=[("a\ufffdc", b"v")]), 1)]


def test_group_beyond_what_arrow_addresses_is_refused(decoder: Decoder, monkeypatch: pytest.MonkeyPatch):
    stored = StoredBatch(stored_batch([NewRecord(b"x" * 100)]), 0)
    monkeypatch.setattr("tidegate_pipeline.decode.decoder._DATA_BYTES_MAX", 100)

    with pytest.raises(UsageError, match="too many for one Arrow batch"):
        decoder.decode("topic", 3, [stored])


def test_auto_takes_numba_where_it_is():
    assert find_engine("auto") is find_engine("numba") is not find_engine("numpy")
    chosen: Sequence[Engine] = [find_engine(name) for name in ENGINES]
    assert [engine.__name__.rpartition(".")[2] for engine in chosen] == ["fields", "compiled"]  # type: ignore[attr-defined]
