"""Message sets to batches and back: what is kept, what is refused, and how much is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import CorruptMessage, InvalidRecord, KafkaError, MessageTooLarge
from tidegate.records.batch import Batch, Codec
from tidegate.records.batch_header import CONTROL, TIMESTAMP_TYPE, TRANSACTIONAL
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.compression import RecordsTooLarge, compress
from tidegate.records.conversion import (
    INLINE_BYTES_MAX,
    INLINE_MESSAGES_MAX,
    Limits,
    MessageSet,
    batch_of_messages,
    converted_inline,
    message_set,
)
from tidegate.records.message_set import Message, build_message, build_wrapper, iter_messages, unwrap
from tidegate.records.record import read_records
from tidegate.records.validation import RecordRules, RecordsRefused

NOW_MS = 1_700_000_000_000
RULES = RecordRules(False, False, 0, NOW_MS + 3_600_000)
WIDE = Limits(1 << 24)
MAX = 1 << 20
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
FIELDS = st.none() | st.binary(max_size=40)


def set_of(messages: Sequence[Message], magic: int, codec: int = Codec.NONE) -> memoryview:
    if codec:
        return memoryview(build_wrapper(messages, magic, codec))
    return memoryview(b"".join(build_message(one, magic) for one in messages))


def some(count: int = 3, magic: int = 1, size: int = 10) -> list[Message]:
    return [Message(n, NOW_MS + n if magic else -1, b"k%d" % n, b"v" * size, magic) for n in range(count)]


def converted(
    data: memoryview | bytes, rules: RecordRules = RULES, bytes_max: int = MAX, limits: Limits = WIDE
) -> Batch:
    return batch_of_messages(memoryview(data), rules, bytes_max, NOW_MS, limits)


def opened(found: MessageSet) -> list[Message]:
    """The messages of a set with absolute offsets, wrappers opened; a cut one at the end is left out."""
    data, messages = memoryview(found.data), []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        if len(data) < 12 or size > len(data):
            break
        [one] = iter_messages(data[:size])
        inner = list(iter_messages(unwrap(one, MAX))) if one.codec else [one]
        start = one.offset - inner[-1].offset if one.codec and one.magic else 0
        messages += [each._replace(offset=each.offset + start, size=0) for each in inner]
        data = data[size:]
    return messages


# -- in


@given(
    st.lists(st.tuples(FIELDS, FIELDS, st.integers(0, NOW_MS)), min_size=1, max_size=20),
    st.sampled_from([0, 1]),
    st.sampled_from(CODECS),
)
def test_message_sets_to_batches_and_back(fields: list[tuple[Any, Any, int]], magic: int, codec: int) -> None:
    messages = [
        Message(n, timestamp if magic else -1, key, value, magic) for n, (key, value, timestamp) in enumerate(fields)
    ]
    batch = converted(set_of(messages, magic, codec))
    records = read_records(batch)

    assert batch.codec == codec
    assert batch.record_count == len(messages) and batch.last_offset_delta == len(messages) - 1
    assert [(one.key, one.value) for one in records] == [(one.key, one.value) for one in messages]
    times = [one.timestamp for one in messages] if magic else [NOW_MS] * len(messages)
    assert [one.timestamp for one in records] == times and batch.max_timestamp == max(times)
    back = opened(message_set(bytes(batch.buffer), magic, 0, MAX, whole_first=False))
    assert back == messages


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_batch_of_messages_ignores_the_offsets_of_producers(codec: int) -> None:
    strange = [one._replace(offset=7 * one.offset + 900) for one in some(4, 0)]
    assert [one.offset for one in read_records(converted(set_of(strange, 0, codec)))] == [0, 1, 2, 3]
    assert [one.offset for one in read_records(converted(set_of(strange, 0)))] == [0, 1, 2, 3]


def test_batch_of_messages_stamps_messages_without_a_timestamp() -> None:
    mixed = [Message(0, -1, None, b"a", 1), Message(1, 5, None, b"b", 1)]
    assert [one.timestamp for one in read_records(converted(set_of(mixed, 1)))] == [NOW_MS, 5]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidRecord),
        (bytes(set_of(some(), 1, Codec.GZIP)) * 2, InvalidRecord),
        (bytes(set_of(some(), 1)) + bytes(set_of(some(), 1, Codec.GZIP)), InvalidRecord),
        (set_of([Message(0, 0, None, bytes(set_of(some(), 1, Codec.GZIP)), attributes=Codec.GZIP)], 1), CorruptMessage),
        (build_batch([NewRecord(b"v")]), InvalidRecord),
        (set_of([Message(0, 0, None, b"", attributes=Codec.ZSTD)], 1), CorruptMessage),
        (bytes(set_of(some(), 1))[:-1], CorruptMessage),
    ],
)
def test_batch_of_messages_refuses(data: bytes | memoryview, error: type[KafkaError]) -> None:
    with pytest.raises(error):
        converted(data)


def nested(inner: bytes, magic: int, codec: int = Codec.SNAPPY) -> bytes:
    return build_message(Message(0, 0, None, compress(codec, inner), attributes=codec), magic)


def test_batch_of_messages_refuses_wrappers_in_wrappers_and_other_magics() -> None:
    for inner in (bytes(set_of(some(), 1, Codec.GZIP)), bytes(set_of(some(), 0)), b""):
        with pytest.raises(InvalidRecord):
            converted(nested(inner, 1))
    with pytest.raises(CorruptMessage):
        converted(nested(bytes(set_of(some(), 1))[:-3], 1))


def test_batch_of_messages_limits_each_message_and_the_batch() -> None:
    large = set_of([Message(0, -1, None, bytes(1_000), 0)], 0)
    with pytest.raises(MessageTooLarge):
        converted(large, bytes_max=1_000)
    many = set_of(some(20, 1, 100), 1)
    with pytest.raises(MessageTooLarge):
        converted(many, bytes_max=1_000)
    assert converted(set_of(some(20, 1, 100), 1, Codec.GZIP), bytes_max=1_000).record_count == 20


def test_batch_of_messages_stops_before_it_builds() -> None:
    with pytest.raises(RecordsTooLarge):
        converted(set_of([Message(0, -1, None, bytes(1 << 20), 0)], 0, Codec.GZIP), limits=Limits(1 << 16))
    for codec in (Codec.NONE, Codec.GZIP):
        with pytest.raises(RecordsTooLarge):
            converted(set_of(some(11), 1, codec), limits=Limits(1 << 20, messages=10))


def test_converted_inline_leaves_large_sets_to_a_thread() -> None:
    small = set_of(some(INLINE_MESSAGES_MAX), 1)
    assert converted_inline(small, RULES, MAX, NOW_MS) is not None
    for large in (
        set_of(some(INLINE_MESSAGES_MAX + 1), 1),
        set_of([Message(0, -1, None, bytes(INLINE_BYTES_MAX + 1), 0)], 0),
        set_of([Message(0, -1, None, bytes(INLINE_BYTES_MAX + 1), 0)], 0, Codec.GZIP),
    ):
        assert converted_inline(large, RULES, MAX, NOW_MS) is None


def test_batch_of_messages_follows_the_rules_of_its_topic() -> None:
    keyless = set_of([Message(0, NOW_MS, b"k", b"v", 1), Message(1, NOW_MS, None, b"v", 1)], 1)
    with pytest.raises(RecordsRefused):
        converted(keyless, RecordRules(True, False, 0, NOW_MS))
    late = set_of([Message(0, NOW_MS + 10_000_000, b"k", b"v", 1)], 1)
    with pytest.raises(RecordsRefused):
        converted(late)
    assert converted(late, RecordRules(False, True, 0, NOW_MS)).record_count == 1  # LogAppendTime


# -- out


def batch(
    count: int, base: int = 0, *, codec: int = Codec.NONE, size: int = 10, attributes: int = 0, **values: Any
) -> bytes:
    records = [NewRecord(b"v" * size, b"k", NOW_MS + n, [("h", b"x")]) for n in range(count)]
    return build_batch(records, codec=codec, base_offset=base, attributes=attributes, **values)


def marker(base: int) -> bytes:
    """The end of a transaction."""
    return build_batch([NewRecord(bytes(6), bytes(4))], base_offset=base, attributes=TRANSACTIONAL | CONTROL)


@pytest.mark.parametrize("codec", [*CODECS, Codec.ZSTD])
@pytest.mark.parametrize("magic", [0, 1])
def test_message_set_continues_over_batches(codec: int, magic: int) -> None:
    data = batch(5, 10, codec=codec) + batch(5, 15, codec=codec)
    found = message_set(data, magic, 12, MAX, whole_first=False)

    assert [one.offset for one in opened(found)] == list(range(12, 20)) and found.next_offset == 20
    outer = list(iter_messages(memoryview(found.data)))
    known = codec if magic or codec != Codec.LZ4 else Codec.GZIP
    assert {one.codec for one in outer} == {Codec.GZIP if codec == Codec.ZSTD else known}
    assert {one.magic for one in outer} == {magic}
    if magic:
        assert opened(found)[0].timestamp == NOW_MS + 2


def test_message_set_of_log_append_time() -> None:
    for codec in (Codec.NONE, Codec.GZIP):
        data = batch(3, codec=codec, attributes=TIMESTAMP_TYPE)
        found = list(iter_messages(memoryview(message_set(data, 1, 0, MAX, whole_first=False).data)))
        assert all(one.attributes & TIMESTAMP_TYPE and one.timestamp == NOW_MS + 2 for one in found)
        old = list(iter_messages(memoryview(message_set(data, 0, 0, MAX, whole_first=False).data)))
        assert not any(one.attributes & TIMESTAMP_TYPE for one in old)


def test_message_set_leaves_out_control_batches() -> None:
    data = batch(2) + marker(2) + batch(1, 3)
    assert [one.offset for one in opened(message_set(data, 1, 0, MAX, whole_first=False))] == [0, 1, 3]
    assert message_set(marker(2), 1, 2, MAX, whole_first=True) == MessageSet(b"", 3)


def test_message_set_keeps_tombstones_and_null_keys() -> None:
    data = build_batch([NewRecord(None, b"k"), NewRecord(b"v", None), NewRecord(None, None), NewRecord(b"", b"")])
    found = opened(message_set(data, 0, 0, MAX, whole_first=False))
    assert [(one.key, one.value) for one in found] == [(b"k", None), (None, b"v"), (None, None), (b"", b"")]


@given(st.integers(0, 2_000), st.sampled_from([0, 1]), st.sampled_from(CODECS), st.booleans(), st.integers(0, 11))
def test_message_set_respects_the_budget_and_moves_on(
    bytes_max: int, magic: int, codec: int, whole_first: bool, first: int
) -> None:
    data = batch(6, codec=codec, size=60) + batch(6, 6, codec=codec, size=60)
    found = message_set(data, magic, first, bytes_max, whole_first=whole_first)
    whole = opened(found)

    assert [one.offset for one in whole] == list(range(first, first + len(whole)))
    assert found.next_offset == first + len(whole)
    one_bytes = len(build_message(Message(0, 0, b"k", b"v" * 60), magic))
    if whole_first:
        assert whole and len(found.data) <= max(bytes_max, one_bytes)
    else:
        assert len(found.data) <= bytes_max
        assert whole or len(found.data) == min(bytes_max, one_bytes)
    if bytes_max >= one_bytes:
        assert whole


def test_message_set_of_a_large_compressed_batch_is_sent_in_parts() -> None:
    data = batch(50, codec=Codec.GZIP, size=200)
    offset, parts = 0, 0
    while offset < 50:
        found = message_set(data, 1, offset, 130, whole_first=True)
        assert found.next_offset > offset
        offset, parts = found.next_offset, parts + 1
    assert parts > 10


def test_message_set_refuses_damaged_batches() -> None:
    damaged = bytearray(batch(3))
    damaged[70] ^= 0xFF
    with pytest.raises(KafkaError):
        message_set(bytes(damaged), 1, 0, MAX, whole_first=False)
