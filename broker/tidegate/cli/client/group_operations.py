"""Operations on groups of any type over the Kafka protocol; all raise CommandFailed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client import group_requests
from tidegate.cli.client.described_groups import (
    ASSIGNED,
    CLASSIC,
    SHARE,
    ShareOffset,
    alter_share_offsets,
    delete_share_offsets,
    describe_assigned,
    fetch_share_offsets,
    share_offsets_of,
)
from tidegate.cli.client.group_requests import Commit, Identities, Place
from tidegate.cli.client.kafka_client import KafkaClient, raise_for
from tidegate.cli.client.kafka_wire import Connection
from tidegate.protocol.api_keys import ApiKey

_GROUPS_PER_REQUEST: Final = 200


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """A group from ListGroups, and its description and offsets by the APIs of its type."""

    listed: Any
    described: Any
    committed: Mapping[Place, int]
    shares: Mapping[Place, ShareOffset] = field(default_factory=dict)
    """Of a share group."""


async def all_groups(kafka: KafkaClient) -> list[ObservedGroup]:
    """Every group, in order of id. Each broker lists the groups that it coordinates, and describes them at once.

    Groups of `kafka.silent` brokers may be missing. Raises CommandFailed if no broker answered.
    """
    found = await kafka.ask_every_broker(_groups_at)
    by_id = {observed.listed.group_id: observed for of_broker in found for observed in of_broker}
    return [by_id[group_id] for group_id in sorted(by_id)]


async def _groups_at(connection: Connection) -> list[ObservedGroup]:
    answer = await connection.ask(ApiKey.LIST_GROUPS, states_filter=(), types_filter=())
    raise_for(answer.error_code, f"ListGroups at {connection.address}")
    found = []
    by_type: dict[str, list[Any]] = {}
    for group in answer.groups:
        by_type.setdefault(group.group_type if group.group_type in ASSIGNED else CLASSIC, []).append(group)
    for kind, groups in by_type.items():
        for first in range(0, len(groups), _GROUPS_PER_REQUEST):
            found += await _observe(connection, kind, groups[first : first + _GROUPS_PER_REQUEST])
    return found


async def _observe(connection: Connection, kind: str, listed: Sequence[Any]) -> list[ObservedGroup]:
    """Groups of one type at their coordinator, at once."""
    group_ids = tuple(group.group_id for group in listed)
    if kind == SHARE:
        described = await describe_assigned(connection, kind, group_ids)
        answer = await connection.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, **fetch_share_offsets(group_ids))
        shares = {group.group_id: share_offsets_of(group) for group in answer.groups}
        return [ObservedGroup(one, described[one.group_id], {}, shares[one.group_id]) for one in listed]
    committed = await connection.ask(ApiKey.OFFSET_FETCH, **group_requests.fetch_offsets(group_ids))
    offsets = {group.group_id: group_requests.committed_of(group) for group in committed.groups}
    members: Mapping[str, Any]
    if kind in ASSIGNED:
        members = await describe_assigned(connection, kind, group_ids)
    else:
        asked = {"groups": group_ids, "include_authorized_operations": False}
        found = await connection.ask(ApiKey.DESCRIBE_GROUPS, **asked)
        members = {group.group_id: group for group in found.groups}
    return [ObservedGroup(one, members[one.group_id], offsets[one.group_id]) for one in listed]


async def describe(kafka: KafkaClient, group_id: str) -> Any:
    """A group of any type, with the fields of DescribeGroups; state `Dead` if it does not exist."""
    values = {"groups": (group_id,), "include_authorized_operations": False}
    answer = await kafka.ask_coordinator(group_id, ApiKey.DESCRIBE_GROUPS, values, group_requests.codes_of_groups)
    (group,) = answer.groups
    raise_for(group.error_code, f"group {group_id}")
    if group.group_state != "Dead":
        return group
    connection = await kafka.coordinator(group_id)
    listed = await connection.ask(ApiKey.LIST_GROUPS, states_filter=(), types_filter=ASSIGNED)
    kind = next((one.group_type for one in listed.groups if one.group_id == group_id), None)
    if kind is None:
        return group
    return (await describe_assigned(connection, kind, [group_id]))[group_id]


async def share_offsets(kafka: KafkaClient, group_id: str) -> dict[Place, ShareOffset]:
    """The share-partitions of a share group."""
    answer = await kafka.ask_coordinator(
        group_id,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        fetch_share_offsets([group_id]),
        group_requests.codes_of_groups,
    )
    raise_for(answer.groups[0].error_code, f"group {group_id}")
    return share_offsets_of(answer.groups[0])


async def move_share_offsets(
    kafka: KafkaClient, group_id: str, offsets: Mapping[Place, int], forgotten: Iterable[str]
) -> dict[Place, ErrorCode]:
    """Set start offsets of a share group without members, and delete those of topics; the code of each change."""
    codes: dict[Place, ErrorCode] = {}
    if offsets:
        asked = alter_share_offsets(group_id, offsets)
        answer = await kafka.ask_coordinator(
            group_id, ApiKey.ALTER_SHARE_GROUP_OFFSETS, asked, group_requests.code_of_all
        )
        raise_for(answer.error_code, f"group {group_id}")
        codes |= {
            (one.topic_name, at.partition_index): at.error_code for one in answer.responses for at in one.partitions
        }
    if topics := sorted(set(forgotten)):
        asked = delete_share_offsets(group_id, topics)
        answer = await kafka.ask_coordinator(
            group_id, ApiKey.DELETE_SHARE_GROUP_OFFSETS, asked, group_requests.code_of_all
        )
        raise_for(answer.error_code, f"group {group_id}")
        codes |= {(one.topic_name, -1): one.error_code for one in answer.responses}
    return codes


async def leave(kafka: KafkaClient, group_id: str, members: Identities, reason: str) -> list[Any]:
    """LeaveGroup of members in one batch; each with its own error code."""
    values = group_requests.leave(group_id, members, reason)
    answer = await kafka.ask_coordinator(group_id, ApiKey.LEAVE_GROUP, values, group_requests.code_of_all)
    raise_for(answer.error_code, f"group {group_id}")
    return list(answer.members)


async def delete(kafka: KafkaClient, group_id: str) -> None:
    """DeleteGroups of one group."""
    answer = await kafka.ask_coordinator(
        group_id, ApiKey.DELETE_GROUPS, {"groups_names": (group_id,)}, lambda got: [got.results[0].error_code]
    )
    raise_for(answer.results[0].error_code, f"group {group_id}")


async def committed(kafka: KafkaClient, group_id: str) -> dict[Place, int]:
    """OffsetFetch of all committed offsets of a group."""
    answer = await kafka.ask_coordinator(
        group_id, ApiKey.OFFSET_FETCH, group_requests.fetch_offsets((group_id,)), group_requests.codes_of_groups
    )
    (group,) = answer.groups
    raise_for(group.error_code, f"group {group_id}")
    return group_requests.committed_of(group)


async def commit(kafka: KafkaClient, group_id: str, offsets: Mapping[Place, Commit]) -> dict[Place, ErrorCode]:
    """OffsetCommit without a generation, accepted while the group is empty; error codes by partition."""
    values = group_requests.commit(group_id, offsets)
    return group_requests.codes_of_partitions(
        await kafka.ask_coordinator(
            group_id,
            ApiKey.OFFSET_COMMIT,
            values,
            lambda answer: group_requests.codes_of_partitions(answer).values(),
        )
    )


async def delete_offsets(kafka: KafkaClient, group_id: str, places: Iterable[Place]) -> dict[Place, ErrorCode]:
    """OffsetDelete (KIP-496); error codes by partition."""
    values = group_requests.delete_offsets(group_id, places)
    answer = await kafka.ask_coordinator(group_id, ApiKey.OFFSET_DELETE, values, group_requests.code_of_all)
    raise_for(answer.error_code, f"group {group_id}")
    return group_requests.codes_of_partitions(answer)
