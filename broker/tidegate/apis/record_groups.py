"""Group requests and the Redis groups of format `record`: owners are stored before assignments, commits acknowledged.

Handlers call these only while there are such topics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import structlog

from tidegate.apis.call import Call
from tidegate.apis.leader_assignments import assigned_owners
from tidegate.apis.slices import in_slices
from tidegate.errors import KafkaError
from tidegate.groups.commits import RecordCommit
from tidegate.groups.consumer.model import Partition
from tidegate.groups.model import SyncRequest
from tidegate.groups.offsets import Committed, offset_field
from tidegate.log.owners import Owner
from tidegate.log.record_format.record_log import RecordLog
from tidegate.store.keys import GroupKeys
from tidegate.topics.model import Topic

logger = structlog.get_logger()

_CONSUMER: Final = "consumer"


async def note_owners(call: Call, keys: GroupKeys, request: SyncRequest) -> None:
    """Store who will own partitions of format record, before the members get their assignments from the leader's Sync.

    A failure is logged: the members then read without the Redis group, which moves when they commit.
    """
    if request.protocol_type not in (_CONSUMER, None):
        return
    try:
        owned = await assigned_owners(call, keys, request, _is_record)
    except KafkaError as error:
        logger.debug("owner_not_noted", group=keys.group_id, reason=str(error))
        return
    owners = [(log, owner) async for topic, index, owner in in_slices(owned) for log in _logs(call, topic, [index])]
    await call.context.logs.record_groups.own(keys.group_id, owners)


def _is_record(topic: Topic) -> bool:
    return topic.config.is_record


async def note_consumer_owner(call: Call, keys: GroupKeys, member_id: str, assignment: Collection[Partition]) -> None:
    """Store that a member of a KIP-848 group will own partitions of format record, before it gets its assignment.

    The epoch at which it got a partition is the owner's generation: it rises with every owner.
    """
    by_id = call.context.catalog.by_id
    topics = {topic_hex: by_id(call.org, UUID(hex=topic_hex)) for topic_hex in {one for one, _ in assignment}}
    records = {topic_hex: topic for topic_hex, topic in topics.items() if topic is not None and topic.config.is_record}
    logs = [
        (log, (topic_hex, index))
        for topic_hex, index in assignment
        if topic_hex in records
        for log in _logs(call, records[topic_hex], [index])
    ]
    if not logs:
        return
    groups = call.context.consumers.groups
    try:
        group = groups.cached.get(keys.group) or await groups.read(keys)
    except KafkaError as error:
        logger.debug("owner_not_noted", group=keys.group_id, reason=str(error))
        return
    member = group.members.get(member_id)
    if member is None:
        return
    who = member.member_id, member.client_id, member.client_host
    owners = [(log, Owner(group.own_id, member.assigned.get(one, member.epoch), *who)) for log, one in logs]
    await call.context.logs.record_groups.own(keys.group_id, owners)


CommittedOffsets = Sequence[tuple[Topic, Mapping[int, int]]]
"""Of a commit: each topic, and the offsets of its valid partitions, by partition."""


def record_commits(call: Call, group_id: str, committed: CommittedOffsets) -> list[RecordCommit]:
    """What the script of a commit acknowledges: on one Redis server, its valid partitions of format record."""
    if call.store.is_sharded:
        return []
    return [
        RecordCommit(log.keys.log, log.keys.meta, log.keys.readers, group_id, log.ids.id_before(offset))
        for log, offset in _offsets_of_logs(call, committed)
    ]


async def acknowledge(call: Call, group_id: str, committed: CommittedOffsets) -> None:
    """On Redis Cluster: acknowledge a stored commit in the Redis groups of its topics of format record."""
    await call.context.logs.record_groups.acknowledge(group_id, _offsets_of_logs(call, committed))


def _offsets_of_logs(call: Call, committed: CommittedOffsets) -> list[tuple[RecordLog, int]]:
    return [
        (log, offsets[log.index])
        for topic, offsets in committed
        for log in _logs(call, topic, [index for index, offset in offsets.items() if offset >= 0])
    ]


async def program_offsets(call: Call, group_id: str, places: Iterable[tuple[str, int]]) -> dict[str, Committed]:
    """Positions of Redis groups that programs created, as commits: a Kafka group of that name continues from there.

    Raises StoreUnavailable.
    """
    found: dict[str, Committed] = {}
    for name, index in places:
        for log in _logs(call, call.context.catalog.get(call.org, name), [index]):
            offset = await call.context.logs.record_groups.program_offset(log, group_id)
            if offset is not None:
                found[offset_field(name, index)] = Committed(offset, -1, "", log.topic.topic_hex)
    return found


def _logs(call: Call, topic: Topic | None, indexes: Iterable[int]) -> list[RecordLog]:
    if topic is None or not topic.config.is_record:
        return []
    logs = [call.context.logs.partition(topic, index) for index in indexes if 0 <= index < topic.partition_count]
    return [log for log in logs if isinstance(log, RecordLog)]
