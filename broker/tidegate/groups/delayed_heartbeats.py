"""Delayed heartbeats: a heartbeat's NONE answer is withheld so that a rebalance can be reported at once.

Members learn of a rebalance from the answer to a heartbeat, and send one every 3 s by default; most of a rebalance is
spent waiting for those heartbeats. The heartbeat renews its session on arrival, as always. An answer of NONE is delayed
until the group starts to rebalance, the connection sends another request, or the delay ends.

`interval_estimator` computes how long a member tolerates the delay, `supports_delayed_heartbeats` decides from the
client's name whether to try at all. A delayed answer may be lost with the broker: the member then times out the request
and retries on another broker. A lost notification costs at most one heartbeat interval, because a delay ends before the
next heartbeat is due.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import json
from collections.abc import Callable
from typing import Any, Final

from tidegate.errors import StoreUnavailable
from tidegate.groups.group_changes import subscribe_group_changes, unsubscribe_group_changes
from tidegate.groups.heartbeat_interval import HeartbeatIntervalEstimator
from tidegate.groups.heartbeats import Heartbeats, OnCode
from tidegate.groups.model import MemberRef
from tidegate.settings import Settings
from tidegate.store.batching import fail_waiter
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.store import Store
from tidegate.telemetry.metrics import metrics

_NONE: Final = 0
_UNAVAILABLE: Final = StoreUnavailable.code.value
_CONSUMER: Final = "consumer"
_STREAMS: Final = "stream"
_TOGETHER_S: Final = 0.005
"""Delays that end within this time are ended by one timer, s."""
_EXCLUDED_MAX: Final = 10_000
"""Limit of remembered members that closed their connection during a delay."""

_SOFTWARE: Final = frozenset({"apache-kafka-java", "kafka-python", "librdkafka"})
_BINDINGS: Final = ("confluent-kafka-",)
"""Software names (KIP-511) of clients that wrap librdkafka."""
_CLIENT_IDS: Final = ("aiokafka-",)
"""Default client ids of clients that send no software name."""


def supports_delayed_heartbeats(software_name: str, client_id: str) -> bool:
    """Whether heartbeats of a client with this name (ApiVersions v3, KIP-511) may be delayed.

    KafkaJS and sarama stop consuming while a heartbeat is outstanding; franz-go starts its timer at the answer. Unknown
    software is never delayed.
    """
    if software_name == "unknown":
        return client_id.startswith(_CLIENT_IDS)
    return software_name in _SOFTWARE or software_name.startswith(_BINDINGS)


class Released(enum.StrEnum):
    """Why a delayed answer was sent."""

    REBALANCE = "rebalance"
    """The group or the member changed: the answer is the code that the heartbeat script returns now."""
    REQUEST = "request"
    """The connection sent another request, which must not wait behind a heartbeat."""
    ENDED = "ended"
    """The longest delay that the member tolerates has passed."""
    DRAINING = "leaving"
    """The broker closes the connection: it drains, the connection is too old, or the broker's lease was lost."""
    CLOSED = "closed"
    """The client closed the connection."""


