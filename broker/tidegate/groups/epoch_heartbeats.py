"""Heartbeats of members with epochs that report nothing: from snapshots where those are current, else by a script.

One script takes a tick's heartbeats of a shard, of consumer, share and streams groups (KIP-848, KIP-932, KIP-1071). It
extends the sessions of members whose group is at rest; every other heartbeat needs a decision. A heartbeat that was
answered from a snapshot renews its session by the same script soon (`session_renewals`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from tidegate.groups.consumer.stored import instance_text
from tidegate.groups.expire_and_retry import FaultyGroups
from tidegate.groups.heartbeat_snapshots import GroupSnapshot, HeartbeatSnapshots, MemberSnapshot, confirmed_for_s
from tidegate.groups.model import MemberRef
from tidegate.groups.session_renewals import Renewals, SessionRenewals
from tidegate.groups.tick_batch import Gathered, TickBatch
from tidegate.store.batching import fail_waiter
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure, Faulty, Unknown
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.telemetry.metrics import metrics

EPOCH_HEARTBEAT = Script("groups/epoch_heartbeat")

_PER_SCRIPT_MAX: Final = 500
_NONE: Final = 0
_UNUSABLE: Final = Unknown("the reply could not be used")

logger = structlog.get_logger()

OnReply = Callable[[int | Failure | None], None]
"""Called once with the group's heartbeat interval, ms (0: the broker's setting); None if a decision has to answer."""

Queued = tuple[MemberRef, OnReply]


class EpochHeartbeats:
    """The heartbeats of one broker. `topics_version()` is the version of the catalogue that the broker has cached."""

    def __init__(self, store: Store, snapshots: HeartbeatSnapshots, topics_version: Callable[[], int]) -> None:
        self._store, self.snapshots, self._topics_version = store, snapshots, topics_version
        self._tick: TickBatch[Queued] = TickBatch(self._flush)
        self.renewals = SessionRenewals(self._send_renewals, snapshots.now_s)
        self._faulty = FaultyGroups()

    def close(self) -> None:
        """Send the renewals that wait."""
        self.renewals.flush()

    def answer(self, keys: GroupKeys, member_ref: MemberRef, on_reply: OnReply) -> MemberSnapshot | None:
        """Answer a heartbeat: at once where a snapshot answers, which is returned then, otherwise by the script."""
        member = self.snapshots.find(keys, member_ref)
        if member is not None and self.renew(member):
            on_reply(member.group.heartbeat_interval_ms)
            return member
        self._tick.add(keys, (member_ref, on_reply))
        return None

    async def interval_ms(self, keys: GroupKeys, member_ref: MemberRef) -> int | None:
        """Answer a heartbeat: its group's heartbeat interval, None if a decision has to. Raises StoreUnavailable."""
        replied: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def on_reply(reply: int | Failure | None) -> None:
            if replied.done():
                return
            if isinstance(reply, Failure):
                replied.set_exception(reply.error)
            else:
                replied.set_result(reply)

        self.answer(keys, member_ref, on_reply)
        return await replied

    def renew(self, member: MemberSnapshot) -> bool:
        """Whether the snapshot answers the member's heartbeat; its session is renewed soon then."""
        if member.group.topics_version != self._topics_version() or not self.snapshots.answers(member):
            return False
        metrics.heartbeats_answered += 1
        if not member.is_renewing:
            self.renewals.add(member)
        return True

    # -- scripts

    def _send_renewals(self, renewals: Renewals) -> None:
        shards: dict[int, Gathered[Queued]] = {}
        for keys, refs in renewals:
            shards.setdefault(keys.shard_keys.shard, []).append((keys, [(ref, _renewed) for ref in refs]))
        for groups in shards.values():
            self._flush(groups)

    def _flush(self, groups: Gathered[Queued]) -> None:
        part: Gathered[Queued] = []
        count = 0
        for keys, heartbeats in groups:
            for first in range(0, len(heartbeats), _PER_SCRIPT_MAX):
                some = heartbeats[first : first + _PER_SCRIPT_MAX]
                if self._faulty.since_s and keys in self._faulty:
                    self._send([(keys, some)])
                    continue
                if count + len(some) > _PER_SCRIPT_MAX:
                    self._send(part)
                    part, count = [], 0
                part.append((keys, some))
                count += len(some)
        if part:
            self._send(part)

    def _send(self, groups: Gathered[Queued]) -> None:
        key_names: list[str] = []
        version, now_s = self._topics_version(), self.snapshots.now_s()
        args: list[Arg] = [version]
        snapshots: list[GroupSnapshot | None] = []

        def answered(reply: Any) -> None:
            if isinstance(reply, Failure):
                self._failed(groups, reply)
                return
            at = 1
            for (keys, heartbeats), snapshot in zip(groups, snapshots, strict=True):
                interval_ms, timeout_ms = reply[at], reply[at + 1]
                codes = reply[at + 2 : at + 2 + len(heartbeats)]
                if snapshot is not None:
                    usable = self._use(snapshot, interval_ms, timeout_ms, version)
                    self._note(keys, usable, heartbeats, codes, now_s)
                for (_, on_reply), code in zip(heartbeats, codes, strict=True):
                    try:
                        on_reply(interval_ms if code == _NONE else None)
                    except Exception:  # noqa: BLE001 - logged; the other heartbeats are answered
                        fail_waiter(on_reply, _UNUSABLE)
                at += 2 + len(heartbeats)

        try:
            for keys, heartbeats in groups:
                snapshots.append(self.snapshots.begin(keys))
                key_names += (keys.group, keys.consumers, keys.consumer_sessions, keys.revocations)
                args.append(len(heartbeats))
                for member_ref, _ in heartbeats:
                    instance = "" if member_ref.instance_id is None else instance_text(member_ref.instance_id)
                    args += (member_ref.member_id, member_ref.generation, instance)
            self._store.send_script(EPOCH_HEARTBEAT, key_names, args, answered)
        except Exception as error:
            logger.exception("script_not_sent", script=EPOCH_HEARTBEAT.name)
            self._failed(groups, Unknown(f"the script could not be sent: {error}"))

    def _use(self, snapshot: GroupSnapshot, interval_ms: int, timeout_ms: int, version: int) -> GroupSnapshot | None:
        """The snapshot, if what the script returned of its group is what it has; a new one takes that over."""
        far_s = confirmed_for_s(timeout_ms / 1000)
        if snapshot.members and timeout_ms:
            if (snapshot.heartbeat_interval_ms, snapshot.topics_version) != (interval_ms, version):
                self.snapshots.discard(snapshot.keys)
                return None
            snapshot.confirmed_for_s = min(snapshot.confirmed_for_s, far_s)
        elif timeout_ms:
            snapshot.heartbeat_interval_ms, snapshot.topics_version = interval_ms, version
            snapshot.confirmed_for_s = far_s
        return snapshot

    def _note(
        self,
        keys: GroupKeys,
        snapshot: GroupSnapshot | None,
        heartbeats: Sequence[Queued],
        codes: Sequence[int],
        sent_s: float,
    ) -> None:
        for (member_ref, _), code in zip(heartbeats, codes, strict=True):
            if code != _NONE:
                self.snapshots.refute(keys, member_ref)
            elif snapshot is not None:
                self.snapshots.confirm(snapshot, member_ref, sent_s)
        if snapshot is not None:
            self.snapshots.end(snapshot)

    def _failed(self, groups: Gathered[Queued], failure: Failure) -> None:
        if isinstance(failure, Faulty):
            if len(groups) > 1:
                for group in groups:
                    self._send([group])
                return
            self._faulty.add(groups[0][0])
            self.snapshots.discard(groups[0][0])
        else:
            self.snapshots.discard_all()
        for _, heartbeats in groups:
            for _, on_reply in heartbeats:
                try:
                    on_reply(failure)
                except Exception:  # noqa: BLE001 - logged; the other heartbeats are answered
                    fail_waiter(on_reply, failure)


def _renewed(_: int | Failure | None) -> None:
    """The heartbeat was answered before; the next one is answered by a decision if this one needed it."""
