"""Cleaning of batches against a plain model: the newest record of each key, and tombstones until their horizon."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.records.batch import Batch, Codec
from tidegate.records.batch_header import DELETE_HORIZON
from tidegate.records.build import NewRecord, build_batch, with_log_append_time
from tidegate.records.cleaning import CleaningRules, clean, emptied, key_id, note_keys
from tidegate.records.record import Record, read_records

HORIZON = 5_000_000_000_000
KEYS = st.sampled_from([b"", b"a", b"b", b"k" * 16, b"m" * 40])
RECORDS = st.lists(
    st.builds(
        NewRecord,
        value=st.none() | st.binary(max_size=20),
        key=st.none() | KEYS,
        timestamp=st.integers(-1, 1 << 42),
        headers=st.just(()) | st.just((("h", b"1"), ("n", None))),
    ),
    min_size=1,
    max_size=8,
)
BATCHES = st.lists(st.tuples(RECORDS, st.sampled_from(list(Codec)), st.booleans()), min_size=1, max_size=6)


def built(batches: list[Any]) -> list[tuple[int, Batch]]:
    """The batches with their base offsets; the flag gives a batch LogAppendTime."""
    base, made = 0, []
    for records, codec, stamped in batches:
        batch = Batch.parse(build_batch(records, codec=codec, producer_id=7, producer_epoch=1, base_sequence=base))
        made.append((base, with_log_append_time(batch, 77) if stamped else batch))
        base += len(records)
    return made


def records_of(base: int, batch: Batch) -> list[Record]:
    return [one._replace(offset=base + one.offset - batch.base_offset) for one in read_records(batch)]


def cleaned(batches: list[tuple[int, Batch]], rules: CleaningRules) -> list[tuple[int, Batch]]:
    found = [(base, clean(batch, base, rules).batch) for base, batch in batches]
    return [(base, Batch.parse(batch)) for base, batch in found if batch is not None]


def rules_of(batches: list[tuple[int, Batch]], now_ms: int = 0, horizon_from: int = 0) -> CleaningRules:
    latest: dict[bytes, int] = {}
    for base, batch in batches:
        note_keys(batch, base, latest)
    return CleaningRules(latest, now_ms, HORIZON, horizon_from)


@given(BATCHES)
def test_clean_keeps_the_last_record_of_each_key(batches: list[Any]) -> None:
    before = built(batches)
    everything = [record for base, batch in before for record in records_of(base, batch)]
    newest = {record.key: record.offset for record in everything if record.key is not None}
    expected = [record for record in everything if newest.get(record.key) == record.offset]

    after = cleaned(before, rules_of(before))

    assert [record for base, batch in after for record in records_of(base, batch)] == expected
    originals = dict(before)
    for base, batch in after:
        batch.verify_crc()
        original, records = originals[base], records_of(base, batch)
        assert (batch.last_offset_delta, batch.codec) == (original.last_offset_delta, original.codec)
        assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 1, original.base_sequence)
        assert batch.record_count == len(records)
        assert batch.max_timestamp == max(one.timestamp for one in records)
        assert bool(batch.attributes & DELETE_HORIZON) == any(one.value is None for one in records)


@given(BATCHES)
def test_clean_drops_tombstones_behind_their_horizon(batches: list[Any]) -> None:
    before = built(batches)
    once = cleaned(before, rules_of(before))
    end = sum(batch.last_offset_delta + 1 for _, batch in before)
    kept = [record for base, batch in once for record in records_of(base, batch)]

    early = cleaned(once, CleaningRules({}, HORIZON - 1, HORIZON * 2, end))
    late = cleaned(once, CleaningRules({}, HORIZON, HORIZON * 2, end))

    assert [bytes(batch.buffer) for _, batch in early] == [bytes(batch.buffer) for _, batch in once]
    assert [record for base, batch in late for record in records_of(base, batch)] == [
        record for record in kept if record.value is not None
    ]


def test_clean_ignores_a_horizon_that_a_producer_set() -> None:
    tombstone = build_batch([NewRecord(None, b"k", 10)], attributes=DELETE_HORIZON)
    batches = [(0, Batch.parse(tombstone))]
    rules = rules_of(batches, now_ms=1_000)

    ((_, batch),) = cleaned(batches, rules)

    assert batch.base_timestamp == HORIZON
    assert read_records(batch)[0].timestamp == 10


@pytest.mark.parametrize("codec", list(Codec))
def test_emptied_keeps_offsets_and_sequence(codec: Codec) -> None:
    batch = Batch.parse(build_batch([NewRecord(b"v", b"k", 9)] * 3, codec=codec, producer_id=3, base_sequence=5))
    left = Batch.parse(emptied(batch))

    left.verify_crc()
    assert read_records(left) == []
    assert (left.last_offset_delta, left.producer_id, left.base_sequence) == (2, 3, 5)
    assert (left.record_count, left.max_timestamp) == (0, -1)


def test_key_id_differs_between_keys_and_digests() -> None:
    long = b"x" * 100
    assert key_id(key_id(long)) != key_id(long)
    assert key_id(b"short") == b"short"
