"""The rebalances of one group, one row a generation: what began it, how long each step took, what moved."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Final
from zlib import crc32

from tidegate_pipeline.history.group_events import GroupEvent

KINDS: Final = (
    "member_joined", "member_replaced", "rebalance_started", "barrier_joined", "assignment_stored", "stable", "emptied",
    "deleted",
)  # fmt: skip
"""The events that it is computed from."""

SCHEMA: Final = (
    "generation int, outcome string, cause string, member string, reason string, started_ms long, first_join_ms long, "
    "joined_ms long, assigned_ms long, synced_ms long, duration_ms long, members_before int, members_after int, "
    "moved_partitions int, leader string, assignor string"
)

_NOBODY: Final = "...."
_TOKEN: Final = len(_NOBODY)
_NOTHING: Final = "-"

Owners = Mapping[str, str]
"""Topic -> four characters for each partition: of its owner's member id, or `....`."""


@dataclass(slots=True)
class Generation:
    """One generation on its way, and then a row. What was not reached, or is not known, is None.

    `outcome`: `stable`; `emptied` where nobody is left; of one that the next rebalance cut short `not_assigned`, or
    `not_synced` where the assignment was there and some member had not fetched it. `first_join_ms` is the first join
    of a new member: members that are asked to rejoin do so without an event.
    """

    generation: int | None = None
    outcome: str = "joining"
    cause: str | None = None
    member: str | None = None
    reason: str | None = None
    started_ms: int | None = None
    first_join_ms: int | None = None
    joined_ms: int | None = None
    assigned_ms: int | None = None
    synced_ms: int | None = None
    duration_ms: int | None = None
    """From its begin to its outcome."""
    members_before: int | None = None
    members_after: int | None = None
    moved_partitions: int | None = None
    """Partitions that have another owner than in the generation before, or none any more."""
    leader: str | None = None
    assignor: str | None = None


class Timeline:
    """What is remembered of a group between its events. `text` is what `text` gave before."""

    def __init__(self, text: str | None = None) -> None:
        known = json.loads(text) if text else {}
        self._members: int | None = known.get("members")
        self._owners: Owners | None = known.get("owners")
        self._joined: list[object] = known.get("came", [])
        self._open = Generation(**known["open"]) if "open" in known else None
        self.due_ms: int | None = known.get("due_ms")
        """The last event's time: when the watermark is there, as many days later, the group is forgotten."""

    def text(self) -> str | None:
        """All of it; None where there is nothing."""
        if self.due_ms is None:
            return None
        known = {"members": self._members, "owners": self._owners, "came": self._joined, "due_ms": self.due_ms}
        if self._open is not None:
            known["open"] = asdict(self._open)
        return json.dumps(known)

    def see(self, events: Iterable[GroupEvent]) -> Iterator[tuple[object, ...]]:
        """The rows of the generations that are over with these events, which come in order."""
        for event in events:
            self.due_ms = event.time_ms
            ended = self._observe(event)
            if ended is not None:
                yield astuple(ended)

    def _observe(self, event: GroupEvent) -> Generation | None:
        match event.kind:
            case "member_joined" | "member_replaced":
                self._enter(event)
            case "rebalance_started":
                return self._begin(event)
            case "barrier_joined":
                self._join(event)
            case "assignment_stored":
                self._assign(event)
            case "stable":
                return self._end("stable", event.time_ms)
            case "emptied":
                return self._empty(event)
            case "deleted":
                self._forget()
        return None

    def pass_time(self, time_ms: int) -> Iterator[tuple[object, ...]]:
        """No events for a long time: drop the state."""
        if self.due_ms is not None and time_ms >= self.due_ms:
            self._forget()
        yield from ()

    def _forget(self) -> None:
        self._members = self._owners = self._open = self.due_ms = None
        self._joined = []

    def _enter(self, event: GroupEvent) -> None:
        self._joined = [event.time_ms, event.member]
        if event.kind == "member_replaced" and self._owners:
            old, new = _token(event.detail.partition(" ")[2]), _token(event.member)
            self._owners = {
                topic: "".join(new if one == old else one for one in _tokens(text))
                for topic, text in self._owners.items()
            }
        if self._open is not None and self._open.generation is None and self._open.first_join_ms is None:
            self._open.first_join_ms = event.time_ms

    def _begin(self, event: GroupEvent) -> Generation | None:
        outcome = "not_synced" if self._open is not None and self._open.assigned_ms is not None else "not_assigned"
        before = self._end(outcome, event.time_ms)
        joined_ms, member = self._joined or (None, None)
        self._open = Generation(
            cause=event.cause or None,
            member=event.who or None,
            reason=event.reason or None,
            started_ms=event.time_ms,
            first_join_ms=joined_ms if member == event.member else None,  # type: ignore[arg-type]
            members_before=self._members,
        )
        self._joined = []
        return before

    def _join(self, event: GroupEvent) -> None:
        this = self._open = self._open or Generation()  # its begin may have been cut from the stream
        this.generation, this.joined_ms = event.generation, event.time_ms
        this.leader, this.assignor, this.members_after = event.member, event.detail, event.members

    def _assign(self, event: GroupEvent) -> None:
        owners = parse_owners(event.detail)
        if self._open is not None:
            self._open.assigned_ms, self._open.moved_partitions = event.time_ms, moved(self._owners, owners)
        self._owners = owners

    def _empty(self, event: GroupEvent) -> Generation | None:
        self._open = self._open or Generation()
        self._open.generation, self._open.joined_ms, self._open.members_after = event.generation, event.time_ms, 0
        self._open.moved_partitions, self._owners = moved(self._owners, {}), {}
        return self._end("emptied", event.time_ms)

    def _end(self, outcome: str, time_ms: int) -> Generation | None:
        this, self._open = self._open, None
        if this is None or this.generation is None:
            return None
        this.outcome, self._members = outcome, this.members_after
        if outcome == "stable":
            this.synced_ms = time_ms
        if this.started_ms is not None:
            this.duration_ms = max(time_ms - this.started_ms, 0)
        return this


def parse_owners(text: str) -> Owners | None:
    """The partitions of each member in the event `assignment_stored`; None if it has none."""
    if text == _NOTHING:
        return {}
    found = {topic: tokens for topic, _, tokens in (item.rpartition("=") for item in text.split())}
    return found if found and all(topic and not len(tokens) % _TOKEN for topic, tokens in found.items()) else None


def moved(before: Owners | None, after: Owners | None) -> int | None:
    """Partitions whose owner is another, or nobody, now; those that had none before are not among them.

    So a partition that is taken from one member in one generation and given to another in the next (cooperative)
    moves once. None where either is not known.
    """
    if before is None or after is None:
        return None
    count = 0
    for topic, text in before.items():
        now = _tokens(after.get(topic, ""))
        for index, owner in enumerate(_tokens(text)):
            count += owner != _NOBODY and (index >= len(now) or now[index] != owner)
    return count


def _tokens(text: str) -> list[str]:
    return [text[start : start + _TOKEN] for start in range(0, len(text), _TOKEN)]


def _token(member_id: str) -> str:
    return b64encode(crc32(member_id.encode()).to_bytes(4)[1:]).decode()
