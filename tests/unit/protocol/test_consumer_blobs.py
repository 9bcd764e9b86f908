"""Subscriptions and assignments of consumers: any version, and any rubbish."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.consumer_protocol_assignment.v3.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_assignment.v3.data import TopicPartition as Assigned
from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription, TopicPartition
from kio.serial import entity_writer

from tidegate.protocol.consumer_blobs import (
    OWNED_MAX,
    assigned_partitions,
    owners_text,
    read_assignment,
    read_subscription,
    subscribed_topics,
    write_assignment,
    write_subscription,
)

names = st.text("abcdefghijklmnopqrstuvwxyz.-_", min_size=1, max_size=10)


@given(topics=st.lists(names, unique=True, max_size=5))
def test_subscription_is_read_back(topics: list[str]) -> None:
    assert subscribed_topics(write_subscription(topics)) == frozenset(topics)


def test_later_versions_append_fields() -> None:
    buffer = io.BytesIO()
    subscription = ConsumerProtocolSubscription(
        topics=("a", "b"),
        user_data=b"x",
        owned_partitions=(TopicPartition(topic="a", partitions=(0,)),),
        generation_id=3,
        rack_id="r1",
    )
    entity_writer(ConsumerProtocolSubscription)(buffer, subscription)
    blob = b"\0\3" + buffer.getvalue()
    assert subscribed_topics(blob) == {"a", "b"}
    assert read_subscription(blob) == ({"a", "b"}, {"a": [0]}, "r1")
    assert read_subscription(write_subscription(["a"])) == ({"a"}, {}, None)


def test_read_assignment_with_and_without_user_data() -> None:
    plain = write_assignment({"a": [0, 3]})
    assert read_assignment(plain) == ({"a": [0, 3]}, False)
    assert read_assignment(plain[:-4] + b"\0\0\0\1x") == ({"a": [0, 3]}, True)
    assert read_assignment(b"") == ({}, False)
    assert read_assignment(plain[:-6]) is None
    assert read_subscription(b"\0\1\xff") is None


def test_assignment_of_a_real_client() -> None:
    buffer = io.BytesIO()
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=(Assigned(topic="a", partitions=(0, 3)),), user_data=None
    )
    entity_writer(ConsumerProtocolAssignment)(buffer, assignment)
    assert assigned_partitions(b"\0\3" + buffer.getvalue()) == {"a": [0, 3]}


@given(assigned=st.dictionaries(names, st.lists(st.integers(0, 1000), max_size=5), max_size=4))
def test_assignment_is_read_back(assigned: dict[str, list[int]]) -> None:
    assert assigned_partitions(write_assignment(assigned)) == assigned


def test_empty_assignment_owns_nothing() -> None:
    assert assigned_partitions(b"") == {}


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\0\0\0\0\1",
        b"\0\0\0\0\0\1\0\5ab",
        b"\0\0" + struct.pack(">i", -1),
        b"\0\0" + struct.pack(">i", 1 << 30),
        b"\0\0\0\0\0\1\0\2\xff\xff\xff\xff\xff\xff",
        b"\0\0\0\0\0\0" + struct.pack(">i", 9),
    ],
)
def test_malformed_subscription_is_unknown(blob: bytes) -> None:
    assert subscribed_topics(blob) is None


@given(blob=st.binary(max_size=60))
def test_rubbish_never_raises(blob: bytes) -> None:
    subscribed_topics(blob)
    assigned_partitions(blob)


def test_owners_are_decoded_by_topic_and_partition() -> None:
    text = owners_text(
        [("a", write_assignment({"t": [0, 3], "s": [1]})), ("b", write_assignment({"t": [1]})), ("c", b"")]
    )

    s, t = text.split(" ")
    assert (s[:2], t[:2]) == ("s=", "t=")
    a, b = s[6:], t[6:10]
    assert s == f"s=....{a}" and t == f"t={a}{b}....{a}"
    assert len({a, b, "...."}) == 3
    assert owners_text([("c", b"")]) == "-"


@pytest.mark.parametrize(
    "assignments",
    [
        [("a", b"a@1")],
        [("a", write_assignment({"t": [*range(OWNED_MAX + 1)]}))],
        [("a", write_assignment({"t": [OWNED_MAX]}))],
        [("a", write_assignment({"t": [-1]}))],
        [("a", write_assignment({"t" * 9_000: [0]}))],
    ],
)
def test_owners_that_cannot_be_decoded_are_omitted(assignments: list[tuple[str, bytes]]) -> None:
    assert owners_text(assignments) == ""
