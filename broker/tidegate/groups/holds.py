"""Heartbeats whose answers are kept back until there is something to say.

Members learn of a rebalance from the answer to a heartbeat, and send one every 3 s by default: nearly all of a
rebalance is waiting for that. So the heartbeat renews its session as it arrives, as always, and where the answer is
NONE it is kept back: until the group starts to rebalance, the connection brings another request, or the hold ends.

Which member can bear that for how long is `pace`'s to say, and who is asked at all `bears_holds`'s. What is kept
here may vanish: the member hears nothing, and asks again elsewhere. A lost wake-up costs no more than a heartbeat
that was not held, because a hold ends before the next one is due.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import json
from collections.abc import Callable
from typing import Any, Final

from tidegate.groups.heartbeats import Heartbeats, OnCode
from tidegate.groups.model import Membership
from tidegate.groups.pace import Pace
from tidegate.groups.wakes import forget_groups, hear_groups
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.store import Store
from tidegate.telemetry.metrics import metrics

_NONE: Final = 0
_CONSUMER: Final = "consumer"
_STREAMS: Final = "stream"
_TOGETHER_S: Final = 0.005
"""Holds that end within so short a time end together."""
_HURT_MAX: Final = 10_000
"""Members remembered because they closed their connection during a hold."""

_SOFTWARE: Final = frozenset({"apache-kafka-java", "kafka-python", "librdkafka"})
_BINDINGS: Final = ("confluent-kafka-",)
"""Software that names itself, with librdkafka inside."""
_CLIENT_IDS: Final = ("aiokafka-",)
"""Clients that do not name their software, but themselves where their user does not."""


def bears_holds(software_name: str, client_id: str) -> bool:
    """Whether a client of this name (ApiVersions v3, KIP-511) may be tried at all.

    KafkaJS and sarama consume nothing while a heartbeat waits, franz-go's timer runs from the answer; of unknown
    software nobody knows.
    """
    if software_name == "unknown":
        return client_id.startswith(_CLIENT_IDS)
    return software_name in _SOFTWARE or software_name.startswith(_BINDINGS)


class Released(enum.StrEnum):
    """Why an answer was kept back no longer."""

    REBALANCE = "rebalance"
    """The group or the member changed: the answer is what the heartbeat script says now."""
    REQUEST = "request"
    """The connection brought another request: nothing waits behind a heartbeat."""
    ENDED = "ended"
    """As long as the member can bear it."""
    LEAVING = "leaving"
    """The broker closes the connection: it drains, or the connection is old, or the lease was lost."""
    CLOSED = "closed"
    """The client is gone."""


class Holder:
    """One connection's member and its heartbeat, from its arrival until it is answered."""

    __slots__ = (
        "_asked",
        "_holds",
        "_hurried",
        "_known",
        "_missed",
        "_on_code",
        "_since_s",
        "kept",
        "keys",
        "membership",
        "pace",
        "serial",
        "until_s",
    )

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self.keys: GroupKeys | None = None
        self.membership: Membership | None = None
        self.pace = Pace(holds.hold_s_max)
        self.serial = 0
        self.until_s = 0.0
        self._on_code: OnCode | None = None
        self._since_s = 0.0
        self._hurried: Released | None = None
        self._asked = self._missed = self._known = False
        self.kept = False
        """Whether the answer is there and kept back."""

    def beat(self, keys: GroupKeys, membership: Membership, on_code: OnCode) -> None:
        """A heartbeat came; `on_code` is told its code, now or later."""
        self.release(Released.REQUEST)
        if self._asked:  # two at a time: the first is answered as soon as its code is there
            self._holds.heartbeats.add(keys, membership, on_code)
            return
        now_s, before = self._holds.now_s(), self.membership
        if before is None or before.member_id != membership.member_id:
            self.pace, self._known = Pace(self._holds.hold_s_max), self._holds.hurt(membership.member_id)
        self.keys, self.membership, self._on_code = keys, membership, on_code
        self._hurried, self._missed, self._since_s = None, False, now_s
        self.pace.arrived(now_s)
        hold_s = self.pace.hold_s()
        self.until_s = now_s + hold_s if hold_s else 0.0
        if hold_s:
            self._holds.hear(self)  # before the script runs, so that no wake-up is lost
        elif not self._known:
            self._known = True
            self._holds.read(self)
        self._ask()

    def rejoins(self, session_s: float) -> None:
        """Its member joins again, perhaps with another session timeout; when it heartbeats next says nothing."""
        self.pace.interrupted()
        if self.pace.session_s is not None:
            self.pace.session_s = session_s

    def wake(self) -> None:
        """Something happened to the group: ask what the heartbeat's code is now."""
        if self._asked:
            self._missed = True
        elif self.kept:
            self._ask()

    def release(self, reason: Released) -> None:
        """Keep the answer back no longer."""
        if self.kept and reason is Released.CLOSED:
            self._holds.note_hurt(self)
        if self._asked:
            self._hurried = reason
        elif self.kept:
            self._answer(_NONE, reason)

    def _ask(self) -> None:
        assert self.keys is not None
        assert self.membership is not None
        self._asked = True
        self._holds.heartbeats.add(self.keys, self.membership, self._judged)

    def _judged(self, code: int) -> None:
        self._asked = False
        if code != _NONE or not self.until_s or self._hurried:
            self._answer(code, Released.REBALANCE if code else self._hurried)
        elif self._missed:
            self._missed = False
            self._ask()
        elif not self.kept:
            self.kept = True
            self._holds.keep(self)

    def _answer(self, code: int, reason: Released | None) -> None:
        now_s, on_code = self._holds.now_s(), self._on_code
        if self.kept and reason is not None:
            metrics.hold(reason.value).observe(now_s - self._since_s)
        if self.until_s:
            self._holds.drop(self)
        self.kept, self.until_s, self._on_code = False, 0.0, None
        if code == _NONE:
            self.pace.answered(now_s)
        else:
            self.pace.interrupted()
        if on_code is not None:
            on_code(code)


