"""The history of a group, read from its shard's event stream: events, and rebalances with their causes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tidegate.diagnosis.formatting import format_member
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

EVENTS_READ_MAX: Final = 10_000
_PAGE: Final = 500

_MEMBERSHIP_EVENTS: Final = frozenset(
    {"member_joined", "member_left", "member_removed", "member_expired", "member_evicted", "member_replaced"}
)
SIMPLE: Final = "simple"
"""The assignor of share groups, whose members have their assignment at their next heartbeat."""
_BROKER_ASSIGNORS: Final = frozenset({"uniform", "range", SIMPLE})
_CLIENTS_HABIT: Final = "need to re-join with the given member-id"
"""Java's reason in the second round trip of every first join (KIP-394); no reason given by a user."""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the stream; docs/explain.md describes the fields of each kind."""

    time_ms: int
    generation: int
    kind: str
    cause: str = ""
    member_id: str = ""
    instance_id: str = ""
    client_id: str = ""
    host: str = ""
    reason: str = ""
    detail: str = ""
    members: int = 0
    broker: str = ""
    duration_ms: int = 0

    @property
    def who(self) -> str:
        """The member for display."""
        return format_member(self.client_id, self.host, self.instance_id)

    @property
    def key(self) -> tuple[str, str]:
        """Identity of a member across member ids: its instance id, otherwise its client id and host."""
        return ("instance", self.instance_id) if self.instance_id else (self.client_id, self.host)

    @property
    def client_reason(self) -> str:
        """The client's own reason; "" for the standard text of KIP-394."""
        return "" if self.reason.startswith(_CLIENTS_HABIT) else self.reason


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One join phase and its outcome. Durations are None for steps that were not reached."""

    started: Event
    trigger: Event | None
    """The event of the member that joined or left, if one started the rebalance."""
    generation: int | None = None
    """The generation that it opened; None while it is open, or if another rebalance started first."""
    leader: str = ""
    protocol: str = ""
    members: int | None = None
    joining_ms: int | None = None
    syncing_ms: int | None = None
    stable_ms: int | None = None
    """From its start until every member had synced."""
    outcome: str = "joining"
    """`joining`, `syncing`, `assigned` (but not all members synced), `stable`, `emptied`, `interrupted`."""
    lost: tuple[Event, ...] = ()
    """Members that were removed during the rebalance."""

    @property
    def cause(self) -> str:
        """The cause as text."""
        return cause_in_words(self.started, self.trigger)


def event_of(fields: Mapping[str, str]) -> Event:
    """An event from its stream fields; fields that an older broker did not write are empty."""
    text = {name: fields.get(name, "") for name in ("kind", "cause", "instance_id", "client_id", "host")}
    return Event(
        int(fields["time"]),
        int(fields["generation"]),
        member_id=fields.get("member", ""),
        reason=fields.get("reason", ""),
        detail=fields.get("detail", ""),
        broker=fields.get("broker", ""),
        members=int(fields.get("members") or 0),
        duration_ms=int(fields.get("duration_ms") or 0),
        **text,
    )


async def read_shard(
    store: Store, stream: str, count_max: int = EVENTS_READ_MAX, span_ms: int | None = None, ref: str | None = None
) -> list[tuple[str, Event]]:
    """The newest events of a shard with their groups' names, oldest first; `span_ms` limits their age before the
    newest.

    `ref` selects one group; `count_max` counts the other groups' events as well. Raises StoreUnavailable.
    """
    found: list[tuple[str, Event]] = []
    end, left = "+", count_max
    parse = partial(_named_event, None if ref is None else ref.encode())
    while left:
        page: list[tuple[bytes, list[bytes]]] = await store.read(
            "XREVRANGE", stream, end, "-", "COUNT", min(_PAGE, left)
        )
        left -= len(page)
        found += store.foreign_entries.leave_out(stream, page, parse)
        past = span_ms is not None and found and found[-1][1].time_ms < found[0][1].time_ms - span_ms
        if len(page) < _PAGE or past:
            break
        end = "(" + page[-1][0].decode()
    return found[::-1]


def _named_event(group: bytes | None, _: bytes, values: Sequence[bytes]) -> tuple[str, Event] | None:
    """An entry's group and event; None if it is of another group than the one that is asked for."""
    if group is not None and values[values.index(b"group") + 1] != group:
        return None
    texts = [value.decode("utf-8", "replace") for value in values]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    return fields["group"], event_of(fields)


