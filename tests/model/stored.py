"""What stands in Redis, read as redis-cli would, and the invariants that it must keep (spec section 22)."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.model.network import Server
from tidegate.store.keys import GroupKeys

HOLD_MS = 5_000
"""For so long a sweep that ran just now may have put a hint off."""


@dataclass(slots=True)
class Stored:
    """A group at one moment."""

    text: dict[str, str]
    members: dict[str, dict[str, Any]]
    subscriptions: set[str]
    assignments: dict[str, bytes]
    tallies: dict[str, int]
    instances: dict[str, str]
    pending: set[str]
    sessions: dict[str, int]
    hints: dict[str, int]
    offsets: dict[str, str]
    events: list[dict[str, str]]
    """Those since the last reading."""
    last_event: str

    @property
    def state(self) -> str:
        return self.text.get("state", "")

    def number(self, name: str) -> int:
        return int(self.text.get(name, "0"))

    @property
    def generation(self) -> int:
        return self.number("generation")


def read(server: Server, keys: GroupKeys, last_event: str) -> Stored:
    """Read everything of a group, and its events after `last_event`."""
    names = ("group", "members", "subscriptions", "assignments", "protocols", "instances", "pending", "offsets")
    shard = keys.shard_keys
    replies = server.ask(
        *(("HGETALL", getattr(keys, name)) for name in names),
        ("ZRANGE", keys.sessions, 0, -1, "WITHSCORES"),
        ("ZRANGE", shard.deadlines, 0, -1, "WITHSCORES"),
        ("XRANGE", shard.events, f"({last_event}" if last_event else "-", "+"),
    )
    hashes = [{key.decode(): value for key, value in reply.items()} for reply in replies[: len(names)]]
    group, members, subscriptions, assignments, tallies, instances, pending, offsets = hashes
    assignments.pop("", None)  # of a leader that gave nobody anything (lib/assign)
    sessions, hints, events = replies[len(names) :]
    return Stored(
        {name: value.decode() for name, value in group.items()},
        {member_id: json.loads(record) for member_id, record in members.items()},
        set(subscriptions),
        assignments,
        {name: int(count) for name, count in tallies.items()},
        {instance_id: member_id.decode() for instance_id, member_id in instances.items()},
        set(pending),
        {member_id.decode(): int(score) for member_id, score in sessions},
        {hint.decode().split("|")[0]: int(score) for hint, score in hints},
        {name: str(json.loads(value)["offset"]) for name, value in offsets.items()},
        [_texts(fields) for _, fields in events],
        events[-1][0].decode() if events else last_event,
    )


def _texts(fields: Any) -> dict[str, str]:
    flat = [value.decode() for pair in fields for value in (pair if isinstance(pair, list | tuple) else [pair])]
    return dict(zip(flat[::2], flat[1::2], strict=True))


def check(now: Stored, before: Stored, now_ms: int) -> None:
    """The invariants of one moment, and of two in a row."""
    if not now.text:
        assert not before.text, "a group is gone that nobody deleted"
        return
    assert now.generation >= before.generation, "P2, I1: the generation went back"
    _check_members(now)
    _check_tallies(now)
    _check_phase(now)
    _check_hints(now, now_ms)
    if before.generation == now.generation and before.state == now.state == "Stable":
        _check_assignments_stay(now, before)


def _check_members(now: Stored) -> None:
    assert not now.members.keys() & now.pending, "I11: a member is pending"
    assert now.members.keys() == now.subscriptions
    assert now.assignments.keys() <= now.members.keys(), "an assignment of nobody"
    static = {record["instance_id"]: member_id for member_id, record in now.members.items() if record["instance_id"]}
    assert static == now.instances, "I12: instances are not those of the static members"
    assert sum(bool(record["instance_id"]) for record in now.members.values()) == len(static), "I19: two of an instance"
    assert now.sessions.keys() == now.members.keys() | now.pending, "I15: a session without member, or a member without"


def _check_tallies(now: Stored) -> None:
    expected: Counter[str] = Counter()
    for record in now.members.values():
        expected.update(f"supports:{name}" for name in record["protocols"])
        expected["offers:" + json.dumps(record["protocols"], separators=(",", ":"))] += 1
        for name in ("session_timeout_ms", "rebalance_timeout_ms"):
            expected[f"{name}:{record[name]}"] += 1
    assert now.tallies == dict(expected), "tallies are not those of the members"


def _check_phase(now: Stored) -> None:
    records = now.members.values()
    if now.state == "Empty":
        assert not now.members and not now.text.get("leader") and not now.tallies, "I13"
        assert now.number("join_deadline") == now.number("sync_deadline") == 0, "I13: a timer of an empty group"
    if now.state == "PreparingRebalance":
        joined = sum(record["join_round"] == now.number("round") for record in records)
        assert now.number("joined_count") == joined
        assert now.number("join_deadline") > 0, "I16: a join phase without its timer"
        assert now.text["prev_state"] == "Empty" or now.pending or joined < len(records), (
            "P8: all joined, not completed"
        )
    if now.state in ("CompletingRebalance", "Stable"):
        synced = sum(record["sync_generation"] == now.generation for record in records)
        assert now.text["leader"] in now.members, "I3: no leader"
        assert now.number("awaiting_sync") == len(records) - synced
        assert all(now.text["protocol"] in record["protocols"] for record in records), "I6"
        assert now.number("join_deadline") == 0
        assert (now.number("sync_deadline") > 0) == (now.number("awaiting_sync") > 0), "I16: the sync timer"
        leader_synced = now.members[now.text["leader"]]["sync_generation"] == now.generation
        assert now.state == "Stable" or not leader_synced, "S11: the leader synced, and the group is not Stable"
    assert now.state != "Stable" or now.number("assigned_generation") == now.generation, "T4"


def _check_hints(now: Stored, now_ms: int) -> None:
    if now.sessions:
        assert now.hints["session"] <= max(min(now.sessions.values()), now_ms + HOLD_MS), "the sweeper would be late"
    for kind in ("join", "sync"):
        assert (kind in now.hints) == (now.number(f"{kind}_deadline") > 0), f"the {kind} hint"


def _check_assignments_stay(now: Stored, before: Stored) -> None:
    for member_id, assignment in now.assignments.items():
        renamed = now.members[member_id]["instance_id"]
        was = before.assignments.get(member_id) or before.assignments.get(before.instances.get(renamed, ""))
        assert was == assignment, "P1: an assignment of a stable generation changed"