class Holds:
    """The kept-back heartbeats of one broker: by group for wake-ups, by time for their ends."""

    def __init__(self, store: Store, settings: Settings, heartbeats: Heartbeats) -> None:
        self.heartbeats = heartbeats
        self.hold_s_max = settings.group_heartbeat_hold_max_ms / 1000
        self._store = store
        self._groups: dict[str, dict[Holder, None]] = {}
        self._ends: list[tuple[float, int, Holder]] = []
        self._hurt: dict[str, None] = {}
        self._missed = False
        self._serial = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._loop = asyncio.get_event_loop()
        self.now_s: Callable[[], float] = self._loop.time

    # -- life

    async def start(self) -> None:
        """Hear every shard's wake channel."""
        await hear_groups(self._store, self._on_wake)

    async def close(self) -> None:
        """Keep nothing back any more."""
        forget_groups(self._store, self._on_wake)
        self.release_all()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def held(self) -> int:
        """Heartbeats that wait for their code or for the end of their hold."""
        return sum(map(len, self._groups.values()))

    def release_all(self) -> None:
        """Answer everything: this broker's lease is lost, or the broker stops."""
        for holders in list(self._groups.values()):
            for holder in list(holders):
                holder.release(Released.LEAVING)

    # -- what a holder does

    def hear(self, holder: Holder) -> None:
        """Wake a holder with its group from now on."""
        assert holder.keys is not None
        self._groups.setdefault(holder.keys.ref, {})[holder] = None

    def drop(self, holder: Holder) -> None:
        """It is answered."""
        assert holder.keys is not None
        holder.serial = 0
        holders = self._groups[holder.keys.ref]
        holders.pop(holder, None)
        if not holders:
            del self._groups[holder.keys.ref]

    def keep(self, holder: Holder) -> None:
        """Its code is NONE: let it wait until its hold ends."""
        self._serial += 1
        holder.serial = self._serial
        heapq.heappush(self._ends, (holder.until_s, holder.serial, holder))
        if self._timer is None or self._timer_s > holder.until_s + _TOGETHER_S:
            self._look_at_next()

    def note_hurt(self, holder: Holder) -> None:
        """Its client closed the connection during a hold: perhaps its requests time out sooner than one ends."""
        assert holder.membership is not None
        self._hurt[holder.membership.member_id] = None
        if len(self._hurt) > _HURT_MAX:
            del self._hurt[next(iter(self._hurt))]

    def hurt(self, member_id: str) -> bool:
        """Whether a member closed a connection during a hold: it is not held again, nor is its record read."""
        return member_id in self._hurt

    def read(self, holder: Holder) -> None:
        """Learn what the group knows of a member: holds want a session timeout, and a plain consumer."""
        keys, membership, pace = holder.keys, holder.membership, holder.pace
        assert keys is not None
        assert membership is not None
        found: list[Any] = []

        def answered(reply: Any) -> None:
            found.append(reply)
            if len(found) == 2:
                pace.session_s = _session_s(*found)

        member: list[Arg] = ["HGET", keys.members, membership.member_id]
        self._store.send_in_order((member, answered), (["HGET", keys.group, "protocol_type"], answered))

    # -- waking and ending

    def _on_wake(self, payload: bytes | None) -> None:
        if payload is not None:
            for holder in list(self._groups.get(payload.rsplit(b":", 3)[0].decode(), ())):
                holder.wake()
        elif not self._missed:  # every channel says so when the subscription was lost for a while
            self._missed = True
            self._loop.call_soon(self._wake_all)

    def _wake_all(self) -> None:
        self._missed = False
        for holder in [holder for holders in self._groups.values() for holder in holders]:
            holder.wake()

    def _look_at_next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ends:
            self._timer_s = self._ends[0][0] + _TOGETHER_S
            self._timer = self._loop.call_at(self._timer_s, self._end_due)

    def _end_due(self) -> None:
        self._timer = None
        now_s, ends = self.now_s(), self._ends
        while ends and ends[0][0] <= now_s:
            _, serial, holder = heapq.heappop(ends)
            if holder.serial == serial:
                holder.release(Released.ENDED)
        self._look_at_next()


def _session_s(record: Any, protocol_type: Any) -> float | None:
    """The session timeout of a consumer, s; None where its heartbeats are not to be held.

    Static members and those of Kafka Streams go without leaving: nothing releases the heartbeat, and Java's `close`
    waits for its answer.
    """
    if not isinstance(record, bytes) or protocol_type != _CONSUMER.encode():
        return None
    member = json.loads(record)
    if member["instance_id"] or _STREAMS in member["protocols"]:
        return None
    return float(member["session_timeout_ms"]) / 1000