class DelayedHeartbeat:
    """The member of one connection and its outstanding heartbeat."""

    __slots__ = (
        "_asked",
        "_delayed_heartbeats",
        "_known",
        "_missed",
        "_on_code",
        "_release_early",
        "_since_s",
        "interval_estimator",
        "is_delayed",
        "keys",
        "member_ref",
        "serial",
        "until_s",
    )

    def __init__(self, delayed_heartbeats: DelayedHeartbeats) -> None:
        self._delayed_heartbeats = delayed_heartbeats
        self.keys: GroupKeys | None = None
        self.member_ref: MemberRef | None = None
        self.interval_estimator = HeartbeatIntervalEstimator(delayed_heartbeats.delay_s_max)
        self.serial = 0
        self.until_s = 0.0
        self._on_code: OnCode | None = None
        self._since_s = 0.0
        self._release_early: Released | None = None
        self._asked = self._missed = self._known = False
        self.is_delayed = False
        """Whether the answer is known and delayed."""

    def heartbeat(self, keys: GroupKeys, member_ref: MemberRef, on_code: OnCode) -> None:
        """Process a heartbeat; calls `on_code` with its code, now or after the delay."""
        self.release(Released.REQUEST)
        if self._asked:  # pipelined heartbeats: the first is answered as soon as its code is known
            self._delayed_heartbeats.heartbeats.answer(keys, member_ref, on_code)
            return
        now_s, before = self._delayed_heartbeats.now_s(), self.member_ref
        if before is None or before.member_id != member_ref.member_id:
            self.interval_estimator, self._known = (
                HeartbeatIntervalEstimator(self._delayed_heartbeats.delay_s_max),
                self._delayed_heartbeats.is_excluded(member_ref.member_id),
            )
        self.keys, self.member_ref, self._on_code = keys, member_ref, on_code
        self._release_early, self._missed, self._since_s = None, False, now_s
        self.interval_estimator.arrived(now_s)
        delay_s = self.interval_estimator.delay_s()
        self.until_s = now_s + delay_s if delay_s else 0.0
        if delay_s:
            self._delayed_heartbeats.subscribe(self)  # before the script runs, so that no notification is lost
        elif not self._known:
            self._known = True
            self._delayed_heartbeats.read(self)
        self._asked = True
        self._delayed_heartbeats.heartbeats.answer(keys, member_ref, self._judged)

    def rejoins(self, session_s: float) -> None:
        """The member rejoins, possibly with another session timeout; its next interval is not measured."""
        self.interval_estimator.interrupted()
        if self.interval_estimator.session_s is not None:
            self.interval_estimator.session_s = session_s

    def wake(self) -> None:
        """The group changed: request the heartbeat's code again."""
        if self._asked:
            self._missed = True
        elif self.is_delayed:
            self._ask()

    def release(self, reason: Released) -> None:
        """Send the delayed answer."""
        if self.is_delayed and reason is Released.CLOSED:
            self._delayed_heartbeats.exclude(self)
        if self._asked:
            self._release_early = reason
        elif self.is_delayed:
            self._answer(_NONE, reason)

    # -- called by the connection

    def on_next_request(self) -> None:
        """As `release`, without its call: it runs before every request."""
        if self._asked:
            self._release_early = Released.REQUEST
        elif self.is_delayed:
            self._answer(_NONE, Released.REQUEST)

    def on_drain(self) -> None:
        """The broker closes the connection."""
        self.release(Released.DRAINING)

    def on_closed(self) -> None:
        """The client closed the connection."""
        self.release(Released.CLOSED)

    # -- the heartbeat's code

    def _ask(self) -> None:
        assert self.keys is not None
        assert self.member_ref is not None
        self._asked = True
        self._delayed_heartbeats.heartbeats.add(self.keys, self.member_ref, self._judged)

    def _judged(self, code: int) -> None:
        self._asked = False
        if code != _NONE or not self.until_s or self._release_early:
            self._answer(code, Released.REBALANCE if code else self._release_early)
        elif self._missed:
            self._missed = False
            self._ask()
        elif not self.is_delayed:
            self.is_delayed = True
            self._delayed_heartbeats.keep(self)

    def _answer(self, code: int, reason: Released | None) -> None:
        now_s, on_code = self._delayed_heartbeats.now_s(), self._on_code
        if self.is_delayed and reason is not None:
            metrics.hold(reason.value).observe(now_s - self._since_s)
        if self.until_s:
            self._delayed_heartbeats.drop(self)
        self.is_delayed, self.until_s, self._on_code = False, 0.0, None
        if code == _NONE:
            self.interval_estimator.answered(now_s)
        else:
            self.interval_estimator.interrupted()
        if on_code is not None:
            try:
                on_code(code)
            except Exception:  # noqa: BLE001 - logged; the other heartbeats are released
                fail_waiter(on_code, _UNAVAILABLE)


