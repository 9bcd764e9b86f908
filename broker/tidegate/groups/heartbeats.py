"""Heartbeats, batched by shard and event-loop tick: one script answers all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidegate.errors import CoordinatorNotAvailable, KafkaError
from tidegate.groups.coalesce import Coalescer, Gathered
from tidegate.groups.expire_and_retry import BrokerName, ExpiringCall, nobody
from tidegate.groups.expiry import expirer
from tidegate.groups.model import MemberRef
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

HEARTBEAT = Script("groups/heartbeat")

OnCode = Callable[[int], None]
"""Called once with the code of a heartbeat."""

QueuedHeartbeat = tuple[MemberRef, OnCode]
"""A heartbeat and the callback for its code."""

_PER_SCRIPT_MAX: Final = 500


class Heartbeats:
    """The queued heartbeats of this broker's tick. `broker` is the broker name in events."""

    def __init__(self, store: Store, settings: Settings, broker: BrokerName = nobody) -> None:
        self._store = store
        self._settings = settings
        self._expire = expirer(store, broker)
        self._tick: Coalescer[QueuedHeartbeat] = Coalescer(self._flush)

    def add(self, keys: GroupKeys, member_ref: MemberRef, on_code: OnCode) -> None:
        """Queue a heartbeat; `on_code` gets NONE, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        REBALANCE_IN_PROGRESS, or COORDINATOR_NOT_AVAILABLE while Redis is unavailable."""
        self._tick.add(keys, (member_ref, on_code))

    def _flush(self, groups: Gathered[QueuedHeartbeat]) -> None:
        call, count = self._call(), 0
        for keys, beats in groups:
            for first in range(0, len(beats), _PER_SCRIPT_MAX):
                part = beats[first : first + _PER_SCRIPT_MAX]
                if count + len(part) > _PER_SCRIPT_MAX:
                    call.send()
                    call, count = self._call(), 0
                call.groups.append((keys, part))
                count += len(part)
        call.send()

    def _call(self) -> ExpiringCall[QueuedHeartbeat]:
        return ExpiringCall(self._store, self._expire, HEARTBEAT, _write, _reply)


def _write(groups: Gathered[QueuedHeartbeat]) -> tuple[list[str], list[Arg]]:
    key_names: list[str] = []
    args: list[Arg] = []
    for keys, beats in groups:
        key_names += (keys.group, keys.members, keys.sessions, keys.instances)
        args.append(len(beats))
        for member_ref, _ in beats:
            args += (member_ref.member_id, member_ref.generation, member_ref.instance_id or "")
    return key_names, args


def _reply(beats: list[QueuedHeartbeat], answer: Sequence[int] | Exception) -> None:
    if isinstance(answer, Exception):
        error = answer if isinstance(answer, KafkaError) else CoordinatorNotAvailable()
        for _, on_code in beats:
            on_code(error.code.value)
        return
    for (_, on_code), code in zip(beats, answer, strict=True):
        on_code(code)
