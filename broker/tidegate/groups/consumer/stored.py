"""The stored form of a consumer group: readable JSON, whose hot numbers come first in a fixed order.

`groups/consumer_heartbeat` reads the head of a member's record by a Lua pattern, and compares its instance id as text.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from typing import Any, Final

from tidegate.groups.consumer.model import (
    ClassicMember,
    ConsumerGroup,
    EpochMember,
    Member,
    MemberState,
    Partition,
    Partitions,
)
from tidegate.groups.model import pack_protocols, unpack_protocols

HEAD: Final = (
    "id",
    "version",
    "write_id",
    "type",
    "state",
    "generation",
    "target_epoch",
    "assignor",
    "topics",
    "topics_version",
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "assignment_interval_ms",
    "rollout_grace_ms",
)
TYPE: Final = "consumer"
_EMPTY: Final = b"Empty"
EPOCH_TYPES: Final = (TYPE, "streams")
"""Types of groups whose members' records have the fields of this module."""
_NOT_CONVERTED: Final = (b"share", b"streams")
SUBSCRIBED_MAX: Final = 50_000
"""Topics that the members subscribe to: more count as unknown, as in a classic group. They need not exist."""
SUBSCRIBED_LENGTH_MAX: Final = 4 << 20
"""Characters of their names together."""


