"""Heartbeats, gathered per shard and event-loop tick: one script answers them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.errors import CoordinatorLoadInProgress, CoordinatorNotAvailable, KafkaError
from broker.groups.coalesce import Coalescer, Gathered
from broker.groups.expiry import settler
from broker.groups.model import Membership
from broker.groups.settled import OVERDUE, TRIES_MAX, BrokerName, Settle, nobody
from broker.settings import Settings
from broker.store.keys import GroupKeys
from broker.store.link import Arg
from broker.store.scripts import Script
from broker.store.store import Store

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
        call, count = _Call(self._store, self._settle), 0
        for keys, beats in groups:
            for first in range(0, len(beats), _PER_SCRIPT_MAX):
                part = beats[first : first + _PER_SCRIPT_MAX]
                if count + len(part) > _PER_SCRIPT_MAX:
                    call.send()
                    call, count = _Call(self._store, self._settle), 0
                call.groups.append((keys, part))
                count += len(part)
        call.send()


class _Call:
    """One call of the script for groups of a shard; those with something overdue are settled, then asked again."""

    __slots__ = ("_settle", "_store", "_tries", "groups")

    def __init__(self, store: Store, settle: Settle, tries: int = 0) -> None:
        self.groups: Gathered[Beat] = []
        self._store, self._settle, self._tries = store, settle, tries

    def send(self) -> None:
        """File the call for this tick's write."""
        key_names: list[str] = []
        args: list[Arg] = []
        for keys, beats in self.groups:
            key_names += (keys.group, keys.members, keys.sessions, keys.instances)
            args.append(len(beats))
            for membership, _ in beats:
                args += (membership.member_id, membership.generation, membership.instance_id or "")
        self._store.send_script(HEARTBEAT, key_names, args, self._answered)

    def _answered(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            for _, beats in self.groups:
                _refuse(beats, reply)
            return
        at = 1
        for keys, beats in self.groups:
            codes = reply[at : at + len(beats)]
            at += len(beats)
            if codes[0] == OVERDUE:
                self._ask_again(keys, beats)
            else:
                for (_, on_code), code in zip(beats, codes, strict=True):
                    on_code(code)

    def _ask_again(self, keys: GroupKeys, beats: list[Beat]) -> None:
        if self._tries == TRIES_MAX:
            _refuse(beats, CoordinatorLoadInProgress("the group's deadlines pass faster than they are settled"))
            return
        again = _Call(self._store, self._settle, self._tries + 1)
        again.groups.append((keys, beats))
        self._settle(keys, lambda failure: again.send() if failure is None else _refuse(beats, failure))


def _refuse(beats: list[Beat], failure: Exception) -> None:
    error = failure if isinstance(failure, KafkaError) else CoordinatorNotAvailable()
    for _, on_code in beats:
        on_code(error.code.value)
