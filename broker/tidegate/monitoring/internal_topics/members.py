"""The records of `__consumer_offsets` that show KIP-848 groups, share groups and their members.

The keys of a group may be read between two of its changes: each record is true, as in a log that is read up to there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.groups.consumer import stored as consumer_stored
from tidegate.groups.consumer.model import Member, MemberState, Partitions
from tidegate.groups.consumer.stored import by_topic
from tidegate.groups.share import stored as share_stored
from tidegate.groups.share.model import ShareMember
from tidegate.groups.share.partitions import partitions_of
from tidegate.monitoring.internal_topics.publisher import Values
from tidegate.records import member_records
from tidegate.records.member_records import CONSUMER, SHARE, ClassicProtocols, Kinds, MemberClient, record_key
from tidegate.store.in_order import read_in_order
from tidegate.store.keys import GroupKeys
from tidegate.store.slices import Pauses
from tidegate.store.store import Store

_STATES: Final = {MemberState.STABLE: 0, MemberState.UNREVOKED: 1, MemberState.UNRELEASED: 2}
"""Codes of Kafka's `MemberState`."""
_PARTITIONS_AT_ONCE: Final = 2_000
"""Share-partitions that are put together without a pause: some ms."""


async def consumer_values(store: Store, keys: GroupKeys) -> Values:
    """A KIP-848 group. Raises StoreUnavailable."""
    head, records, targets = await _read(store, keys, consumer_stored.HEAD)
    group = consumer_stored.load_group(head, records, targets)
    values: Values = {
        record_key(CONSUMER.group, keys.group_id): member_records.epoch_value(group.epoch),
        **_targets(CONSUMER, keys.group_id, group.target_epoch, group.targets),
    }
    for member in group.members.values():
        names = keys.group_id, member.member_id
        revoking = by_topic(member.revoking)
        values[record_key(CONSUMER.member, *names)] = _consumer_member(member)
        values[record_key(CONSUMER.current, *names)] = member_records.current_value(
            member.epoch, member.previous_epoch, _STATES[member.state], by_topic(member.assigned), revoking
        )
    return values


async def share_values(store: Store, keys: GroupKeys) -> Values:
    """A share group and its share-partitions. Raises StoreUnavailable."""
    head, records, targets = await _read(store, keys, share_stored.HEAD)
    group = share_stored.load_group(head, records, targets)
    values: Values = {
        record_key(SHARE.group, keys.group_id): member_records.share_group_value(group.epoch),
        **_targets(SHARE, keys.group_id, group.target_epoch, group.targets),
    }
    for member in group.members.values():
        names = keys.group_id, member.member_id
        values[record_key(SHARE.member, *names)] = member_records.share_member_value(_client(member))
        values[record_key(SHARE.current, *names)] = member_records.current_value(
            member.epoch, member.previous_epoch, _STATES[MemberState.STABLE], by_topic(member.assigned), None
        )
    begun, pauses = dict[tuple[str, str], list[int]](), Pauses(_PARTITIONS_AT_ONCE)
    for partition, topic in (await partitions_of(store, keys)).items():
        begun.setdefault((partition.topic_id.hex, topic), []).append(partition.index)
        await pauses.after()
    if begun:
        key = record_key(member_records.SHARE_PARTITIONS, keys.group_id)
        values[key] = member_records.share_partitions_value(begun)
    return values


async def _read(
    store: Store, keys: GroupKeys, fields: Iterable[str]
) -> tuple[list[bytes | None], dict[bytes, bytes], dict[bytes, bytes]]:
    head, records, targets = await read_in_order(
        store, store.command, ("HMGET", keys.group, *fields), ("HGETALL", keys.consumers), ("HGETALL", keys.targets)
    )
    return head, records, targets


def _targets(kinds: Kinds, group_id: str, epoch: int, targets: Mapping[str, Partitions]) -> Values:
    return {
        record_key(kinds.target_epoch, group_id): member_records.epoch_value(epoch),
        **{
            record_key(kinds.target, group_id, member_id): member_records.target_value(by_topic(target))
            for member_id, target in targets.items()
        },
    }


def _client(member: Member | ShareMember) -> MemberClient:
    return MemberClient(member.rack_id, member.client_id, member.client_host, member.topics)


def _consumer_member(member: Member) -> bytes:
    classic = member.classic
    return member_records.consumer_member_value(
        _client(member),
        member.instance_id,
        member.regex,
        member.rebalance_timeout_ms,
        member.assignor,
        None if classic is None else ClassicProtocols(classic.session_timeout_ms, classic.protocols),
    )
