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

import csv
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client import group_operations
from tidegate.cli.client.described_groups import SHARE, type_of
from tidegate.cli.client.group_guard import Guard, identities
from tidegate.cli.client.group_requests import Commit, Place
from tidegate.cli.client.kafka_client import KafkaClient, TopicLeaders, own_name
from tidegate.cli.failures import CommandFailed
from tidegate.cli.output import Column, as_csv
from tidegate.cli.places import Brokers
from tidegate.diagnosis.formatting import counted, format_member, listed
from tidegate.groups.reset_plan import Choice, InvalidReset, Move, Partitions, plan

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
        group = await group_operations.describe(kafka, asked.group_id)
        is_share = type_of(group) == SHARE
        moves = await _planned(kafka, asked, is_share)
        members = group.members
        done = Done([one.as_row() for one in moves])
        if is_share and asked.fence:
            raise CommandFailed("members of a share group cannot be fenced: stop them first")
        if members and not asked.fence:
            done.refused = asked.execute
            done.reported_text = _blocked(asked, group)
            return done
        if group.group_state == "Dead":
            done.reported_text.append(f"there is no group {asked.group_id} yet: its offsets create it")
        if not asked.execute:
            fenced = f" and removes {_members(members)}" if members else ""
            done.reported_text.append(f"dry run, nothing is changed; --execute applies it{fenced}")
            return done
        done.undo = _write_undo(asked, moves)
        if is_share:
            await _move_share_offsets(kafka, asked, moves, done)
            return done
        await move(kafka, asked, moves, group, done)
        return done


def parse_file(path: Path, group_id: str) -> dict[Place, int | None]:
    """Parse lines `topic,partition,offset` or `group,topic,partition,offset`; `-` deletes. Raises CommandFailed."""
    wanted: dict[Place, int | None] = {}
    number = 1
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            for number, row in enumerate(csv.reader(lines), 1):
                if not row or (number == 1 and row[-1].strip() == "offset"):
                    continue
                if len(row) == 4 and row[0] == group_id:
                    row = row[1:]
                topic, partition, offset = row
                wanted[topic, int(partition)] = None if offset.strip() == "-" else int(offset)
    except OSError as error:
        raise CommandFailed(f"--from-file {path}: {error.strerror}") from None
    except ValueError:
        raise CommandFailed(f"--from-file {path}, line {number}: not topic,partition,offset of this group") from None
    if not wanted:
        raise CommandFailed(f"--from-file {path}: the file is empty")
    return wanted


def as_option(name: str) -> str:
    """The command-line option of a field of `Choice`."""
    return "--from-file" if name == "offsets" else f"--{name.replace('_', '-')}"


@dataclass(slots=True)
class _KafkaOffsets:
    """The `OffsetSource` of a plan: any Kafka brokers."""

    kafka: KafkaClient
    is_share: bool = False
    topics: Mapping[str, TopicLeaders] = field(default_factory=dict)

    async def committed(self, group_id: str) -> Mapping[Place, int]:
        if self.is_share:
            shares = await group_operations.share_offsets(self.kafka, group_id)
            return {place: share.start for place, share in shares.items()}
        return await group_operations.committed(self.kafka, group_id)

    async def partitions(self) -> Partitions:
        self.topics = await self.kafka.topics()
        return {name: topic.leaders for name, topic in self.topics.items()}

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    async def offsets_at(self, wanted: Mapping[Place, int]) -> Mapping[Place, int]:
        return await self.kafka.offsets_at(wanted, self.topics)


async def _planned(kafka: KafkaClient, asked: Asked, is_share: bool) -> list[Move]:
    try:
        source = _KafkaOffsets(kafka, is_share)
        return await plan(source, asked.group_id, asked.choice, asked.topics, asked.all_topics, as_option)
    except InvalidReset as error:
        raise CommandFailed(str(error)) from None