def to_json(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def instance_text(instance_id: str | None) -> str:
    """A member's instance id as its record has it."""
    return f'"instance_id":{encode_basestring(instance_id or "")},'


def dump_member(member: Member, session_timeout_ms: int) -> str:
    """A member's record; `session_timeout_ms` is that of members that cannot choose it."""
    others: dict[str, Any] = {
        "assignor": member.assignor,
        "topics": sorted(member.topics),
        "regex": member.regex,
        "assigned": epochs_by_topic(member.assigned),
        "revoking": by_topic(member.revoking),
    }
    if member.regex:
        others["principal"] = member.principal
    if member.classic is not None:
        session_timeout_ms = member.classic.session_timeout_ms
        others["classic"] = {"protocols": b64encode(pack_protocols(member.classic.protocols)).decode()}
    return dump_record(member, session_timeout_ms, others)


def dump_record(member: EpochMember, session_timeout_ms: int, others: Mapping[str, Any]) -> str:
    """The record of a member whose type adds `others`."""
    values = {
        "previous_epoch": member.previous_epoch,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "client_software": member.client_software,
        **others,
    }
    return (
        f'{{"session_timeout_ms":{session_timeout_ms},"epoch":{member.epoch},"state":"{member.state}",'
        f"{instance_text(member.instance_id)}{to_json(values)[1:]}"
    )


def epochs_by_topic(epochs: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Topic id -> index -> epoch, in order."""
    found: dict[str, dict[str, int]] = {}
    for topic_id, index in sorted(epochs):
        found.setdefault(topic_id, {})[str(index)] = epochs[topic_id, index]
    return found


def load_epochs(found: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    """What `epochs_by_topic` wrote."""
    return {(topic_id, int(index)): epoch for topic_id, epochs in found.items() for index, epoch in epochs.items()}


def load_member(member_id: str, record: bytes) -> Member:
    """Parse a member's record."""
    values = json.loads(record)
    return Member(
        member_id,
        values["instance_id"] or None,
        values["rack_id"],
        values["client_id"],
        values["client_host"],
        values["client_software"],
        values["epoch"],
        values["previous_epoch"],
        MemberState(values["state"]),
        values["rebalance_timeout_ms"],
        load_epochs(values["assigned"]),
        load_partitions(values["revoking"]),
        values["assignor"],
        frozenset(values["topics"]),
        values["regex"],
        _classic(values),
        values.get("principal", ""),
    )


def _classic(values: Mapping[str, Any]) -> ClassicMember | None:
    if "classic" not in values:
        return None
    protocols = unpack_protocols(b64decode(values["classic"]["protocols"]))
    return ClassicMember(values["session_timeout_ms"], protocols)


def session_timeout_of(record: bytes) -> int:
    """The session timeout in a member's record, ms."""
    timeout_ms: int = json.loads(record)["session_timeout_ms"]
    return timeout_ms


def dump_target(target: Partitions) -> str:
    """A member's target: topic id -> indexes of partitions."""
    return to_json(by_topic(target))


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Topic id -> indexes, both in order."""
    found: dict[str, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return found


def load_partitions(found: Mapping[str, Iterable[int]]) -> Partitions:
    """What `by_topic` wrote."""
    return frozenset((topic_id, index) for topic_id, indexes in found.items() for index in indexes)


def dump_fields(group: ConsumerGroup) -> dict[str, str]:
    """The fields of the group's hash that a decision can change; the script adds those of the state's history."""
    return {
        "type": TYPE,
        "state": group.state,
        "generation": str(group.epoch),
        "target_epoch": str(group.target_epoch),
        "assignor": group.assignor,
        "topics": to_json({name: group.topics[name] for name in sorted(group.topics)}),
        "topics_version": str(group.topics_version),
        "session_timeout_ms": str(group.session_timeout_ms),
        "heartbeat_interval_ms": str(group.heartbeat_interval_ms),
        "assignment_interval_ms": str(group.assignment_interval_ms),
        "rollout_grace_ms": str(group.rollout_grace_ms),
        "held_bytes": str(group.held_bytes),
        "protocol_type": TYPE,
        "protocol": "",
        "leader": "",
        **_subscribed(group),
    }


def _subscribed(group: ConsumerGroup) -> dict[str, str]:
    """The topics whose offsets are protected; if there are too many, with an epoch of no group: all are protected."""
    names = {*group.topics}
    for member in group.members.values():
        if len(names) > SUBSCRIBED_MAX:
            break
        names |= member.topics
    if len(names) > SUBSCRIBED_MAX or sum(map(len, names)) > SUBSCRIBED_LENGTH_MAX:
        return {"subscribed": "[]", "subscribed_generation": "-1"}
    return {"subscribed": to_json(sorted(names)), "subscribed_generation": str(group.epoch)}


def is_other_type(head: list[bytes | None]) -> bool:
    """Whether the head is that of another type's group with members, or of one that never becomes a consumer group."""
    return head[0] is not None and head[3] != TYPE.encode() and (head[4] != _EMPTY or head[3] in _NOT_CONVERTED)


def load_group(
    head: list[bytes | None], records: Mapping[bytes, bytes], targets: Mapping[bytes, bytes]
) -> ConsumerGroup:
    """A group from what was read; an empty classic group becomes a consumer group with the same epoch."""
    (
        own_id,
        version,
        write_id,
        kind,
        _,
        generation,
        target_epoch,
        assignor,
        topics,
        topics_version,
        session,
        interval,
        assignment_interval,
        rollout_grace,
    ) = head
    if own_id is None:
        return ConsumerGroup(is_lost=bool(records))
    group = ConsumerGroup(
        own_id=own_id.decode(),
        version=int(version or 0),
        write_id=(write_id or b"").decode(),
        epoch=int(generation or 0),
        target_epoch=int(generation or 0),
        session_timeout_ms=int(session or 0),
        heartbeat_interval_ms=int(interval or 0),
        assignment_interval_ms=int(assignment_interval or 0),
        rollout_grace_ms=int(rollout_grace or 0),
        is_stored=True,
    )
    if kind != TYPE.encode():
        return group
    group.is_consumer = True
    group.target_epoch = int(target_epoch or 0)
    group.assignor = (assignor or b"").decode()
    group.topics = {name: (topic_id, count) for name, (topic_id, count) in json.loads(topics or b"{}").items()}
    group.topics_version = int(topics_version or -1)
    for name, record in records.items():
        group.put(load_member(name.decode(), record))
    group.targets = {name.decode(): load_partitions(json.loads(target)) for name, target in targets.items()}
    group.dirty.clear()
    group.is_changed = False
    return group
