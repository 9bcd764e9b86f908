"""The stored form of a streams group: readable JSON.

A member's record is that of a KIP-848 member, with the partitions that its active tasks read as `assigned`, so that
commits are checked, and lag and members are shown, as for consumer groups. Its tasks stand beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidegate.groups.consumer.model import MemberState, Partition
from tidegate.groups.consumer.stored import (
    by_topic,
    dump_record,
    epochs_by_topic,
    load_epochs,
    load_partitions,
    to_json,
)
from tidegate.groups.streams.assignor import STICKY
from tidegate.groups.streams.model import StreamsGroup, StreamsMember, Task, Tasks
from tidegate.groups.streams.topology import InternalTopic, Subtopology, Topology

HEAD: Final = (
    "id",
    "version",
    "write_id",
    "type",
    "state",
    "generation",
    "target_epoch",
    "topics",
    "topics_version",
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "standby_replicas",
    "assigned_replicas",
    "topology",
    "is_ready",
    "endpoint_epoch",
    "shutdown_by",
)
TYPE: Final = "streams"
_EMPTY: Final = b"Empty"


def dump_member(group: StreamsGroup, member: StreamsMember, session_timeout_ms: int) -> str:
    """A member's record."""
    given: dict[int, list[Task]] = {}
    for task, epoch in member.assigned.items():
        given.setdefault(epoch, []).append(task)
    read = {partition: epoch for epoch, tasks in given.items() for partition in _partitions(group, tasks)}
    others: dict[str, Any] = {
        "assignor": STICKY,
        "topics": () if group.topology is None else group.topology.source_names,
        "regex": "",
        "assigned": epochs_by_topic(read),
        "revoking": by_topic(_partitions(group, member.revoking)),
        "process_id": member.process_id,
        "topology_epoch": member.topology_epoch,
        "endpoint": member.endpoint,
        "client_tags": dict(member.client_tags),
        "tasks": epochs_by_topic(member.assigned),
        "revoking_tasks": by_topic(member.revoking),
        "standby_tasks": by_topic(member.standby),
        "revoking_standby_tasks": by_topic(member.standby_revoking),
    }
    return dump_record(member, session_timeout_ms, others)


def _partitions(group: StreamsGroup, tasks: Iterable[Task]) -> list[Partition]:
    """What tasks read, by topic id."""
    return [(group.topics[name][0], index) for name, indexes in group.partitions_of(tasks).items() for index in indexes]


def load_member(member_id: str, record: bytes) -> StreamsMember:
    """Parse a member's record."""
    values = json.loads(record)
    endpoint = values["endpoint"]
    return StreamsMember(
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
        load_epochs(values["tasks"]),
        load_partitions(values["revoking_tasks"]),
        values["process_id"],
        values["topology_epoch"],
        None if endpoint is None else (endpoint[0], endpoint[1]),
        tuple(values["client_tags"].items()),
        load_partitions(values["standby_tasks"]),
        load_partitions(values["revoking_standby_tasks"]),
    )


def dump_target(group: StreamsGroup, target: Tasks) -> str:
    """A member's target: subtopology id -> indexes for each role, and topic id -> indexes that active tasks read."""
    roles = {"active": by_topic(target.active), "standby": by_topic(target.standby)}
    return to_json({**roles, "partitions": by_topic(_partitions(group, target.active))})


def _load_target(target: bytes) -> Tasks:
    values = json.loads(target)
    return Tasks(load_partitions(values["active"]), load_partitions(values["standby"]))


def dump_fields(group: StreamsGroup) -> dict[str, str]:
    """The fields of the group's hash that a decision can change; the script adds those of the state's history."""
    topology = group.topology
    return {
        "type": TYPE,
        "state": group.state,
        "generation": str(group.epoch),
        "target_epoch": str(group.target_epoch),
        "topics": to_json({name: group.topics[name] for name in sorted(group.topics)}),
        "topics_version": str(group.topics_version),
        "held_bytes": str(group.held_bytes),
        "session_timeout_ms": str(group.session_timeout_ms),
        "heartbeat_interval_ms": str(group.heartbeat_interval_ms),
        "standby_replicas": str(group.standby_replicas),
        "assigned_replicas": str(group.assigned_replicas),
        "topology": "" if topology is None else dump_topology(topology),
        "is_ready": str(int(group.is_ready)),
        "endpoint_epoch": str(group.endpoint_epoch),
        "shutdown_by": group.shutdown_by,
        "has_status": str(int(group.has_status)),
        "assignor": STICKY,
        "protocol_type": TYPE,
        "protocol": "",
        "leader": "",
        "subscribed": to_json([] if topology is None or not group.members else _read_topics(topology)),
        "subscribed_generation": str(group.epoch),
    }


