"""Overdue sessions, joins and syncs: settle one group, and sweep the groups that nobody looks at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import structlog

from broker.cluster.deadlines import Deadlines, Due
from broker.errors import StoreUnavailable
from broker.groups.settled import BrokerName, Settle, group_script_args, group_script_keys, nobody
from broker.store.keys import GroupKeys
from broker.store.scripts import Script
from broker.store.store import Store

EXPIRE_GROUP = Script("groups/expire_group")
FORGIVE_SESSIONS = Script("groups/forgive_sessions")

KINDS = frozenset({"session", "join", "sync"})

logger = structlog.get_logger()


def settler(store: Store, broker: BrokerName = nobody) -> Settle:
    """What applies everything overdue in one group; `broker` is who the events name."""

    def settle(keys: GroupKeys, on_settled: Callable[[Exception | None], None]) -> None:
        def answered(reply: Any) -> None:
            on_settled(reply if isinstance(reply, Exception) else None)

        args = group_script_args(store, keys, broker())
        _forgive(store, keys)
        store.send_script(EXPIRE_GROUP, group_script_keys(keys), args, answered)

    return settle


def _forgive(store: Store, keys: GroupKeys) -> None:
    """No member is removed because Redis was away. Sent ahead of what settles, so it is done when that is."""
    if store.absence.ended_lately:
        store.send_script(FORGIVE_SESSIONS, [keys.members, keys.sessions], [], _ignore)


def _ignore(_: Any) -> None:
    """What settles next says whether Redis answers."""


def group_of(store: Store, ref: str) -> GroupKeys:
    """The keys of a group by its name in the shard's keys, `<org>/<percent-encoded group id>`."""
    org, _, encoded = ref.partition("/")
    return store.group_keys(org, unquote(encoded))


async def settle_group(store: Store, keys: GroupKeys, broker: str = "") -> None:
    """Apply whatever is overdue in one group. Raises StoreUnavailable."""
    _forgive(store, keys)
    await store.run(EXPIRE_GROUP, group_script_keys(keys), *group_script_args(store, keys, broker))


class GroupExpiry:
    """Settles the groups whose deadlines pass while no request looks at them.

    `prefers(shard)` says whether this broker is the one to look after a shard; others' shards are taken only
    when they are late. Groups with waiting requests do not depend on it: their own looks settle them.
    """

    def __init__(self, store: Store, prefers: Callable[[int], bool], broker: BrokerName = nobody) -> None:
        self.broker = broker
        self._store = store
        self._deadlines = Deadlines(store, prefers, self._settle)

    async def start(self) -> None:
        """Begin to sweep."""
        await self._deadlines.start()

    async def close(self) -> None:
        """Stop sweeping."""
        await self._deadlines.close()

    async def sweep_now(self) -> None:
        """Settle what is due at this moment in every shard (for tests)."""
        await self._deadlines.look_now()

    async def _settle(self, due: list[Due]) -> None:
        refs = {item.name for item in due if item.kind in KINDS}
        replies = await asyncio.gather(
            *(settle_group(self._store, group_of(self._store, ref), self.broker()) for ref in refs),
            return_exceptions=True,
        )
        for ref, reply in zip(refs, replies, strict=True):
            if isinstance(reply, StoreUnavailable):
                logger.warning("group_not_settled", group=ref, reason=str(reply))  # due again in a while
            elif isinstance(reply, BaseException):
                raise reply
