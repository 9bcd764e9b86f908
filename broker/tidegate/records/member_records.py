"""The records of `__consumer_offsets` that show groups of KIP-848 and share groups of KIP-932, and their members.

Source: ConsumerGroup*Key.json, ConsumerGroup*Value.json, ShareGroup*Key.json, ShareGroup*Value.json of Kafka's group
coordinator. Every value has version 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from tidegate.records.coordinator_types import (
    NO_TAGS,
    compact_array,
    compact_bytes,
    compact_string,
    int8,
    int16,
    int32,
    int64,
    string,
    tags,
)

Assignment = Mapping[str, Sequence[int]]
"""Topic id in hex -> indexes of partitions."""

_VERSION: Final = int16(0)
_CLASSIC_MEMBER: Final = 0
"""Tag of the protocols of a member that joined by JoinGroup."""
_UNKNOWN_HASH: Final = int64(0)


class Kinds(NamedTuple):
    """Kinds of records: the int16 that a key begins with."""

    group: int
    member: int
    target_epoch: int
    target: int
    current: int


CONSUMER: Final = Kinds(group=3, member=5, target_epoch=6, target=7, current=8)
SHARE: Final = Kinds(group=11, member=10, target_epoch=12, target=13, current=14)
SHARE_PARTITIONS: Final = 15


class MemberClient(NamedTuple):
    """Who a member is."""

    rack_id: str | None
    client_id: str
    client_host: str
    topics: Collection[str]


class ClassicProtocols(NamedTuple):
    """What a member has that joined a KIP-848 group by JoinGroup: names and metadata."""

    session_timeout_ms: int
    protocols: Sequence[tuple[str, bytes]]


def record_key(kind: int, *names: str) -> bytes:
    """A key: the group, and for some kinds the member."""
    return int16(kind) + b"".join(map(string, names))


def epoch_value(epoch: int) -> bytes:
    """The epoch of a KIP-848 group, or of a target assignment."""
    return _VERSION + int32(epoch) + NO_TAGS


def share_group_value(epoch: int) -> bytes:
    """The epoch of a share group, without the hash of its topics."""
    return _VERSION + int32(epoch) + _UNKNOWN_HASH + NO_TAGS


def consumer_member_value(
    client: MemberClient,
    instance_id: str | None,
    regex: str,
    rebalance_timeout_ms: int,
    assignor: str | None,
    classic: ClassicProtocols | None,
) -> bytes:
    """A member of a KIP-848 group."""
    tagged = [] if classic is None else [(_CLASSIC_MEMBER, _classic_member(classic))]
    return b"".join(
        (
            _VERSION, compact_string(instance_id), _client(client), compact_string(regex),
            int32(rebalance_timeout_ms), compact_string(assignor), tags(tagged),
        )
    )  # fmt: skip


def share_member_value(client: MemberClient) -> bytes:
    """A member of a share group."""
    return _VERSION + _client(client) + NO_TAGS


def target_value(target: Assignment) -> bytes:
    """The target assignment of a member."""
    return _VERSION + _assignment(target) + NO_TAGS


def current_value(
    epoch: int, previous_epoch: int, state: int, assigned: Assignment, revoking: Assignment | None
) -> bytes:
    """The current assignment of a member; `revoking` is None in a share group."""
    owned = _assignment(assigned) + (b"" if revoking is None else _assignment(revoking))
    return _VERSION + int32(epoch) + int32(previous_epoch) + int8(state) + owned + NO_TAGS


def share_partitions_value(topics: Mapping[tuple[str, str], Sequence[int]]) -> bytes:
    """The share-partitions of a group: (topic id in hex, name) -> indexes. None is being initialized or deleted."""
    begun = [UUID(hex=topic_id).bytes + compact_string(name) + _indexes(topics[topic_id, name]) + NO_TAGS
             for topic_id, name in topics]  # fmt: skip
    none = compact_array(())
    return _VERSION + none + compact_array(begun) + none + NO_TAGS


def _client(client: MemberClient) -> bytes:
    topics = compact_array([compact_string(name) for name in sorted(client.topics)])
    return b"".join((*map(compact_string, (client.rack_id, client.client_id, client.client_host)), topics))


def _classic_member(classic: ClassicProtocols) -> bytes:
    """A nullable struct: it begins with 1 for present."""
    offered = [compact_string(name) + compact_bytes(metadata) + NO_TAGS for name, metadata in classic.protocols]
    return int8(1) + int32(classic.session_timeout_ms) + compact_array(offered) + NO_TAGS


def _assignment(assignment: Assignment) -> bytes:
    return compact_array([UUID(hex=topic).bytes + _indexes(assignment[topic]) + NO_TAGS for topic in assignment])


def _indexes(indexes: Sequence[int]) -> bytes:
    return compact_array([int32(index) for index in indexes])
