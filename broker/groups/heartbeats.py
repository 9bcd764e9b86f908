"""Heartbeats, gathered per group and event-loop tick: one script answers them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.errors import CoordinatorNotAvailable, KafkaError
from broker.groups.coalesce import Coalescer
from broker.groups.expiry import settler
from broker.groups.model import Membership
from broker.groups.settled import BrokerName, SettledCall, nobody
from broker.settings import Settings
from broker.store.keys import GroupKeys
from broker.store.link import Arg
from broker.store.scripts import Script
from broker.store.store import Store

HEARTBEAT = Script("groups/heartbeat")

OnCode = Callable[[int], None]
"""Called once with the code of a heartbeat."""

_PER_SCRIPT_MAX: Final = 500


class Heartbeats:
    """The heartbeats of this broker's tick. `broker` is who the events name."""

    def __init__(self, store: Store, settings: Settings, broker: BrokerName = nobody) -> None:
        self._store = store
        self._settings = settings
        self._settle = settler(store, broker)
        self._tick: Coalescer[tuple[Membership, OnCode]] = Coalescer(self._flush)

    def add(self, keys: GroupKeys, membership: Membership, on_code: OnCode) -> None:
        """File a heartbeat; `on_code` gets NONE or why not: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,

        ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, or COORDINATOR_NOT_AVAILABLE while Redis is away.
        """
        self._tick.add(keys, (membership, on_code))

    def _flush(self, keys: GroupKeys, beats: list[tuple[Membership, OnCode]]) -> None:
        for first in range(0, len(beats), _PER_SCRIPT_MAX):
            self._send(keys, beats[first : first + _PER_SCRIPT_MAX])

    def _send(self, keys: GroupKeys, beats: list[tuple[Membership, OnCode]]) -> None:
        args: list[Arg] = []
        for membership, _ in beats:
            args += (membership.member_id, membership.generation, membership.instance_id or "")

        def answered(reply: Any) -> None:
            if isinstance(reply, Exception):
                error = reply if isinstance(reply, KafkaError) else CoordinatorNotAvailable()
                for _, on_code in beats:
                    on_code(error.code.value)
                return
            for (_, on_code), code in zip(beats, reply[1:], strict=True):
                on_code(code)

        key_names = [keys.group, keys.members, keys.sessions, keys.instances]
        SettledCall(self._store, self._settle, keys, HEARTBEAT, key_names, args, answered).send()
