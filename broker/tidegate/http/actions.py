"""Changes by operators, shared by REST and console; the audit records the intent before and the outcome after.

Offset changes are in `offset_actions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tidegate.apis.call import BrokerContext
from tidegate.apis.mirroring import forget_mirrors
from tidegate.cluster.audit import Actor, Audit, Entry
from tidegate.cluster.drains import request_drain
from tidegate.diagnosis.formatting import COMMAND, counted
from tidegate.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    NonEmptyGroup,
    OffsetOutOfRange,
    PolicyViolation,
    TopicDeletionDisabled,
    UnknownMemberId,
    UnknownTopicOrPartition,
    from_code,
)
from tidegate.groups import classic, directory
from tidegate.groups.consumer.membership import Removal
from tidegate.groups.consumer.stored import EPOCH_TYPES
from tidegate.groups.consumer.stored import TYPE as CONSUMER
from tidegate.groups.model import Leaving
from tidegate.groups.offsets import UNSTABLE_FIELD, parse_entry, split_field
from tidegate.groups.share.offsets import delete_group as delete_share_group
from tidegate.groups.share.stored import TYPE as SHARE
from tidegate.http.group_members import members_of, type_of
from tidegate.http.late_requests import refuse_late
from tidegate.quotas.table import Change as QuotaChange
from tidegate.topics import configs, names
from tidegate.topics.configs import Change, Operation


@asynccontextmanager
async def begin(
    context: BrokerContext, actor: Actor, action: str, org: str | None = None, undo: Any = None, **arguments: Any
) -> AsyncIterator[Entry]:
    """An audit entry for an action that this broker executes; it ends once it is as durable as `durability` says.

    Raises NotExecuted, as each action does that reads before it changes something.
    """
    given = arguments if org is None else {"org": org, **arguments}
    audit = Audit(context.store, context.broker_lease.node_id, actor, action, given, undo)
    async with audit as entry, context.logs.durability.confirmed():
        refuse_late(context)
        yield entry


def moved_back(
    org: str, group_id: str, own_id: str, moves: Iterable[tuple[str, int, int | None, int | None, str]]
) -> dict[str, Any]:
    """The undo record of an offset change: topic, partition, old and new offset; None for no commit.

    It includes the metadata of the old commit, if any.
    """
    kept = [[*move, metadata] if metadata else move for *move, metadata in moves]
    return {"org": org, "group": group_id, "id": own_id, "moves": kept}


# -- brokers


async def drain_broker(context: BrokerContext, actor: Actor, node_id: str) -> None:
    """Make a broker drain and exit, as by SIGTERM. Raises InvalidRequest, BrokerIdNotRegistered, StoreUnavailable."""
    if not node_id.isdecimal() or len(node_id) > 9:
        raise InvalidRequest(f"{node_id:.20} is not a node id")
    async with begin(context, actor, "broker.drain", node_id=int(node_id)):
        await request_drain(context.store, int(node_id))


# -- groups


async def delete_group(context: BrokerContext, actor: Actor, org: str, group_id: str) -> None:
    """Delete an empty group; the audit keeps its offsets for an undo.

    Raises GroupIdNotFound, NonEmptyGroup, StoreUnavailable.
    """
    keys = context.store.group_keys(org, group_id)
    own_id, stored = await asyncio.gather(
        context.store.command("HGET", keys.group, "id"), context.store.read("HGETALL", keys.offsets)
    )
    stored.pop(UNSTABLE_FIELD.encode(), None)
    offsets = {split_field(name.decode()): parse_entry(value) for name, value in stored.items()}
    forgotten = [(*place, was.offset, None, was.metadata) for place, was in offsets.items()]
    undo = moved_back(org, group_id, (own_id or b"").decode(), forgotten)
    async with begin(context, actor, "group.delete", org, undo, group=group_id, offsets=len(offsets)):
        try:
            is_share = await type_of(context, keys) == SHARE
            lease_ends_ms = context.broker_lease.ends_ms
            refuse_late(context)
            if is_share:
                await delete_share_group(context.store, context.shares.groups, keys, context.broker_lease.name)
            else:
                await directory.delete_group(context.store, keys, str(context.broker_lease.node_id), lease_ends_ms)
        except NonEmptyGroup:
            raise NonEmptyGroup("the group has members: stop them first, or remove them") from None
        except GroupIdNotFound:
            raise GroupIdNotFound(f"there is no group {group_id}") from None
        forget_mirrors(context, keys, undo["id"], list(offsets))


async def remove_member(
    context: BrokerContext, actor: Actor, org: str, group_id: str, member: str, reason: str
) -> dict[str, Any]:
    """Remove a member by its member id or instance id; the others rebalance, and the member rejoins if it is alive.

    Raises InvalidGroupId, GroupIdNotFound, UnknownMemberId, StoreUnavailable.
    """
    if not group_id:
        raise InvalidGroupId
    keys = context.store.group_keys(org, group_id)
    async with begin(context, actor, "group.remove_member", org, group=group_id, member=member, reason=reason) as entry:
        members = await members_of(context, keys)
        if members is None:
            raise GroupIdNotFound(f"there is no group {group_id}")
        found = [one for one in members if member in (one.member_id, one.instance_id)]
        if not found:
            raise UnknownMemberId(f"the group has no member {member}, but {counted(len(members), 'other')}")
        kind = await type_of(context, keys)
        lease_ends_ms = context.broker_lease.ends_ms
        refuse_late(context)
        if kind == SHARE:
            raise InvalidRequest("a member of a share group cannot be removed: stop it, or wait for its session")
        entry.result["member_id"] = found[0].member_id
        who, host = f"{COMMAND}@{actor.name}", f"/{actor.remote}"
        removed = {"member_id": found[0].member_id, "client_id": found[0].client_id, "host": found[0].client_host}
        if kind in EPOCH_TYPES:
            for one in found:
                removal = Removal(one.member_id, one.instance_id, "member_removed", reason, f"{host} {who}")
                await (context.consumers.groups if kind == CONSUMER else context.streams).run(keys, removal)
                entry.changed = True
            return removed
        leaving = [Leaving(one.member_id, one.instance_id, reason) for one in found]
        broker = str(context.broker_lease.node_id)
        codes = await classic.leave(
            context.store, keys, leaving, broker, client_id=who, client_host=host, lease_ends_ms=lease_ends_ms
        )
        if codes[0]:
            raise from_code(codes[0])
        return removed


# -- topics


async def create_topic(
    context: BrokerContext, actor: Actor, org: str, name: str, partition_count: int | None, values: Mapping[str, str]
) -> None:
    """Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions, InvalidConfig, StoreUnavailable."""
    async with begin(
        context, actor, "topic.create", org, topic=name, partition_count=partition_count, configs=dict(values)
    ) as entry:
        await context.catalog.check_new(org, name)
        overrides = configs.parse(context.settings, values, {})
        made = await context.catalog.create(org, name, partition_count, overrides)
        entry.result |= {"id": str(made.topic_id), "partition_count": made.partition_count}


async def delete_topic(context: BrokerContext, actor: Actor, org: str, name: str) -> None:
    """Delete a topic with its records and committed offsets; cannot be undone.

    Raises InvalidTopic (brokers publish it), UnknownTopicOrPartition, TopicDeletionDisabled, StoreUnavailable.
    """
    async with begin(context, actor, "topic.delete", org, topic=name) as entry:
        if not context.settings.delete_topic_enable:
            raise TopicDeletionDisabled("delete_topic_enable is off")
        if context.settings.internal_topics_interval_ms:
            names.check_changeable(name)  # it would be written again at once
        await context.catalog.refresh()
        topic = await context.catalog.find(org, name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name}")
        refuse_late(context)
        entry.result["id"] = str(topic.topic_id)
        await context.catalog.delete(org, name, topic.topic_id)


async def add_partitions(context: BrokerContext, actor: Actor, org: str, name: str, count: int) -> None:
    """Increase a topic to `count` partitions.

    Raises InvalidTopic (an internal topic), UnknownTopicOrPartition, InvalidPartitions, StoreUnavailable.
    """
    async with begin(context, actor, "topic.add_partitions", org, topic=name, count=count) as entry:
        names.check_changeable(name)
        entry.result["before"] = (await context.catalog.check_growth(org, name, count)).partition_count
        await context.catalog.add_partitions(org, name, count)


async def trim_topic(
    context: BrokerContext, actor: Actor, org: str, name: str, before: Mapping[int, int | None]
) -> dict[int, int]:
    """Delete the records below an offset per partition (None: all records); returns partition -> log start offset.

    Raises InvalidTopic (an internal topic), UnknownTopicOrPartition, OffsetOutOfRange, PolicyViolation (the topic is
    only compacted), StoreUnavailable. All offsets are checked first; if a partition fails after that, those before it
    have been trimmed, and the error and the audit list them.
    """
    async with begin(context, actor, "topic.trim", org, topic=name, before=dict(before)) as entry:
        names.check_changeable(name)
        await context.catalog.refresh()
        topic = await context.catalog.find(org, name)
        if topic is None or not all(index < topic.partition_count for index in before):
            raise UnknownTopicOrPartition(f"there is no topic {name} with all these partitions")
        if topic.config.cleanup_policy == {"compact"}:
            raise PolicyViolation(f"{name} is compacted: cleanup.policy has no delete")
        logs = {index: context.logs.partition(topic, index) for index in sorted(before)}
        offsets: dict[int, int] = {}
        for index, log in logs.items():
            end, offset = (await log.end_offset()).high_watermark, before[index]
            offsets[index] = end if offset is None else offset
            if offsets[index] > end:
                raise OffsetOutOfRange(f"partition {index} ends before offset {offset}")
        starts: dict[int, int] = entry.result.setdefault("log_starts", {})
        for index, log in logs.items():
            refuse_late(context)
            try:
                starts[index] = await log.delete_records(offsets[index])
            except OffsetOutOfRange:
                trimmed = f"; trimmed before it: {', '.join(map(str, starts))}" if starts else ""
                raise OffsetOutOfRange(f"partition {index} ends before offset {offsets[index]}{trimmed}") from None
            entry.changed = True
        return starts


async def alter_configs(
    context: BrokerContext, actor: Actor, org: str, name: str, values: Mapping[str, str], defaults: Sequence[str]
) -> None:
    """Set configs of a topic and reset others to their defaults; the audit keeps the previous values.

    Raises InvalidTopic (an internal topic), UnknownTopicOrPartition, InvalidConfig, StoreUnavailable.
    """
    changes: list[Change] = [(name, Operation.SET, value) for name, value in values.items()]
    changes += [(name, Operation.DELETE, None) for name in defaults]

    def plan(overrides: Mapping[str, str]) -> dict[str, str]:
        return configs.altered(context.settings, overrides, changes)

    await context.catalog.refresh()
    topic = await context.catalog.find(org, name)
    before = {one: topic.overrides.get(one) for one, _, _ in changes} if topic else {}
    arguments = {"topic": name, "set": dict(values), "defaults": list(defaults), "before": before}
    async with begin(context, actor, "topic.alter", org, **arguments):
        names.check_changeable(name)
        await context.catalog.alter_configs(org, name, plan)


# -- quotas


async def change_quotas(context: BrokerContext, actor: Actor, org: str, changes: Sequence[QuotaChange]) -> None:
    """Set and remove quotas in one step. Raises PolicyViolation, StoreUnavailable."""
    assert context.quotas is not None
    shown = {f"{entity.text()} {quota}": value for entity, quota, value in changes}
    async with begin(context, actor, "quota.change", org, quotas=shown):
        await context.quotas.quotas.change(org, changes, f"{actor.role} {actor.name}")
