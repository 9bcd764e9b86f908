"""Builds the requests of the group commands and reads their responses, as kio's field values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from tidegate.cli.client.kafka_wire import request
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.consumer_blobs import write_subscription

_ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
_GUARD: Final = timedelta(seconds=10)

Place = tuple[str, int]
"""Topic and partition."""

Commit = tuple[int, str]
"""Offset and metadata."""

Identities = Sequence[tuple[str, str | None]]
"""(member id, instance id) of members; member id "" selects the current member of the instance."""

Value = TypeVar("Value")


def fetch_offsets(group_ids: Sequence[str]) -> dict[str, Any]:
    part = request(ApiKey.OFFSET_FETCH).OffsetFetchRequestGroup
    return {"groups": tuple(part(group_id=group_id, topics=None) for group_id in group_ids), "require_stable": False}


def committed_of(group: Any) -> dict[Place, int]:
    return {
        (topic.name, one.partition_index): one.committed_offset
        for topic in group.topics
        for one in topic.partitions
        if one.error_code is ErrorCode.none and one.committed_offset >= 0
    }


def leave(group_id: str, members: Identities, reason: str) -> dict[str, Any]:
    part = request(ApiKey.LEAVE_GROUP).MemberIdentity
    identities = tuple(
        part(member_id=member_id, group_instance_id=instance_id, reason=reason) for member_id, instance_id in members
    )
    return {"group_id": group_id, "members": identities}


def commit(
    group_id: str, offsets: Mapping[Place, Commit], generation_id: int = -1, member_id: str = ""
) -> dict[str, Any]:
    """An OffsetCommit of a member, or without a generation, which is accepted while the group is empty."""
    module = request(ApiKey.OFFSET_COMMIT)
    part, partition = module.OffsetCommitRequestTopic, module.OffsetCommitRequestPartition
    topics = tuple(
        part(
            name=name,
            partitions=tuple(
                partition(
                    partition_index=index,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=metadata,
                )
                for index, (offset, metadata) in partitions.items()
            ),
        )
        for name, partitions in by_topic(offsets).items()
    )
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": generation_id,
        "member_id": member_id,
        "group_instance_id": None,
        "topics": topics,
    }


def delete_offsets(group_id: str, places: Iterable[Place]) -> dict[str, Any]:
    module = request(ApiKey.OFFSET_DELETE)
    topics = tuple(
        module.OffsetDeleteRequestTopic(
            name=name,
            partitions=tuple(module.OffsetDeleteRequestPartition(partition_index=index) for index in partitions),
        )
        for name, partitions in by_topic(dict.fromkeys(places)).items()
    )
    return {"group_id": group_id, "topics": topics}


def join(group: Any, member_id: str = "") -> dict[str, Any]:
    """A JoinGroup without topics, with the group's current protocol, or the consumers' default."""
    offered = (group.protocol_data,) if group.protocol_data else _ASSIGNORS
    protocol = request(ApiKey.JOIN_GROUP).JoinGroupRequestProtocol
    return {
        "group_id": group.group_id,
        "session_timeout": _GUARD,
        "rebalance_timeout": _GUARD,
        "member_id": member_id,
        "protocol_type": group.protocol_type or "consumer",
        "protocols": tuple(protocol(name=name, metadata=write_subscription([])) for name in offered),
    }


def code_of_all(answer: Any) -> list[ErrorCode]:
    return [answer.error_code]


def codes_of_groups(answer: Any) -> list[ErrorCode]:
    return [group.error_code for group in answer.groups]


def codes_of_partitions(answer: Any) -> dict[Place, ErrorCode]:
    return {(topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions}


def by_topic(places: Mapping[Place, Value]) -> dict[str, dict[int, Value]]:
    """Topic -> partition -> value, in order."""
    found: dict[str, dict[int, Value]] = defaultdict(dict)
    for (topic, partition), value in sorted(places.items(), key=lambda item: item[0]):
        found[topic][partition] = value
    return found
