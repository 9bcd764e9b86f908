"""A Metadata answer made part by part is the one that the schema's writer makes."""

from __future__ import annotations

import datetime
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tidegate.apis.slices import PARTITIONS, batches_of, join_topics
from tidegate.protocol import codec
from tidegate.protocol.metadata_writer import TopicWriter
from tidegate.protocol.versions import Fields

LEADERS = [7, 8] * 100


def topic(version: int, partitions: tuple[Any, ...]) -> Fields:
    return Fields(
        error_code=ErrorCode.none,
        name="t",
        topic_id=UUID(int=5),
        is_internal=False,
        partitions=partitions,
        topic_authorized_operations=11,
    )


def whole(topics: tuple[Any, ...]) -> Fields:
    return Fields(
        throttle_time=datetime.timedelta(0),
        brokers=(),
        cluster_id="c",
        controller_id=1,
        topics=topics,
        cluster_authorized_operations=12,
        error_code=ErrorCode.none,
    )


@pytest.mark.parametrize("version", range(14))
def test_parts_make_the_whole(version: int):
    partitions = tuple(
        Fields(
            error_code=ErrorCode.none,
            partition_index=index,
            leader_id=leader,
            leader_epoch=3,
            replica_nodes=(leader,),
            isr_nodes=(leader,),
            offline_replicas=(),
        )
        for index, leader in enumerate(LEADERS)
    )
    writer = TopicWriter(version)
    before, after = writer.around_topics(codec.encode(3, version, whole(())), 2)
    topic_before, topic_after = writer.around_partitions(topic(version, ()), len(LEADERS))
    parts = [writer.partitions(0, LEADERS[:50], 3), writer.partitions(50, LEADERS[50:], 3)]

    made = b"".join([before, topic_before, *parts, topic_after, writer.topic(topic(version, ())), after])

    assert made == codec.encode(3, version, whole((topic(version, partitions), topic(version, ()))))


def test_topics_in_parts_are_joined_again():
    topics = [Fields(name=str(size), partitions=list(range(size))) for size in (3, 2 * PARTITIONS + 5, 0, 1)]
    batches = list(batches_of(topics, "partitions"))

    assert len(batches) > 2
    assert all(sum(len(one.partitions) for one in batch) <= PARTITIONS for batch in batches)
    joined = join_topics((one.name, one.partitions) for batch in batches for one in batch)
    assert joined == [(one.name, one.partitions) for one in topics]
