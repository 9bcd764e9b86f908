"""Whatever is overdue in a group is applied before anything else.

Scripts that change a group settle it themselves: they include `lib/classic_group` and take the keys and
arguments below first. The small scripts of the hot path answer OVERDUE instead when a deadline of the group
has passed (a session, the end of a join phase, the wait for assignments); the caller settles the group, which
is a script of its own, and asks again. Either way the outcome is that of one serial order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import structlog

from tidegate.errors import CoordinatorNotAvailable
from tidegate.groups.coalesce import Gathered
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

logger = structlog.get_logger()

EXTEND_SESSIONS_AFTER_OUTAGE = Script("groups/extend_sessions_after_outage")

EXPIRY_DUE: Final = -100
_TRIES_MAX: Final = 5
"""Times that a group is settled for one call."""

Expire = Callable[[GroupKeys, Callable[[Exception | None], None]], None]
"""Apply what is overdue in one group, then call back with None, or with why not."""

BrokerName = Callable[[], str]
"""Who the events name: this broker's node id, which is another one after its lease was lost."""

Item = TypeVar("Item")


def nobody() -> str:
    """No broker that events could name."""
    return ""


def group_script_keys(keys: GroupKeys) -> list[str]:
    """KEYS[1..11] of every script that includes `lib/classic_group`."""
    shard = keys.shard_keys
    own = [keys.group, keys.members, keys.subscriptions, keys.assignments, keys.protocols, keys.instances]
    return [*own, keys.sessions, keys.pending, shard.groups, shard.deadlines, shard.events]


def group_script_args(store: Store, keys: GroupKeys, broker: str) -> list[Arg]:
    """ARGV[1..4] of the same scripts; `broker` is who the events name."""
    return [keys.ref, keys.shard_keys.wake, store.settings.group_events_max, broker]


def extend_sessions_after_outage(store: Store, keys: GroupKeys) -> None:
    """No member is removed because Redis was away. Sent ahead of whatever settles, so it is done when that is."""
    if store.outage.recently_recovered:
        store.send_script(EXTEND_SESSIONS_AFTER_OUTAGE, [keys.group, keys.members, keys.sessions], [], _ignore)


def _ignore(_: Any) -> None:
    """What settles next says whether Redis answers."""


class ExpiringCall(Generic[Item]):
    """One call of a script for groups of a shard; those with something overdue are settled, then asked again.

    The script takes what `write(groups)` gives, its keys and its arguments, and returns NONE and a code for each item.
    `reply(items, answer)` is called once for each of `groups`, with the codes of its items or with an exception.
    """

    __slots__ = ("_expire", "_reply", "_script", "_store", "_tries", "_write", "groups")

    def __init__(
        self,
        store: Store,
        expire: Expire,
        script: Script,
        write: Callable[[Gathered[Item]], tuple[list[str], list[Arg]]],
        reply: Callable[[list[Item], Sequence[int] | Exception], None],
        tries: int = 0,
    ) -> None:
        self.groups: Gathered[Item] = []
        self._store, self._expire, self._script = store, expire, script
        self._write, self._reply, self._tries = write, reply, tries

    def send(self) -> None:
        """File the call for this tick's write."""
        key_names, args = self._write(self.groups)
        self._store.send_script(self._script, key_names, args, self._answered)

    def _answered(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            for _, items in self.groups:
                self._answer(items, reply)
            return
        at = 1
        for keys, items in self.groups:
            codes = reply[at : at + len(items)]
            at += len(items)
            if codes[0] == EXPIRY_DUE:
                self._ask_again(keys, items)
            else:
                self._answer(items, codes)

    def _answer(self, items: list[Item], answer: Sequence[int] | Exception) -> None:
        """Tell one group's items; a fault in that keeps no other group from its answer."""
        try:
            self._reply(items, answer)
        except Exception:
            logger.exception("answer_failed", script=self._script.name)

    def _ask_again(self, keys: GroupKeys, items: list[Item]) -> None:
        if self._tries == _TRIES_MAX:
            late = CoordinatorNotAvailable("the group's deadlines pass faster than they are settled")
            self._answer(items, late)
            return
        again = ExpiringCall(self._store, self._expire, self._script, self._write, self._reply, self._tries + 1)
        again.groups.append((keys, items))
        self._expire(keys, lambda failure: again.send() if failure is None else self._answer(items, failure))
