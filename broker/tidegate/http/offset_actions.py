"""Offset changes by operators: plan, execute, undo. Plans are computed as in `tidegate group reset`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidegate.apis.call import BrokerContext
from tidegate.apis.slices import in_slices
from tidegate.cluster import audit
from tidegate.cluster.audit import Actor
from tidegate.diagnosis.formatting import COMMAND, counted, listed
from tidegate.errors import NonEmptyGroup
from tidegate.groups.offset_reset import OffsetMove, reset_offsets
from tidegate.groups.offsets import UNSTABLE_FIELD, parse_entry, split_field
from tidegate.groups.reset_plan import Choice, InvalidReset, Move, TopicPartition, plan
from tidegate.groups.share.stored import TYPE as SHARE
from tidegate.http.actions import begin, moved_back
from tidegate.http.group_members import OneMember, members_of, type_of
from tidegate.http.late_requests import refuse_late
from tidegate.http.problems import Problem
from tidegate.http.stored_offsets import StoredOffsets
from tidegate.store.keys import GroupKeys

_UNSTABLE: Final = UNSTABLE_FIELD.encode()
_FIELDS: Final = {"topic": "topics"}
"""Request fields whose names differ from those of `Choice`."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Which offsets to move, and where to. `topics` are `orders` or `orders:0,1`; `fence` removes the members first.

    `metadata` is committed with the offsets of its partitions.
    """

    group_id: str
    choice: Choice
    topics: tuple[str, ...] = ()
    all_topics: bool = False
    fence: bool = False
    metadata: Mapping[TopicPartition, str] = field(default_factory=dict)


async def plan_reset(context: BrokerContext, actor: Actor, org: str, wanted: Reset) -> dict[str, Any]:
    """The effect of a reset, without a change. Raises Problem, StoreUnavailable."""
    await _no_share_group(context, context.store.group_keys(org, wanted.group_id))
    moves, members = await asyncio.gather(_planned(context, org, wanted), _members(context, org, wanted.group_id))
    return {
        "group": wanted.group_id,
        "exists": members is not None,
        "allowed": wanted.fence or not members,
        "moves": [one.as_row() async for one in in_slices(moves)],
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.client_host,
            }
            for member in members or ()
        ],
    }


async def reset(
    context: BrokerContext, actor: Actor, org: str, wanted: Reset, action: str = "group.reset"
) -> dict[str, Any]:
    """Move offsets; the audit keeps the old ones. Raises Problem, NonEmptyGroup, StoreUnavailable.

    Atomic: all offsets move or none, together with the removal of members by `fence`. CoordinatorNotAvailable if the
    lease that the broker has when the script is sent ends before it runs.
    """
    await _no_share_group(context, context.store.group_keys(org, wanted.group_id))
    own_id, was = await asyncio.gather(_own_id(context, org, wanted.group_id), _metadata(context, org, wanted.group_id))
    planned = await _planned(context, org, wanted)
    moves = [replace(one, metadata=wanted.metadata.get(one.place, "")) async for one in in_slices(planned)]
    before = [(*one.place, one.before, one.after, was.get(one.place, "")) async for one in in_slices(moves)]
    rows = [one.as_row() async for one in in_slices(moves)]
    undo = moved_back(org, wanted.group_id, own_id, before)
    arguments = {"group": wanted.group_id, "partitions": len(moves), "fence": wanted.fence}
    async with begin(context, actor, action, org, undo, **arguments) as entry:
        removed = await _move(context, actor, org, wanted, moves)
        reported = [f"removed {counted(removed, 'member')}"] if removed else []
        reported.append(f"{counted(len(moves), 'partition')} moved")
        entry.result |= {"complete": True, "removed": removed, "messages": reported}
        return {
            "action_id": entry.action_id,
            "group": wanted.group_id,
            "complete": True,
            "undoable": entry.undoable,
            "removed": removed,
            "moves": rows,
        }


async def _move(context: BrokerContext, actor: Actor, org: str, wanted: Reset, moves: Sequence[Move]) -> int:
    """Run the script; returns the number of removed members. Raises Problem, NonEmptyGroup, StoreUnavailable."""
    keys = context.store.group_keys(org, wanted.group_id)
    who = f"{COMMAND}@{actor.name}"
    topics = {name: await context.catalog.find(org, name) for name in {move.topic for move in moves}}
    targets = []
    async for move in in_slices(moves):
        topic = topics[move.topic]
        if topic is None:
            raise Problem(409, f"Topic {move.topic} was deleted meanwhile; nothing was changed.")
        targets.append(OffsetMove(move.topic, topic.topic_hex, move.partition, move.after, move.metadata))
    if context.group_limits is not None:
        await context.group_limits.admit(keys)
    lease_ends_ms = context.broker_lease.ends_ms
    refuse_late(context)
    try:
        removed = await reset_offsets(
            context.store,
            keys,
            targets,
            fence=wanted.fence,
            broker=str(context.broker_lease.node_id),
            client_id=who,
            client_host=f"/{actor.remote}",
            lease_ends_ms=lease_ends_ms,
        )
    except NonEmptyGroup:
        raise NonEmptyGroup("the group has members: stop them first, or fence") from None
    moved = [
        (topic, move.partition, move.after)
        for move in moves
        if move.after is not None and (topic := topics[move.topic]) is not None
    ]
    context.commit_reports.flush()
    context.usage.committed(keys.ref, who, moved)
    if context.mirror is not None:
        for topic, index, offset in moved:
            context.mirror.committed(topic, index, wanted.group_id, offset)
    return removed


async def undo(context: BrokerContext, actor: Actor, action_id: str, fence: bool) -> dict[str, Any]:
    """Restore the offsets that a reset moved or a deletion removed, unless the group has committed since.

    Raises as `reset`.
    """
    action = await audit.find(context.store, action_id)
    if action is None:
        raise Problem(404, f"There is no action {action_id}, or it is no longer stored.")
    kept = action["undo"]
    if action["undo_too_large"]:
        raise Problem(409, f"{action['action']} changed too many offsets, so the previous ones were not stored.")
    if kept is None or action["outcome"] == audit.REFUSED:
        raise Problem(409, f"{action['action']} cannot be undone.")
    org, group_id = kept["org"], kept["group"]
    own_id = await _own_id(context, org, group_id)
    if own_id and kept["id"] and own_id != kept["id"]:
        raise Problem(409, f"Group {group_id} was deleted and created again since then.")
    back = _back(kept["moves"], await StoredOffsets(context, org).committed(group_id))
    if not back:
        raise Problem(409, "The offsets are already where they were: there is nothing to undo.")
    metadata = {(topic, partition): reported[0] for topic, partition, _, _, *reported in kept["moves"] if reported}
    wanted = Reset(group_id, Choice(offsets=back), fence=fence, metadata=metadata)
    return await reset(context, actor, org, wanted, f"{action['action']}.undo")


def _back(moves: Sequence[Sequence[Any]], now: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    """Old offsets of partitions still at their new offset. Raises Problem when a partition has other commits since."""
    gone = [
        f"{topic} {partition}"
        for topic, partition, before, after, *_ in moves
        if now.get((topic, partition)) not in (before, after)
    ]
    if gone:
        raise Problem(409, f"The group has committed since: {listed(gone, 10)}.", partitions=gone)
    return {
        (topic, partition): before
        for topic, partition, before, after, *_ in moves
        if before != after and now.get((topic, partition)) == after
    }


async def _own_id(context: BrokerContext, org: str, group_id: str) -> str:
    """The unique id of the group's current instance, "" without a group. Raises StoreUnavailable."""
    found = await context.store.command("HGET", context.store.group_keys(org, group_id).group, "id")
    return (found or b"").decode()


