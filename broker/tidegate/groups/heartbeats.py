"""Heartbeats: answered from snapshots where those are proven current, otherwise by the heartbeat script.

The script takes all heartbeats of an event-loop tick (in Redis Cluster those of a shard). A heartbeat that was answered
from a snapshot renews its session by the same script soon, together with others (`session_renewals`):
the script judges the renewal as it judges any heartbeat, so one that arrives after the session expired renews nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Final

from tidegate.errors import StoreUnavailable
from tidegate.groups.expire_and_retry import BrokerName, ExpiringCall, FaultyGroups, nobody
from tidegate.groups.expiry import expirer
from tidegate.groups.heartbeat_snapshots import GroupSnapshot, HeartbeatSnapshots, MemberSnapshot
from tidegate.groups.model import MemberRef
from tidegate.groups.session_renewals import Renewals, SessionRenewals
from tidegate.groups.tick_batch import Gathered, TickBatch
from tidegate.settings import Settings
from tidegate.store.batching import fail_waiter
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.telemetry.metrics import metrics

HEARTBEAT = Script("groups/heartbeat")

OnCode = Callable[[int], None]
"""Called once with the code of a heartbeat."""

QueuedHeartbeat = tuple[MemberRef, OnCode]
"""A heartbeat and the callback for its code."""

_PER_SCRIPT_MAX: Final = 500
_GROUPS_PER_SCRIPT_MAX: Final = 100
"""A script of so many groups takes Redis about 0.7 ms; other commands wait meanwhile."""
_NONE: Final = 0
_UNAVAILABLE: Final = StoreUnavailable.code.value


class _Sent(list[QueuedHeartbeat]):
    """One group's heartbeats in one script: when it was sent, and the snapshot that its reply is for."""

    __slots__ = ("keys", "sent_s", "snapshot")

    def __init__(self, keys: GroupKeys, heartbeats: Sequence[QueuedHeartbeat]) -> None:
        super().__init__(heartbeats)
        self.keys = keys
        self.sent_s = 0.0
        self.snapshot: GroupSnapshot | None = None


class Heartbeats:
    """The heartbeats of one broker. `broker` is the broker name in events; `clock` is monotonic, in seconds.

    `coordinates(shard)`: whether this broker is the preferred coordinator of a shard's groups.

    Without `start` every heartbeat is answered by the script.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        broker: BrokerName = nobody,
        clock: Callable[[], float] = perf_counter,
        coordinates: Callable[[int], bool] = lambda shard: True,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._expire = expirer(store, broker)
        self._faulty = FaultyGroups()
        self._tick: TickBatch[QueuedHeartbeat] = TickBatch(self._flush, all_shards=not store.is_sharded)
        self.snapshots = HeartbeatSnapshots(store, clock, coordinates)
        self.renewals = SessionRenewals(self._send_renewals, clock)

    async def start(self) -> None:
        """Begin to answer from snapshots. Raises TimeoutError."""
        await self.snapshots.start()

    async def close(self) -> None:
        """Send the renewals that wait, and answer by the script from now on."""
        self.snapshots.close()
        if self.renewals.waiting:
            self.renewals.flush()
            with suppress(StoreUnavailable):
                await self._store.command("EXISTS", self._store.cluster_keys.info)  # its reply follows theirs

    # -- requests

    def add(self, keys: GroupKeys, member_ref: MemberRef, on_code: OnCode) -> None:
        """Queue a heartbeat for the script; `on_code` gets NONE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, or COORDINATOR_NOT_AVAILABLE while Redis is unavailable."""
        self._tick.add(keys, (member_ref, on_code))

    def answer(self, keys: GroupKeys, member_ref: MemberRef, on_code: OnCode) -> MemberSnapshot | None:
        """As `add`, but answered at once where a snapshot answers; returns the snapshot then."""
        member = self.snapshots.find(keys, member_ref)
        if member is not None and self.renew(member):
            on_code(_NONE)
            return member
        self.add(keys, member_ref, on_code)
        return None

    def renew(self, member: MemberSnapshot) -> bool:
        """Whether the snapshot answers the member's heartbeat, with NONE; its session is renewed soon then."""
        if not self.snapshots.answers(member):
            return False
        metrics.heartbeats_answered += 1
        if not member.is_renewing:
            self.renewals.add(member)
        return True

    # -- scripts

    def _send_renewals(self, renewals: Renewals) -> None:
        self._flush([(keys, [(ref, _renewed) for ref in refs]) for keys, refs in renewals])

    def _flush(self, groups: Gathered[QueuedHeartbeat]) -> None:
        faulty = self._faulty.since_s
        call, count = list[tuple[GroupKeys, list[QueuedHeartbeat]]](), 0
        for keys, heartbeats in groups:
            for first in range(0, len(heartbeats), _PER_SCRIPT_MAX):
                part = _Sent(keys, heartbeats[first : first + _PER_SCRIPT_MAX])
                if faulty and keys in self._faulty:
                    self._send([(keys, part)])
                    continue
                if count + len(part) > _PER_SCRIPT_MAX or len(call) == _GROUPS_PER_SCRIPT_MAX:
                    self._send(call)
                    call, count = [], 0
                call.append((keys, part))
                count += len(part)
        if call:
            self._send(call)

    def _send(self, groups: Gathered[QueuedHeartbeat]) -> None:
        call = ExpiringCall(self._store, self._expire, HEARTBEAT, self._write, self._reply, self._faulty)
        call.groups += groups
        call.send()

    def _write(self, groups: Gathered[QueuedHeartbeat], again: bool) -> tuple[list[str], list[Arg]]:
        key_names: list[str] = []
        args: list[Arg] = []
        now_s, begin = self._clock(), self.snapshots.begin
        for keys, heartbeats in groups:
            assert isinstance(heartbeats, _Sent)
            heartbeats.sent_s, heartbeats.snapshot = now_s, begin(keys)
            key_names += (keys.group, keys.members, keys.sessions, keys.instances)
            args.append(len(heartbeats))
            for member_ref, _ in heartbeats:
                args += (member_ref.member_id, member_ref.generation, member_ref.instance_id or "")
        return key_names, args

    def _reply(self, heartbeats: list[QueuedHeartbeat], answer: Sequence[int] | Failure) -> None:
        assert isinstance(heartbeats, _Sent)
        if isinstance(answer, Failure):
            self._discard(heartbeats.keys)
            for _, on_code in heartbeats:
                try:
                    on_code(_UNAVAILABLE)
                except Exception:  # noqa: BLE001 - logged; the other heartbeats are answered
                    fail_waiter(on_code, _UNAVAILABLE)
            return
        snapshot = heartbeats.snapshot
        for (member_ref, on_code), code in zip(heartbeats, answer, strict=True):
            if code != _NONE:
                self.snapshots.refute(heartbeats.keys, member_ref)
            elif snapshot is not None:
                self.snapshots.confirm(snapshot, member_ref, heartbeats.sent_s)
            try:
                on_code(code)
            except Exception:  # noqa: BLE001 - logged; the other heartbeats are answered
                fail_waiter(on_code, _UNAVAILABLE)
        if snapshot is not None:
            self.snapshots.end(snapshot)

    def _discard(self, keys: GroupKeys) -> None:
        """The script failed: for every group (the server is a replica now, say), unless a key of this one is bad."""
        if keys in self._faulty:
            self.snapshots.discard(keys)
        else:
            self.snapshots.discard_all()


def _renewed(_: int) -> None:
    """The heartbeat was answered before; an error is the answer to the next one, which the script gives."""