def _members(members: Sequence[Any]) -> str:
    return listed(
        dict.fromkeys(format_member(one.client_id, one.client_host, one.group_instance_id) for one in members)
    )


def _blocked(asked: Asked, group: Any) -> list[str]:
    members = group.members
    return [
        f"{'refused' if asked.execute else 'this would be refused'}: offsets move while the group is empty, "
        f"and it has {len(members)} {'member' if len(members) == 1 else 'members'}:",
        *(
            f"  {one.member_id} ({format_member(one.client_id, one.client_host, one.group_instance_id)})"
            for one in members
        ),
        "stop them and repeat the command"
        if type_of(group) == SHARE
        else "stop them and repeat the command, or add --fence: it removes them; those that are alive join "
        "again and continue from the new offsets",
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
        group = await group_operations.describe(kafka, asked.group_id)
    if removed:
        done.reported_text.append(f"removed {_members(removed)}")
    _report(done, codes, undone)


async def _move_share_offsets(kafka: KafkaClient, asked: Asked, moves: Sequence[Move], done: Done) -> None:
    """Set the start offsets of a share group; nothing stays in flight. Raises CommandFailed."""
    forgotten = {move.topic for move in moves if move.after is None}
    partial = forgotten & {move.topic for move in moves if move.after is not None}
    if partial:
        raise CommandFailed(f"start offsets are deleted by topic, and {listed(sorted(partial))} has others to be moved")
    targets = {move.place: move.after for move in moves if move.after is not None}
    codes = await group_operations.move_share_offsets(kafka, asked.group_id, targets, forgotten)
    by_topic = {topic: code for (topic, index), code in codes.items() if index < 0}
    _report(done, {move.place: codes.get(move.place, by_topic.get(move.topic, ErrorCode.none)) for move in moves}, {})


async def _change(
    guard: Guard, targets: Mapping[Place, Commit], forgotten: Sequence[Place], again: bool
) -> dict[Place, ErrorCode]:
    kafka, group = guard.kafka, guard.group
    if not group.members and not again:
        committed = await group_operations.commit(kafka, group.group_id, targets) if targets else {}
        deleted = await group_operations.delete_offsets(kafka, group.group_id, forgotten) if forgotten else {}
        return {**committed, **deleted}
    codes = await (guard.move_as_member if again else guard.fence_and_move)(targets, forgotten)
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
            row["note"] = f"back at {undone[place]}: a client committed after the reset"
    done.refused = bool(failed)
    done.reported_text.append(f"{len(done.rows) - len(failed)} of {counted(len(done.rows), 'partition')} moved")


async def _undone(kafka: KafkaClient, group_id: str, moves: Sequence[Move]) -> dict[Place, int | None]:
    """Moved partitions whose committed offset is back at the old one -> that offset."""
    now = await group_operations.committed(kafka, group_id)
    return {
        move.place: move.before for move in moves if move.before != move.after and now.get(move.place) == move.before
    }


async def _existing(kafka: KafkaClient, group_id: str) -> Any:
    group = await group_operations.describe(kafka, group_id)
    if group.group_state == "Dead":
        raise CommandFailed(f"there is no group {group_id}")
    return group


async def evict(brokers: Brokers, group_id: str, member: str, reason: str) -> str:
    """Remove a member by its id or instance id; returns a message. Raises CommandFailed."""
    async with KafkaClient(brokers, own_name()) as kafka:
        group = await _existing(kafka, group_id)
        members = group.members
        if type_of(group) == SHARE:
            raise CommandFailed("members of a share group cannot be removed: stop the process, or wait for its session")
        chosen = [one for one in members if member in (one.member_id, one.group_instance_id)]
        if not chosen:
            known = listed((one.group_instance_id or one.member_id for one in members), 20)
            raise CommandFailed(f"group {group_id} has no member {member}; it has {known}")
        (answer,) = await group_operations.leave(kafka, group_id, identities(chosen), reason)
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
        await group_operations.delete(kafka, group_id)