async def read_events(store: Store, keys: GroupKeys) -> list[Event]:
    """The stored events of a group, oldest first. Raises StoreUnavailable."""
    return [event for _, event in await read_shard(store, keys.shard_keys.events, ref=keys.ref)]


@dataclass(slots=True)
class _RebalanceFolder:
    """State while events are folded into rebalances."""

    done: list[Rebalance] = field(default_factory=list)
    open: Rebalance | None = None
    last_change: Event | None = None

    def close(self, **outcome: object) -> None:
        if self.open is not None:
            self.done.append(replace(self.open, **outcome))  # type: ignore[arg-type]
            self.open = None

    def observe(self, event: Event) -> None:
        if event.kind in _MEMBERSHIP_EVENTS:
            self.last_change = event
            if event.kind in ("member_expired", "member_evicted") and self.open is not None:
                self.open = replace(self.open, lost=(*self.open.lost, event))
        elif event.kind == "rebalance_started":
            self._begin(event)
        elif event.kind == "subscription_changed":
            self.last_change = event
        elif event.kind == "assignment_stored" and event.detail in _BROKER_ASSIGNORS:
            self._assigned_by_broker(event)
        elif self.open is not None:
            self._go_on(self.open, event)

    def _begin(self, event: Event) -> None:
        if self.open is not None and self.open.outcome != "stable":
            self.close(outcome="interrupted" if self.open.outcome != "assigned" else "assigned")
        self.close()
        change = self.last_change
        trigger = change if change is not None and change.member_id == event.member_id else None
        self.open, self.last_change = Rebalance(event, trigger), None

    def _assigned_by_broker(self, event: Event) -> None:
        """A new target assignment of a KIP-848 group or share group, which has no join phase."""
        if self.open is None or self.open.outcome != "joining":
            change = self.last_change or event
            cause = change.cause if change.kind == "member_expired" else change.kind
            started = replace(change, kind="rebalance_started", cause="" if change is event else cause, duration_ms=0)
            self._begin(replace(started, generation=max(event.generation - 1, 0)))
        assert self.open is not None
        opened = {"generation": event.generation, "protocol": event.detail, "members": event.members}
        outcome = "stable" if event.detail == SIMPLE else "assigned"
        stable_ms = 0 if outcome == "stable" else None
        self.open = replace(self.open, outcome=outcome, stable_ms=stable_ms, **opened)  # type: ignore[arg-type]

    def _go_on(self, this: Rebalance, event: Event) -> None:
        took = event.time_ms - this.started.time_ms
        if event.kind == "barrier_joined":
            opened = {"generation": event.generation, "leader": event.member_id, "protocol": event.detail}
            self.open = replace(
                this,
                members=event.members,
                joining_ms=event.duration_ms,
                outcome="syncing",
                **opened,  # type: ignore[arg-type]
            )
        elif event.kind == "assignment_stored":
            self.open = replace(this, syncing_ms=event.duration_ms, outcome="assigned")
        elif event.kind == "stable":
            self.open = replace(this, stable_ms=took, outcome="stable")
        elif event.kind == "emptied":
            self.close(generation=event.generation, members=0, joining_ms=event.duration_ms, outcome="emptied")


def rebalances(events: Iterable[Event]) -> list[Rebalance]:
    """The rebalances of one group's events, oldest first; the last may still be open."""
    folder = _RebalanceFolder()
    for event in events:
        folder.observe(event)
    folder.close()
    return folder.done


