"""What no client sends is refused at its header, before anything is built from it."""

from __future__ import annotations

import struct

import pytest

from tidegate.errors import MESSAGE_LENGTH_MAX, InvalidConfig
from tidegate.protocol import codec
from tidegate.protocol.consumer_blobs import TOPICS_MAX, assigned_partitions, subscribed_topics, topic_count
from tidegate.protocol.primitives import TAGS_MAX, DecodeError, skip_tags, uvarint
from tidegate.protocol.produce_request import PARTITIONS_MAX, read_produce
from tidegate.protocol.schema_walk import ELEMENTS_MAX, FEW_ELEMENTS_MAX


def tags(count: int) -> bytes:
    return uvarint(count) + b"".join(uvarint(tag) + b"\0" for tag in range(count))


def offset_fetch(count: int) -> bytes:
    return b"\0\1g" + struct.pack(">i", 1) + b"\0\1t" + struct.pack(">i", count) + bytes(4) * count


def test_decode_as_many_partitions_as_commits_may_have():
    assert codec.decode(9, 1, offset_fetch(ELEMENTS_MAX - 1)).topics[0].partition_indexes[-1] == 0
    with pytest.raises(DecodeError, match="too many array elements"):
        codec.decode(9, 1, offset_fetch(ELEMENTS_MAX))


def test_decode_fewer_names_than_partitions():
    names = struct.pack(">i", FEW_ELEMENTS_MAX + 1) + b"\0\1a" * (FEW_ELEMENTS_MAX + 1)
    with pytest.raises(DecodeError, match="too many array elements"):
        codec.decode(3, 4, names + b"\0")


def test_tagged_fields_of_one_section_are_few():
    assert skip_tags(tags(TAGS_MAX), 0, 10_000) == len(tags(TAGS_MAX))
    with pytest.raises(DecodeError):
        skip_tags(tags(TAGS_MAX + 1), 0, 10_000)
    with pytest.raises(DecodeError):
        codec.decode(18, 3, b"\x02a\x02a" + tags(TAGS_MAX + 1))


def test_tagged_fields_of_all_elements_are_few():
    element = struct.pack(">iiq", 0, -1, -1) + tags(TAGS_MAX)
    count = ELEMENTS_MAX // TAGS_MAX + 1
    body = b"\xff\xff\xff\xff\0\x02\x02t" + uvarint(count + 1) + element * count + b"\0" + bytes(5)
    with pytest.raises(DecodeError, match="too many"):
        codec.decode(2, 10, body)


@pytest.mark.parametrize("version", [3, 9])
def test_produce_refuses_too_many_partitions_at_their_count(version: int):
    count = PARTITIONS_MAX + 1
    classic = struct.pack(">hhii", -1, -1, 0, 1) + b"\0\1t" + struct.pack(">i", count)
    flexible = b"\0" + struct.pack(">hi", -1, 0) + b"\x02\x02t" + uvarint(count + 1)
    with pytest.raises(DecodeError, match="more than"):
        read_produce(version, memoryview(classic if version < 9 else flexible))


def test_subscription_of_too_many_topics_is_not_read():
    for count, read in ((TOPICS_MAX, frozenset({""})), (TOPICS_MAX + 1, None)):
        metadata = struct.pack(">hi", 0, count) + bytes(2 * count) + struct.pack(">i", -1)
        assert subscribed_topics(metadata) == read
        assert topic_count(metadata) == count
    assert topic_count(struct.pack(">hi", 0, -5)) == topic_count(b"") == 0


def test_assignment_of_too_many_partitions_is_not_read():
    assignment = struct.pack(">hi", 0, 1) + b"\0\1t" + struct.pack(">iii", 2, 0, 1) + struct.pack(">i", -1)
    assert assigned_partitions(assignment, 2) == {"t": [0, 1]}
    assert assigned_partitions(assignment, 1) is None


def test_error_repeats_no_more_than_its_answer_takes():
    assert len(str(InvalidConfig("\\x01" * 32_767).message)) == MESSAGE_LENGTH_MAX
    assert InvalidConfig().message is None
