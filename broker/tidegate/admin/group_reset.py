"""Moves a group's offsets, with an undo file; removes members; deletes groups.

Commits without a generation are accepted only while a group is empty, so its members must stop or be fenced. Fencing
pipelines four requests, which a broker handles in order: LeaveGroup removes all members, OffsetCommit and OffsetDelete
move the offsets, JoinGroup adds this command as a member without topics (the guard). Requests under the removed member
ids are refused. Some clients (aiokafka with auto-commit), however, drop their member id when they are fenced, and
commit their old position without an id before they rejoin. An empty group would accept that and lose the new offsets; a
group with a member refuses it, hence the guard. It leaves once another member has joined. Then the offsets are read
again; if a commit overwrote them, the guard joins first and moves them as the only member, which excludes other commits
but costs another rebalance and is not recorded in the group's events.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.admin.failures import CommandFailed
from tidegate.admin.group_guard import Guard, identities
from tidegate.admin.group_requests import Commit, Place
from tidegate.admin.kafka_client import KafkaClient, own_name
from tidegate.admin.output import Column, as_csv
from tidegate.admin.places import Brokers
from tidegate.admin.reset_plan import Choice, Move, plan
from tidegate.groups.formatting import counted, format_member, listed

COLUMNS: Final = [
    Column("topic", "TOPIC"),
    Column("partition", "PARTITION", right=True),
    Column("before", "COMMITTED", right=True),
    Column("after", "NEW", right=True),
    Column("note", "NOTE"),
]
_TRIES: Final = 3
_IN_BETWEEN: Final = frozenset(
    {ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress}
)
"""Another member joined before the guard."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `tidegate group reset`."""

    group_id: str
    choice: Choice
    topics: tuple[str, ...]
    all_topics: bool
    execute: bool
    fence: bool
    undo: Path | None


@dataclass(slots=True)
class Done:
    """The result: rows and messages to print, and the path of the undo file."""

    rows: list[dict[str, Any]]
    reported_text: list[str] = field(default_factory=list)
    undo: Path | None = None
    refused: bool = False


async def reset(brokers: Brokers, asked: Asked) -> Done:
    """Plan, and execute if requested. Raises CommandFailed."""
    async with KafkaClient(brokers, own_name()) as kafka:
        moves = await plan(kafka, asked.group_id, asked.choice, asked.topics, asked.all_topics)
        group = await kafka.describe(asked.group_id)
        members = group.members
        done = Done([row(one) for one in moves])
        if members and not asked.fence:
            done.refused = asked.execute
            done.reported_text = _blocked(asked, members)
            return done
        if group.group_state == "Dead":
            done.reported_text.append(f"there is no group {asked.group_id} so far: its offsets make one")
        if not asked.execute:
            fenced = f" and removes {_members(members)}" if members else ""
            done.reported_text.append(f"nothing is changed: --execute does it{fenced}")
            return done
        done.undo = _write_undo(asked, moves)
        await move(kafka, asked, moves, group, done)
        return done


def row(move: Move) -> dict[str, Any]:
    """A partition as a row."""
    note = move.note or ("forgotten" if move.after is None else "")
    return {"topic": move.topic, "partition": move.partition, "before": move.before, "after": move.after, "note": note}


def _members(members: Sequence[Any]) -> str:
    return listed(
        dict.fromkeys(format_member(one.client_id, one.client_host, one.group_instance_id) for one in members)
    )


def _blocked(asked: Asked, members: Sequence[Any]) -> list[str]:
    return [
        f"{'refused' if asked.execute else 'this would be refused'}: offsets move while the group is empty, "
        f"and it has {len(members)} {'member' if len(members) == 1 else 'members'}:",
        *(
            f"  {one.member_id} ({format_member(one.client_id, one.client_host, one.group_instance_id)})"
            for one in members
        ),
        "stop them and ask again, or add --fence: it removes them in one step; those that are alive join again and go "
        "on from the new offsets",
    ]


