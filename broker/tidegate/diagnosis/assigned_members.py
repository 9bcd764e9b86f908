"""The members of KIP-848, streams and share groups for diagnosis: what each has, should have and waits for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tidegate.diagnosis.snapshot_model import GroupSnapshot, MemberPhase, MemberSnapshot, Partitions, ShareSnapshot
from tidegate.groups.consumer import stored as consumer_stored
from tidegate.groups.consumer.model import Member, MemberState, Partition
from tidegate.groups.share import stored as share_stored
from tidegate.groups.share.records import InFlight
from tidegate.groups.share.sessions import SharePartition


def with_members(
    group: GroupSnapshot,
    head: Mapping[bytes, bytes],
    records: Mapping[bytes, bytes],
    targets: Mapping[bytes, bytes],
    sessions: Mapping[bytes, int],
    revocations: Mapping[bytes, int],
) -> GroupSnapshot:
    """A group with the members that the broker assigns partitions to."""
    found = _Names(head)
    target_epoch = int(head.get(b"target_epoch") or 0)
    read = _sharer if group.type == share_stored.TYPE else _consumer
    members = []
    for name, record in sorted(records.items()):
        target = found.by_name(_of_target(targets.get(name, b"{}")))
        member = read(group, found, name.decode(), record, target, target_epoch)
        ends_ms = sessions.get(name, group.now_ms)
        members.append(
            replace(
                member,
                session_ends_ms=ends_ms,
                last_contact_ms=min(ends_ms - member.session_timeout_ms, group.now_ms),
                revoke_by_ms=revocations.get(name) if member.phase in ("revoking", "away") else None,
            )
        )
    protocol = (head.get(b"assignor") or (b"simple" if group.type == share_stored.TYPE else b"")).decode()
    return replace(group, members=tuple(members), protocol=protocol, target_epoch=target_epoch)


class _Names:
    """The names of the group's topics by id."""

    def __init__(self, head: Mapping[bytes, bytes]) -> None:
        topics = json.loads(head.get(b"topics") or b"{}")
        self._names = {topic_id: name for name, (topic_id, _) in topics.items()}

    def by_name(self, partitions: Iterable[Partition]) -> Partitions:
        """Topic name -> partitions; a topic that is deleted keeps its id."""
        found: dict[str, list[int]] = {}
        for topic_id, index in sorted(partitions):
            found.setdefault(self._names.get(topic_id, topic_id), []).append(index)
        return {topic: tuple(indexes) for topic, indexes in sorted(found.items())}


def _of_target(target: bytes) -> set[Partition]:
    """What a member is to read; a target of tasks has it beside them."""
    found = json.loads(target)
    return {(topic_id, index) for topic_id, indexes in found.get("partitions", found).items() for index in indexes}


def _consumer(
    group: GroupSnapshot, names: _Names, member_id: str, record: bytes, target: Partitions, target_epoch: int
) -> MemberSnapshot:
    member = consumer_stored.load_member(member_id, record)
    return MemberSnapshot(
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host.removeprefix("/"),
        client_software=member.client_software,
        session_timeout_ms=consumer_stored.session_timeout_of(record),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        joined_ms=group.state_since_ms,
        last_contact_ms=None,
        session_ends_ms=0,
        phase=_phase(member, target_epoch),
        leads=False,
        topics=member.topics,
        owned=names.by_name(member.held),
        epoch=member.epoch,
        target=target,
        revoking=names.by_name(member.revoking),
    )


def _phase(member: Member, target_epoch: int) -> MemberPhase:
    if member.is_away:
        return "away"
    if member.state is MemberState.UNREVOKED:
        return "revoking"
    if member.state is MemberState.UNRELEASED:
        return "waiting"
    return "synced" if member.epoch == target_epoch else "behind"


def _sharer(
    group: GroupSnapshot, names: _Names, member_id: str, record: bytes, target: Partitions, target_epoch: int
) -> MemberSnapshot:
    member = share_stored.load_member(member_id, record)
    return MemberSnapshot(
        member_id=member_id,
        instance_id=None,
        client_id=member.client_id,
        client_host=member.client_host.removeprefix("/"),
        client_software=member.client_software,
        session_timeout_ms=consumer_stored.session_timeout_of(record),
        rebalance_timeout_ms=0,
        joined_ms=group.state_since_ms,
        last_contact_ms=None,
        session_ends_ms=0,
        phase="synced" if member.epoch == target_epoch else "behind",
        leads=False,
        topics=member.topics,
        owned=names.by_name(member.assigned),
        epoch=member.epoch,
        target=target,
    )


def shares_of(found: Mapping[SharePartition, str], read: Iterable[InFlight | None]) -> tuple[ShareSnapshot, ...]:
    """The share-partitions of a group, with the names of their topics, and what is in flight of each."""
    return tuple(
        ShareSnapshot(
            topic=topic,
            partition=partition.index,
            start=one.start,
            end=one.end,
            unfinished=one.unfinished_count,
            in_flight=dict(one.by_member),
            returned=one.returned_count,
            waiting=one.waiting_count,
            delivery_count=one.delivery_count,
            redelivered=one.redelivered_total,
            failed=one.failed_total,
            dead_lettered=one.dead_lettered_total,
            dropped=one.dropped_total,
            unlocks_ms=one.unlocks_ms,
        )
        for (partition, topic), one in zip(found.items(), read, strict=True)
        if one is not None
    )


def known(fields: Any) -> dict[str, str]:
    """A hash as text."""
    return {name.decode(): value.decode() for name, value in fields.items()}
