"""The stored form of a share group: readable JSON. `groups/extend_sessions_after_outage` reads the head of a record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from tidegate.groups.consumer.stored import by_topic, load_partitions, to_json
from tidegate.groups.share.model import ShareGroup, ShareMember

HEAD: Final = ("id", "version", "write_id", "type", "generation", "target_epoch", "topics", "topics_version")
TYPE: Final = "share"


def dump_member(member: ShareMember, session_timeout_ms: int) -> str:
    """A member's record."""
    values = {
        "session_timeout_ms": session_timeout_ms,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "client_software": member.client_software,
        "topics": sorted(member.topics),
        "assigned": by_topic(member.assigned),
    }
    return to_json(values)


def load_member(member_id: str, record: bytes) -> ShareMember:
    """Parse a member's record."""
    values = json.loads(record)
    return ShareMember(
        member_id,
        values["rack_id"],
        values["client_id"],
        values["client_host"],
        values["client_software"],
        values["epoch"],
        values["previous_epoch"],
        frozenset(values["topics"]),
        load_partitions(values["assigned"]),
    )


def dump_fields(group: ShareGroup) -> dict[str, str]:
    """The fields of the group's hash that a decision can change; the script adds those of the state's history."""
    return {
        "type": TYPE,
        "state": group.state,
        "generation": str(group.epoch),
        "target_epoch": str(group.target_epoch),
        "topics": to_json({name: group.topics[name] for name in sorted(group.topics)}),
        "topics_version": str(group.topics_version),
        "held_bytes": str(group.held_bytes),
        "protocol_type": TYPE,
        "protocol": "",
        "leader": "",
    }


def load_group(head: list[bytes | None], records: Mapping[bytes, bytes], targets: Mapping[bytes, bytes]) -> ShareGroup:
    """A group from what was read; one that is not stored if there is none."""
    own_id, version, write_id, _, generation, target_epoch, topics, topics_version = head
    if own_id is None:
        return ShareGroup()
    group = ShareGroup(
        own_id=own_id.decode(),
        version=int(version or 0),
        write_id=(write_id or b"").decode(),
        epoch=int(generation or 0),
        target_epoch=int(target_epoch or 0),
        topics={name: (topic_id, count) for name, (topic_id, count) in json.loads(topics or b"{}").items()},
        topics_version=int(topics_version or -1),
        is_stored=True,
    )
    for name, record in records.items():
        group.put(load_member(name.decode(), record))
    group.targets = {name.decode(): load_partitions(json.loads(target)) for name, target in targets.items()}
    group.dirty.clear()
    group.is_changed = False
    return group
