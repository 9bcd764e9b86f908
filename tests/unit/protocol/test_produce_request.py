"""Produce requests read in place say what the schema's own reader says, and nothing malformed passes."""

from __future__ import annotations

import datetime
import io
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer

from tests.support.log_broker import produce_request
from tidegate.protocol import codec
from tidegate.protocol.primitives import DecodeError
from tidegate.protocol.produce_request import read_produce

VERSIONS = range(3, 14)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
partitions = st.lists(st.tuples(st.integers(0, 9), st.none() | st.binary(max_size=200)), max_size=3)


def written(request: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(request))(buffer, request)
    return buffer.getvalue()


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, Any]:
    version = draw(st.sampled_from(VERSIONS))
    topic = st.uuids(version=4) if version >= 13 else names
    topics = draw(st.lists(st.tuples(topic, partitions), max_size=3))
    return version, produce_request(
        topics,
        version=version,
        acks=draw(st.integers(-3, 3)),
        timeout_ms=draw(st.integers(0, 1 << 30)),
        transactional_id=draw(st.none() | names),
    )


@given(requests())
@settings(max_examples=150)
def test_produce_request_written_is_read_back(case: tuple[int, Any]):
    version, request = case
    read = read_produce(version, memoryview(written(request)))

    assert (read.transactional_id, read.acks) == (request.transactional_id, request.acks)
    assert read.timeout_ms == request.timeout // datetime.timedelta(milliseconds=1)
    expected = [
        (
            topic.topic_id.bytes if version >= 13 else topic.name,
            [(part.index, part.records) for part in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    assert read.topics == expected


@given(requests(), st.data())
@settings(max_examples=100)
def test_truncated_request_is_refused_and_a_longer_one_is_read(case: tuple[int, Any], data: st.DataObject):
    version, request = case
    body = written(request)
    with pytest.raises(DecodeError):
        read_produce(version, memoryview(body[: data.draw(st.integers(0, len(body) - 1))]))
    assert read_produce(version, memoryview(body + b"\1")) == read_produce(version, memoryview(body))


@given(st.sampled_from(VERSIONS), st.binary(max_size=60))
@settings(max_examples=300)
def test_random_bytes_are_read_or_refused(version: int, body: bytes):
    try:
        read_produce(version, memoryview(body))
    except DecodeError:
        return


def test_records_stay_views_of_the_frame():
    body = memoryview(written(produce_request([("t", [(0, b"records")])])))
    ((_, ((_, records),)),) = read_produce(9, body).topics
    assert records is not None and records.obj is body.obj


@pytest.mark.parametrize("version", [9, 13])
def test_unknown_tagged_fields_are_skipped(version: int):
    topic = uuid.UUID(int=5) if version >= 13 else "t"
    body = written(produce_request([(topic, [(3, b"records")])], version=version))
    assert body.endswith(b"\0\0\0")
    tagged = body[:-3] + b"\1\7\2ab" + b"\1\x80\1\0" + b"\2\0\1x\1\0"

    read = read_produce(version, memoryview(tagged))
    assert read.topics[0][1] == [(3, b"records")]
    assert codec.request_class(0, version)