CAUSES: Final = {
    "member_joined": "{who} joined",
    "member_left": "{who} left by itself",
    "member_removed": "{who} was removed",
    "session_timed_out": "{who} sent no heartbeat for its session timeout",
    "did_not_sync": "{who} did not sync in time",
    "subscription_changed": "{who} rejoined with another subscription, or gave up partitions (cooperative)",
    "revocation_timed_out": "{who} did not confirm a revocation in time",
    "no_successor": "{who} left, and no new member took its place in time",
    "member_replaced": "{who} returned",
    "topics_changed": "the subscribed topics changed",
    "topics_or_assignor_changed": "the subscribed topics or the preferred assignor changed",
    "members_lost": "the members are missing in Redis: a key was removed by hand, or writes were lost",
    "assignments_lost": "the assignments are missing in Redis: a key was removed by hand, or writes were lost",
    "leader_rejoined": "the leader, {who}, asked for it: topics or partitions changed, or it started over",
    "last_consumer_left": "the last member with group.protocol=consumer left: the group is a classic one again",
    "static_member_restarted": "{who} restarted and offers something else, or came while the group was not stable",
}


def cause_in_words(started: Event, trigger: Event | None = None) -> str:
    """The cause of a rebalance as text, with the client's reason."""
    words = CAUSES.get(started.cause, started.cause.replace("_", " ") or "unknown").format(who=started.who)
    if trigger is not None and trigger.kind == "member_removed":
        host, _, client_id = trigger.detail.partition(" ")
        words += f" by {format_member(client_id, host)}"
    return f'{words}, saying "{started.client_reason}"' if started.client_reason else words


_KINDS: Final = {
    "created": "the group was created; {who} asked first",
    "member_joined": "{who} joined",
    "member_left": "{who} left by itself",
    "member_removed": "{who} was removed by somebody else",
    "member_evicted": "{who} was refused: the group is full",
    "member_replaced": "{who} restarted and took over its membership",
    "member_fenced": "{who} was fenced: another process has its instance id",
    "lease_lost": "the broker that held the request of {who} is gone",
    "barrier_joined": "all joined: generation {generation} opens with {members} members",
    "assignment_stored": "the leader submitted the assignment",
    "subscription_changed": "{who} subscribed to other topics",
    "revocation_requested": "{who} has to give up {detail} partitions",
    "shutdown_requested": "{who} asked all members to shut down",
    "stable": "every member has its assignment",
    "emptied": "nobody is left",
    "converted": "the group changed its protocol online: its type is {detail} from now on",
    "offsets_reset": "{who} reset offsets: {detail}",
    "offsets_deleted": "offsets were deleted: {detail}",
    "offsets_expired": "offsets passed their retention: {detail}",
    "offsets_lost": "committed offsets are missing in Redis: a key was removed by hand, or writes were lost",
    "deleted": "the group was deleted",
}

_EXPIRED: Final = {
    "session_timed_out": "{who} sent no heartbeat for its session timeout and was removed",
    "revocation_timed_out": "{who} did not confirm a revocation in time and was removed",
    "no_successor": "no new member took the place of {who} in time",
    "did_not_rejoin": "{who} did not rejoin in time and was removed",
    "did_not_sync": "{who} did not sync in time and was removed",
    "first_join_unanswered": "{who} waited too long for its first join and was removed",
}


def describe_event(event: Event) -> str:
    """An event as a sentence."""
    if event.kind == "rebalance_started":
        return f"a rebalance began: {cause_in_words(event)}"
    form = _EXPIRED.get(event.cause) if event.kind == "member_expired" else _KINDS.get(event.kind)
    if form is None:
        return event.kind.replace("_", " ")
    words = form.format(who=event.who, generation=event.generation, members=event.members, detail=event.detail)
    return f'{words}, saying "{event.client_reason}"' if event.client_reason else words


def since(events: Sequence[Event], time_ms: int) -> list[Event]:
    """The events at or after a time."""
    return [event for event in events if event.time_ms >= time_ms]
