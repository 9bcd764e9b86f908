"""Groups of all types as the group commands read them, in the shape of classic ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.cli.client.group_requests import Place, by_topic
from tidegate.cli.client.kafka_wire import Connection, request
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.consumer_blobs import write_assignment

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
STREAMS: Final = "streams"
ASSIGNED: Final = (CONSUMER, SHARE, STREAMS)
"""Types of groups whose members the brokers assign partitions to."""
_DESCRIBES: Final = {
    CONSUMER: ApiKey.CONSUMER_GROUP_DESCRIBE,
    SHARE: ApiKey.SHARE_GROUP_DESCRIBE,
    STREAMS: ApiKey.STREAMS_GROUP_DESCRIBE,
}


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """A member whose partitions the brokers assign, with the fields of one in DescribeGroups."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A KIP-848 group, share group or streams group, with the fields of one in DescribeGroups."""

    group_id: str
    group_state: str
    group_type: str
    members: Sequence[AssignedMember]
    protocol_type: str = "consumer"
    protocol_data: str = ""


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """Where a share-partition begins, and the records from there on that are not finished; None if not known."""

    start: int
    lag: int | None


def type_of(described: Any) -> str:
    """The type of a described group."""
    return getattr(described, "group_type", CLASSIC)


async def describe_assigned(connection: Connection, kind: str, group_ids: Iterable[str]) -> dict[str, DescribedGroup]:
    """Groups of one of the types `ASSIGNED`, by id. Raises CommandFailed."""
    asked = {"group_ids": tuple(group_ids), "include_authorized_operations": False}
    answer = await connection.ask(_DESCRIBES[kind], **asked)
    return {group.group_id: _described(group, kind) for group in answer.groups}


def _described(group: Any, kind: str) -> DescribedGroup:
    members = [
        AssignedMember(
            one.member_id,
            getattr(one, "instance_id", None),
            one.client_id,
            one.client_host,
            write_assignment(_partitions_of(group, one, kind)),
        )
        for one in group.members
    ]
    return DescribedGroup(group.group_id, group.group_state or "Dead", kind, members)


def _partitions_of(group: Any, member: Any, kind: str) -> dict[str, list[int]]:
    """The partitions that a member has, by topic; an active task reads its index of each source of its subtopology."""
    if kind != STREAMS:
        return {topic.topic_name: list(topic.partitions) for topic in member.assignment.topic_partitions}
    sources = {
        one.subtopology_id: (*one.source_topics, *(topic.name for topic in one.repartition_source_topics))
        for one in (() if group.topology is None else group.topology.subtopologies)
    }
    return {
        topic: list(task.partitions)
        for task in member.assignment.active_tasks
        for topic in sources.get(task.subtopology_id, ())
    }


def fetch_share_offsets(group_ids: Iterable[str]) -> dict[str, Any]:
    """DescribeShareGroupOffsets of all share-partitions of groups."""
    part = request(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS).DescribeShareGroupOffsetsRequestGroup
    return {"groups": tuple(part(group_id=group_id, topics=None) for group_id in group_ids)}


def share_offsets_of(group: Any) -> dict[Place, ShareOffset]:
    """The initialised share-partitions of a group in the answer."""
    return {
        (topic.topic_name, one.partition_index): ShareOffset(one.start_offset, None if one.lag < 0 else one.lag)
        for topic in group.topics
        for one in topic.partitions
        if one.start_offset >= 0
    }


def alter_share_offsets(group_id: str, offsets: Mapping[Place, int]) -> dict[str, Any]:
    """AlterShareGroupOffsets of a group without members."""
    module = request(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
    part, partition = module.AlterShareGroupOffsetsRequestTopic, module.AlterShareGroupOffsetsRequestPartition
    topics = tuple(
        part(
            topic_name=name,
            partitions=tuple(
                partition(partition_index=index, start_offset=offset) for index, offset in partitions.items()
            ),
        )
        for name, partitions in by_topic(offsets).items()
    )
    return {"group_id": group_id, "topics": topics}


def delete_share_offsets(group_id: str, topics: Iterable[str]) -> dict[str, Any]:
    """DeleteShareGroupOffsets of whole topics."""
    part = request(ApiKey.DELETE_SHARE_GROUP_OFFSETS).DeleteShareGroupOffsetsRequestTopic
    return {"group_id": group_id, "topics": tuple(part(topic_name=name) for name in sorted(topics))}