def _read_topics(topology: Topology) -> list[str]:
    return sorted({name for one in topology.subtopologies for name in one.sources})


def dump_topology(topology: Topology) -> str:
    """The topology in the group's hash."""
    subtopologies = [
        {
            "id": one.subtopology_id,
            "source_topics": one.source_topics,
            "repartition_sources": [_dump_internal(topic) for topic in one.repartition_sources],
            "repartition_sinks": one.repartition_sinks,
            "changelogs": [_dump_internal(topic) for topic in one.changelogs],
            "copartition_groups": [sorted(group) for group in one.copartition_groups],
        }
        for one in topology.subtopologies
    ]
    return to_json({"epoch": topology.epoch, "subtopologies": subtopologies})


def load_topology(text: bytes) -> Topology:
    """What `dump_topology` wrote."""
    values = json.loads(text)
    return Topology(
        values["epoch"],
        tuple(
            Subtopology(
                one["id"],
                tuple(one["source_topics"]),
                tuple(map(_load_internal, one["repartition_sources"])),
                tuple(one["repartition_sinks"]),
                tuple(map(_load_internal, one["changelogs"])),
                tuple(map(frozenset, one["copartition_groups"])),
            )
            for one in values["subtopologies"]
        ),
    )


def _dump_internal(topic: InternalTopic) -> dict[str, Any]:
    return {"name": topic.name, "partitions": topic.partition_count, "configs": dict(topic.configs)}


def _load_internal(values: Mapping[str, Any]) -> InternalTopic:
    return InternalTopic(values["name"], values["partitions"], tuple(values["configs"].items()))


def is_other_type(head: list[bytes | None]) -> bool:
    """Whether the head is that of another type's group; an empty classic group can become a streams group."""
    found = dict(zip(HEAD, head, strict=True))
    if found["type"] == b"classic":
        return found["state"] != _EMPTY
    return found["id"] is not None and found["type"] != TYPE.encode()


def _from_classic(found: Mapping[str, bytes | None]) -> StreamsGroup:
    epoch = int(found["generation"] or 0)
    own_id, version, write_id = (found[name] or b"" for name in ("id", "version", "write_id"))
    return StreamsGroup(own_id.decode(), int(version or 0), write_id.decode(), epoch, epoch, is_stored=True)


def load_group(
    head: list[bytes | None], records: Mapping[bytes, bytes], targets: Mapping[bytes, bytes]
) -> StreamsGroup:
    """A group from what was read; an empty classic group becomes a streams group with the same epoch."""
    found = dict(zip(HEAD, head, strict=True))
    if found["id"] is None:
        return StreamsGroup()
    if found["type"] != TYPE.encode():
        return _from_classic(found)

    def number(name: str, default: int = 0) -> int:
        return int(found[name] or default)

    group = StreamsGroup(
        own_id=found["id"].decode(),
        version=number("version"),
        write_id=(found["write_id"] or b"").decode(),
        epoch=number("generation"),
        target_epoch=number("target_epoch"),
        topics={name: (topic_id, count) for name, (topic_id, count) in json.loads(found["topics"] or b"{}").items()},
        topics_version=number("topics_version", -1),
        session_timeout_ms=number("session_timeout_ms"),
        heartbeat_interval_ms=number("heartbeat_interval_ms"),
        standby_replicas=number("standby_replicas"),
        assigned_replicas=number("assigned_replicas"),
        topology=load_topology(found["topology"]) if found["topology"] else None,
        is_ready=found["is_ready"] == b"1",
        endpoint_epoch=number("endpoint_epoch"),
        shutdown_by=(found["shutdown_by"] or b"").decode(),
        is_stored=True,
        is_streams=True,
    )
    for name, record in records.items():
        group.put(load_member(name.decode(), record))
    group.targets = {name.decode(): _load_target(target) for name, target in targets.items()}
    group.dirty.clear()
    group.is_changed = False
    return group
