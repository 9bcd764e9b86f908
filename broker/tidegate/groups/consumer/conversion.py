"""Online change of a group's protocol: a classic group becomes a consumer group with its members, and back.

A member of KIP-848 that joins a classic group converts it: the last assignment of the classic members is what they own.
When the last such member is gone, the group becomes a classic one again, and its members rejoin.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from tidegate.groups.consumer.decisions import preferred_assignor
from tidegate.groups.consumer.errors import OtherGroupType
from tidegate.groups.consumer.model import (
    ClassicMember,
    ConsumerGroup,
    GroupEvent,
    Member,
    Partition,
)
from tidegate.groups.consumer.topics import Topics
from tidegate.groups.model import pack_protocols, unpack_protocols
from tidegate.store.link import Arg

CLASSIC_HEAD: Final = ("id", "version", "write_id", "type", "state", "generation", "protocol_type", "protocol")
_CONSUMER: Final = b"consumer"


class MigrationPolicy(enum.StrEnum):
    """Which online changes of the protocol are allowed; a group without members always changes."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group with members may become a consumer group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group with only classic members becomes a classic group."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class Subscription(NamedTuple):
    """A consumer's metadata in JoinGroup: topics, partitions that it owns by topic, and its rack."""

    topics: frozenset[str]
    owned: Mapping[str, Sequence[int]]
    rack_id: str | None


class Assignment(NamedTuple):
    """A consumer's assignment in SyncGroup: partitions by topic, and whether a custom assignor added data."""

    partitions: Mapping[str, Sequence[int]]
    has_user_data: bool


class MetadataCodec(Protocol):
    """The bytes that consumers exchange through a classic group."""

    def read_subscription(
        self, metadata: bytes, /
    ) -> tuple[frozenset[str], Mapping[str, Sequence[int]], str | None] | None:
        """Topics, owned partitions, rack; None if it is malformed."""

    def read_assignment(self, assignment: bytes, /) -> tuple[Mapping[str, Sequence[int]], bool] | None:
        """Partitions by topic, and whether there are user data; None if it is malformed."""

    def write_assignment(self, assigned: Mapping[str, Sequence[int]], /) -> bytes:
        """The bytes of an assignment."""


def from_classic(
    head: Sequence[bytes | None],
    records: Mapping[bytes, bytes],
    subscriptions: Mapping[bytes, bytes],
    assignments: Mapping[bytes, bytes],
    topics: Topics,
    blobs: MetadataCodec,
) -> ConsumerGroup:
    """The consumer group that a classic group's members are in when it is converted. Raises OtherGroupType."""
    own_id, version, write_id, _, _, generation, protocol_type, protocol = head
    if protocol_type != _CONSUMER:
        raise OtherGroupType("the members of the classic group are not consumers")
    group = ConsumerGroup(
        own_id=(own_id or b"").decode(),
        version=int(version or 0),
        write_id=(write_id or b"").decode(),
        epoch=int(generation or 0),
        target_epoch=int(generation or 0),
        topics_version=topics.version,
        is_stored=True,
        is_consumer=True,
        was_classic=True,
    )
    names: set[str] = set()
    for raw_id, record in records.items():
        member_id = raw_id.decode()
        packed = subscriptions.get(raw_id, b"")
        member = _member(member_id, json.loads(record), packed, (protocol or b"").decode(), group.epoch, blobs)
        assigned = _assigned(assignments.get(raw_id, b""), topics, blobs)
        if any(group.owners.get(partition, member_id) != member_id for partition in assigned):
            raise OtherGroupType("the classic group has a partition with two owners")
        group.put(_with(member, assigned, group.epoch))
        group.targets[member_id] = frozenset(assigned)
        names |= member.topics
    group.topics = {name: topic for name in names if (topic := topics.find(name)) is not None}
    group.assignor = preferred_assignor(group.members.values())
    return group


def _member(
    member_id: str, record: Mapping[str, object], packed: bytes, protocol: str, epoch: int, blobs: MetadataCodec
) -> Member:
    protocols = unpack_protocols(packed)
    metadata = dict(reversed(protocols)).get(protocol, protocols[0][1] if protocols else b"")
    read = blobs.read_subscription(metadata)
    if read is None:
        raise OtherGroupType(f"the subscription of the member {member_id!r} is malformed")
    subscription = Subscription(*read)
    return Member(
        member_id,
        str(record["instance_id"]) or None,
        subscription.rack_id,
        str(record["client_id"]),
        str(record["client_host"]),
        str(record.get("client_software", "")),
        epoch,
        epoch,
        rebalance_timeout_ms=int(str(record["rebalance_timeout_ms"])),
        topics=subscription.topics,
        classic=ClassicMember(int(str(record["session_timeout_ms"])), protocols),
    )


def _with(member: Member, assigned: set[Partition], epoch: int) -> Member:
    return replace(member, assigned=dict.fromkeys(assigned, epoch))


def _assigned(raw: bytes, topics: Topics, blobs: MetadataCodec) -> set[Partition]:
    read = blobs.read_assignment(raw)
    if read is None:
        raise OtherGroupType("an assignment of the classic group is malformed")
    assignment = Assignment(*read)
    if assignment.has_user_data:
        raise OtherGroupType("the classic group uses a custom assignor, whose user data would be lost")
    found: set[Partition] = set()
    for name, indexes in assignment.partitions.items():
        topic = topics.find(name)
        if topic is not None:
            found.update((topic[0], index) for index in indexes if 0 <= index < topic[1])
    return found


def by_name(partitions: Iterable[Partition], topics: Topics) -> dict[str, list[int]]:
    """Partitions by topic name; those of deleted topics are left out."""
    found: dict[str, list[int]] = {}
    for topic_id, index in sorted(partitions):
        name = topics.name_of(topic_id)
        if name is not None:
            found.setdefault(name, []).append(index)
    return found


def begin(group: ConsumerGroup) -> None:
    """Mark everything of a working copy as changed that the conversion of a classic group has to write."""
    group.dirty = set(group.members)
    group.dirty_targets = set(group.targets)
    group.renewed = set(group.members)
    group.is_changed = True
    group.events.append(GroupEvent("converted", cause="consumer_joined", detail="consumer"))


def must_downgrade(group: ConsumerGroup, policy: MigrationPolicy) -> bool:
    """Whether a decision left a consumer group with classic members only."""
    return bool(group.members) and policy.downgrades and group.is_all_classic


def downgrade_args(base: ConsumerGroup, group: ConsumerGroup, topics: Topics, blobs: MetadataCodec) -> list[Arg]:
    """The arguments of `groups/downgrade_group` behind the identity of the group that was decided on.

    The generation is the group epoch before the last consumer left: the members' own, unless they have to catch up. A
    member that has to may name its epoch until it rejoins, so it can commit what it read (`lib/is_converted_epoch`).
    """
    generation = max(base.epoch, *(member.epoch for member in group.members.values()))
    args: list[Arg] = [generation, int(group.state == "Stable"), len(group.events)]
    for event in group.events:
        args += event.values
    for member_id, member in sorted(group.members.items()):
        assert member.classic is not None
        assigned = by_name(member.assigned, topics)
        args += (member_id, member.instance_id or "", member.client_id, member.client_host, member.client_software)
        args += (member.classic.session_timeout_ms, member.rebalance_timeout_ms)
        args += (pack_protocols(member.classic.protocols), blobs.write_assignment(assigned), member.epoch)
    return args