def _write_undo(asked: Asked, moves: Sequence[Move]) -> Path:
    """Write the undo file before any change. Raises CommandFailed."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", asked.group_id)
    path = asked.undo or Path(f"undo-{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.csv")
    rows = [
        {"topic": one.topic, "partition": one.partition, "offset": "-" if one.before is None else one.before}
        for one in moves
    ]
    try:
        with path.open("x", encoding="utf-8") as out:
            out.write(as_csv(["topic", "partition", "offset"], rows))
    except OSError as error:
        raise CommandFailed(f"the undo cannot be written to {path}: {error.strerror}; nothing was changed") from None
    return path


async def move(kafka: KafkaClient, asked: Asked, moves: Sequence[Move], group: Any, done: Done) -> None:
    """Execute the plan for a described group. Raises CommandFailed."""
    targets = {move.place: (move.after, move.metadata) for move in moves if move.after is not None}
    forgotten = [move.place for move in moves if move.after is None and move.before is not None]
    removed: list[Any] = []
    for try_ in range(_TRIES):
        async with Guard(kafka, group) as guard:
            codes = await _change(guard, targets, forgotten, again=try_ > 0)
            undone = await _undone(kafka, asked.group_id, moves)  # before any member reads from the old offsets
        removed += guard.removed
        if not asked.fence or not (undone or not _IN_BETWEEN.isdisjoint(codes.values())):
            break
        group = await kafka.describe(asked.group_id)
    if removed:
        done.reported_text.append(f"removed {_members(removed)}")
    _report(done, codes, undone)


async def _change(
    guard: Guard, targets: Mapping[Place, Commit], forgotten: Sequence[Place], again: bool
) -> dict[Place, ErrorCode]:
    kafka, group = guard.kafka, guard.group
    if not group.members and not again:
        committed = await kafka.commit(group.group_id, targets) if targets else {}
        return {**committed, **(await kafka.delete_offsets(group.group_id, forgotten) if forgotten else {})}
    codes = await (guard.move_as_member if again else guard.move_in_one_write)(targets, forgotten)
    await guard.wait()
    return codes


def _report(done: Done, codes: Mapping[Place, ErrorCode], undone: Mapping[Place, int | None]) -> None:
    failed = {place for place, code in codes.items() if code is not ErrorCode.none} | set(undone)
    for row in done.rows:
        place = row["topic"], row["partition"]
        code = codes.get(place, ErrorCode.none)
        if code is not ErrorCode.none:
            row["note"] = f"refused: {code.name.upper()}"
        elif place in undone:
            row["note"] = f"back at {undone[place]}: somebody committed after the reset"
    done.refused = bool(failed)
    done.reported_text.append(f"{len(done.rows) - len(failed)} of {counted(len(done.rows), 'partition')} moved")


async def _undone(kafka: KafkaClient, group_id: str, moves: Sequence[Move]) -> dict[Place, int | None]:
    """Moved partitions whose committed offset is back at the old one -> that offset."""
    now = await kafka.committed(group_id)
    return {
        move.place: move.before for move in moves if move.before != move.after and now.get(move.place) == move.before
    }


async def _existing(kafka: KafkaClient, group_id: str) -> Any:
    group = await kafka.describe(group_id)
    if group.group_state == "Dead":
        raise CommandFailed(f"there is no group {group_id}")
    return group


async def evict(brokers: Brokers, group_id: str, member: str, reason: str) -> str:
    """Remove a member by its id or instance id; returns a message. Raises CommandFailed."""
    async with KafkaClient(brokers, own_name()) as kafka:
        members = (await _existing(kafka, group_id)).members
        chosen = [one for one in members if member in (one.member_id, one.group_instance_id)]
        if not chosen:
            known = listed((one.group_instance_id or one.member_id for one in members), 20)
            raise CommandFailed(f"group {group_id} has no member {member}; it has {known}")
        (answer,) = await kafka.leave(group_id, identities(chosen), reason)
        if answer.error_code is not ErrorCode.none:
            raise CommandFailed(f"{member}: {answer.error_code.name.upper()}")
        one = chosen[0]
        return f"removed {one.member_id} ({format_member(one.client_id, one.client_host, one.group_instance_id)})"


async def delete(brokers: Brokers, group_id: str) -> None:
    """Delete an empty group. Raises CommandFailed, which lists the members of a non-empty one."""
    async with KafkaClient(brokers, own_name()) as kafka:
        described = await _existing(kafka, group_id)
        if described.members:
            raise CommandFailed(f"group {group_id} is not empty: {_members(described.members)}; stop them first")
        await kafka.delete_group(group_id)
