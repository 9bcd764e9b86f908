"""Apply a group's overdue deadlines before any other operation on it.

Scripts that change a group expire it themselves: they include `lib/classic_group` and take the keys and arguments below
first. The small scripts of the hot path return OVERDUE when a deadline of the group has passed (a session, the end of a
join phase, the wait for assignments); the caller then runs the expiry script for the group and repeats the call. Both
ways are equivalent to one serial order.
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
"""Expiries of one group for one call."""

Expire = Callable[[GroupKeys, Callable[[Exception | None], None]], None]
"""Apply what is overdue in one group, then call back with None or with the error."""

BrokerName = Callable[[], str]
"""The broker name in events: this broker's node id, which changes after its lease was lost."""

Item = TypeVar("Item")


def nobody() -> str:
    """The empty broker name, for callers that write no events."""
    return ""


def group_script_keys(keys: GroupKeys) -> list[str]:
    """KEYS[1..11] of every script that includes `lib/classic_group`."""
    shard = keys.shard_keys
    own = [keys.group, keys.members, keys.subscriptions, keys.assignments, keys.protocols, keys.instances]
    return [*own, keys.sessions, keys.pending, shard.groups, shard.deadlines, shard.events]


def group_script_args(store: Store, keys: GroupKeys, broker: str) -> list[Arg]:
    """ARGV[1..4] of the same scripts; `broker` is the broker name in events."""
    return [keys.ref, keys.shard_keys.wake, store.settings.group_events_max, broker]


def extend_sessions_after_outage(store: Store, keys: GroupKeys) -> None:
    """Extend sessions after Redis was unavailable, so that the outage removes no member.

    The command is sent before the expiry script, on the same connection, so Redis runs it first.
    """
    if store.outage.recently_recovered:
        store.send_script(EXTEND_SESSIONS_AFTER_OUTAGE, [keys.group, keys.members, keys.sessions], [], _ignore)


def _ignore(_: Any) -> None:
    """Ignore the reply: the expiry script that follows reports whether Redis answers."""


class ExpiringCall(Generic[Item]):
    """A call of one script for groups of a shard; overdue groups are expired, then the call is repeated for them.

    `write(groups)` returns the script's keys and arguments; the script returns NONE and a code for each item.
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
        """Queue the call for this tick's write."""
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
        """Pass the answer to one group's items; an exception there does not affect other groups."""
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
