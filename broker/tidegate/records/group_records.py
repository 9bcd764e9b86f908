"""The records of `__consumer_offsets`: keys and values of committed offsets and of classic groups.

Values have version 3, without the topic id of version 4: every reader of the topic knows 3, and lag tools that decode
the bytes themselves know no later one. Source: OffsetCommitKey.json, OffsetCommitValue.json, GroupMetadataKey.json,
GroupMetadataValue.json of Kafka's group coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidegate.records.coordinator_types import data, int16, int32, int64, string

OFFSET_KEY: Final = 1
GROUP_KEY: Final = 2
"""Kinds of records: the int16 that a key begins with."""
VALUE_VERSION: Final = 3


class MemberValue(NamedTuple):
    """A member in a group's value; timeouts in ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset."""
    return int16(OFFSET_KEY) + string(group_id) + string(topic) + int32(partition)


def offset_value(offset: int, leader_epoch: int, metadata: str, committed_at_ms: int) -> bytes:
    """A committed offset."""
    return b"".join(
        (int16(VALUE_VERSION), int64(offset), int32(leader_epoch), string(metadata), int64(committed_at_ms))
    )


def group_key(group_id: str) -> bytes:
    """The key of a classic group."""
    return int16(GROUP_KEY) + string(group_id)


def group_value(
    protocol_type: str,
    generation: int,
    protocol: str | None,
    leader: str | None,
    state_since_ms: int,
    members: Sequence[MemberValue],
) -> bytes:
    """A classic group; without members the protocol and the leader are null."""
    head = (
        int16(VALUE_VERSION), string(protocol_type), int32(generation), string(protocol), string(leader),
        int64(state_since_ms), int32(len(members)),
    )  # fmt: skip
    return b"".join((*head, *map(_member, members)))


def _member(one: MemberValue) -> bytes:
    return b"".join(
        (
            string(one.member_id), string(one.instance_id), string(one.client_id), string(one.client_host),
            int32(one.rebalance_timeout_ms), int32(one.session_timeout_ms),
            data(one.subscription), data(one.assignment),
        )
    )  # fmt: skip
