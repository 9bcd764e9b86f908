"""Heartbeats, gathered per shard and event-loop tick: one script answers them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidegate.errors import CoordinatorNotAvailable, KafkaError
from tidegate.groups.coalesce import Coalescer, Gathered
from tidegate.groups.expiry import settler
from tidegate.groups.model import Membership
from tidegate.groups.settled import BrokerName, SettledCall, nobody
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

HEARTBEAT = Script("groups/heartbeat")

OnCode = Callable[[int], None]
"""Called once with the code of a heartbeat."""

Beat = tuple[Membership, OnCode]
"""A heartbeat, and who is told its code."""

_PER_SCRIPT_MAX: Final = 500


class Heartbeats:
    """The heartbeats of this broker's tick. `broker` is who the events name."""

    def __init__(self, store: Store, settings: Settings, broker: BrokerName = nobody) -> None:
        self._store = store
        self._settings = settings
        self._settle = settler(store, broker)
        self._tick: Coalescer[Beat] = Coalescer(self._flush)

    def add(self, keys: GroupKeys, membership: Membership, on_code: OnCode) -> None:
        """File a heartbeat; `on_code` gets NONE or why not: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,

        ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, or COORDINATOR_NOT_AVAILABLE while Redis is away.
        """
        self._tick.add(keys, (membership, on_code))

    def _flush(self, groups: Gathered[Beat]) -> None:
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

    def _call(self) -> SettledCall[Beat]:
        return SettledCall(self._store, self._settle, HEARTBEAT, _write, _tell)


def _write(groups: Gathered[Beat]) -> tuple[list[str], list[Arg]]:
    key_names: list[str] = []
    args: list[Arg] = []
    for keys, beats in groups:
        key_names += (keys.group, keys.members, keys.sessions, keys.instances)
        args.append(len(beats))
        for membership, _ in beats:
            args += (membership.member_id, membership.generation, membership.instance_id or "")
    return key_names, args


def _tell(beats: list[Beat], answer: Sequence[int] | Exception) -> None:
    if isinstance(answer, Exception):
        error = answer if isinstance(answer, KafkaError) else CoordinatorNotAvailable()
        for _, on_code in beats:
            on_code(error.code.value)
        return
    for (_, on_code), code in zip(beats, answer, strict=True):
        on_code(code)