async def _metadata(context: BrokerContext, org: str, group_id: str) -> dict[TopicPartition, str]:
    """Metadata of the group's commits, where present."""
    stored = await context.store.read("HGETALL", context.store.group_keys(org, group_id).offsets)
    return {
        split_field(name.decode()): metadata
        async for name, value in in_slices(stored.items())
        if name != _UNSTABLE and (metadata := parse_entry(value).metadata)
    }


async def _planned(context: BrokerContext, org: str, wanted: Reset) -> list[Move]:
    """Compute the moves. Raises Problem, StoreUnavailable."""
    source = StoredOffsets(context, org)
    try:
        return await plan(
            source,
            wanted.group_id,
            wanted.choice,
            wanted.topics,
            wanted.all_topics,
            lambda name: _FIELDS.get(name, name),
        )
    except InvalidReset as failure:
        raise Problem(400, str(failure)) from None


async def _members(context: BrokerContext, org: str, group_id: str) -> Sequence[OneMember] | None:
    """The group's members; None when the group does not exist. Raises StoreUnavailable."""
    return await members_of(context, context.store.group_keys(org, group_id))


async def _no_share_group(context: BrokerContext, keys: GroupKeys) -> None:
    if await type_of(context, keys) == SHARE:
        command = f"{COMMAND} group reset"
        raise Problem(409, f"A share group has start offsets, no committed ones: `{command}` moves them.")