class DelayedHeartbeats:
    """The delayed heartbeats of one broker: by group for notifications, by time for the ends of their delays."""

    def __init__(self, store: Store, settings: Settings, heartbeats: Heartbeats) -> None:
        self.heartbeats = heartbeats
        self.delay_s_max = settings.heartbeat_delay_max_ms / 1000
        self._store = store
        self._groups: dict[str, dict[DelayedHeartbeat, None]] = {}
        self._ends: list[tuple[float, int, DelayedHeartbeat]] = []
        self._excluded: dict[str, None] = {}
        self._missed = False
        self._serial = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._loop = asyncio.get_event_loop()
        self.now_s: Callable[[], float] = self._loop.time

    # -- lifecycle

    async def start(self) -> None:
        """Subscribe to the wake channels of all shards."""
        await subscribe_group_changes(self._store, self._on_group_change)

    async def close(self) -> None:
        """Release all delayed heartbeats and unsubscribe."""
        unsubscribe_group_changes(self._store, self._on_group_change)
        self.release_all()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def held(self) -> int:
        """Number of heartbeats that wait for their code or for the end of their delay."""
        return sum(map(len, self._groups.values()))

    def release_all(self) -> None:
        """Release every delayed heartbeat: the broker's lease is lost, or the broker stops."""
        for of_group in list(self._groups.values()):
            for delayed_heartbeat in list(of_group):
                delayed_heartbeat.release(Released.DRAINING)

    # -- called by DelayedHeartbeat

    def subscribe(self, delayed_heartbeat: DelayedHeartbeat) -> None:
        """Wake this heartbeat when its group changes."""
        assert delayed_heartbeat.keys is not None
        self._groups.setdefault(delayed_heartbeat.keys.ref, {})[delayed_heartbeat] = None

    def drop(self, delayed_heartbeat: DelayedHeartbeat) -> None:
        """Remove an answered heartbeat."""
        assert delayed_heartbeat.keys is not None
        delayed_heartbeat.serial = 0
        of_group = self._groups[delayed_heartbeat.keys.ref]
        of_group.pop(delayed_heartbeat, None)
        if not of_group:
            del self._groups[delayed_heartbeat.keys.ref]

    def keep(self, delayed_heartbeat: DelayedHeartbeat) -> None:
        """Delay the answer of a heartbeat whose code is NONE."""
        self._serial += 1
        delayed_heartbeat.serial = self._serial
        heapq.heappush(self._ends, (delayed_heartbeat.until_s, delayed_heartbeat.serial, delayed_heartbeat))
        if self._timer is None or self._timer_s > delayed_heartbeat.until_s + _TOGETHER_S:
            self._read_next()

    def exclude(self, delayed_heartbeat: DelayedHeartbeat) -> None:
        """Stop delaying a member that closed its connection during a delay: its request timeout may be shorter."""
        assert delayed_heartbeat.member_ref is not None
        self._excluded[delayed_heartbeat.member_ref.member_id] = None
        if len(self._excluded) > _EXCLUDED_MAX:
            del self._excluded[next(iter(self._excluded))]

    def is_excluded(self, member_id: str) -> bool:
        """Whether a member closed a connection during a delay; its answers are then not delayed."""
        return member_id in self._excluded

    def read(self, delayed_heartbeat: DelayedHeartbeat) -> None:
        """Read the member's session timeout and the group's protocol type; only plain consumers are delayed."""
        keys, member_ref, interval_estimator = (
            delayed_heartbeat.keys,
            delayed_heartbeat.member_ref,
            delayed_heartbeat.interval_estimator,
        )
        assert keys is not None
        assert member_ref is not None
        found: list[Any] = []

        def answered(reply: Any) -> None:
            found.append(reply)
            if len(found) == 2:
                interval_estimator.session_s = _session_s(*found)

        member: list[Arg] = ["HGET", keys.members, member_ref.member_id]
        self._store.send_in_order((member, answered), (["HGET", keys.group, "protocol_type"], answered))

    # -- notifications and timers

    def _on_group_change(self, payload: bytes | None) -> None:
        if payload is not None:
            for delayed_heartbeat in list(self._groups.get(payload.rsplit(b":", 3)[0].decode(), ())):
                delayed_heartbeat.wake()
        elif not self._missed:  # after a lost subscription every channel reports it
            self._missed = True
            self._loop.call_soon(self._wake_all)

    def _wake_all(self) -> None:
        self._missed = False
        for delayed_heartbeat in [
            delayed_heartbeat for of_group in self._groups.values() for delayed_heartbeat in of_group
        ]:
            delayed_heartbeat.wake()

    def _read_next(self) -> None:
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
            _, serial, delayed_heartbeat = heapq.heappop(ends)
            if delayed_heartbeat.serial == serial:
                delayed_heartbeat.release(Released.ENDED)
        self._read_next()


def _session_s(record: Any, protocol_type: Any) -> float | None:
    """The session timeout of a consumer, s; None if its heartbeats must not be delayed.

    Static members and Kafka Streams members close without LeaveGroup, so no request releases the heartbeat, and Java's
    `close` waits for its answer.
    """
    if not isinstance(record, bytes) or protocol_type != _CONSUMER.encode():
        return None
    member = json.loads(record)
    if member["instance_id"] or _STREAMS in member["protocols"]:
        return None
    return float(member["session_timeout_ms"]) / 1000
