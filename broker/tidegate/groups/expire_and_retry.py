"""Apply a group's overdue deadlines before any other operation on it.

Scripts that change a group expire it themselves: they include `lib/expire_overdue` and take these keys and arguments
first. The small scripts of the hot path return EXPIRY_DUE when a deadline of the group has passed (a session, the end
of a join phase, the wait for assignments); the caller then runs the expiry script for the group and repeats the call.
Both ways are equivalent to one serial order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final, Generic, TypeVar

import structlog

from tidegate.errors import CoordinatorNotAvailable
from tidegate.groups.model import GROUP_EVENTS_MAX
from tidegate.groups.tick_batch import Gathered
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure, Faulty, Unknown
from tidegate.store.scripts import Script
from tidegate.store.store import Store

logger = structlog.get_logger()

EXTEND_SESSIONS_AFTER_OUTAGE = Script("groups/extend_sessions_after_outage")

EXPIRY_DUE: Final = -100
_TRIES_MAX: Final = 5
"""Expiries of one group for one call."""
_TRY_AGAIN: Final = CoordinatorNotAvailable.code.value

_FAULTY_MAX: Final = 1_000
_FAULTY_S: Final = 60.0
"""After this time a faulty group is sent together with others again."""

Expire = Callable[[GroupKeys, Callable[[Failure | None], None]], None]
"""Apply what is overdue in one group, then call back with None or with the failure."""

BrokerName = Callable[[], str]
"""The broker name in events: this broker's node id, which changes after its lease was lost."""

Item = TypeVar("Item")


def nobody() -> str:
    """The empty broker name, for callers that write no events."""
    return ""


def group_script_keys(keys: GroupKeys) -> list[str]:
    """KEYS[1..11] of every script that includes `lib/load_group`."""
    shard = keys.shard_keys
    own = [keys.group, keys.members, keys.subscriptions, keys.assignments, keys.protocols, keys.instances]
    return [*own, keys.sessions, keys.pending, shard.groups, shard.deadlines, shard.events]


def group_script_args(store: Store, keys: GroupKeys, broker: str) -> list[Arg]:
    """ARGV[1..4] of the same scripts; `broker` is the broker name in events."""
    return [keys.ref, keys.shard_keys.wake, GROUP_EVENTS_MAX, broker]


def extend_sessions_after_outage(store: Store, keys: GroupKeys, consumers: bool = False) -> None:
    """Extend sessions after the group's node was away, so that this removes no member; `consumers` is for KIP-848.

    The command is sent before the expiry script, on the same connection, so Redis runs it first.
    """
    node = store.metadata_node if store.cluster is None else store.cluster.node(keys.group)
    if node.outage.recently_recovered:
        members = keys.consumers if consumers else keys.members
        for deadlines in (keys.consumer_sessions, keys.revocations) if consumers else (keys.sessions,):
            store.send_script(EXTEND_SESSIONS_AFTER_OUTAGE, [keys.group, members, deadlines], [], _ignore)


def _ignore(_: Any) -> None:
    """Ignore the reply: the expiry script that follows reports whether Redis answers."""


class FaultyGroups:
    """Groups with a key that no script can read (another type, a record that somebody changed).

    A script fails as a whole, so scripts for several groups leave these out; each is sent alone.
    """

    def __init__(self) -> None:
        self.since_s: dict[str, float] = {}
        """Key of the group -> when its script failed; nearly always empty, which callers check first."""

    def add(self, keys: GroupKeys) -> None:
        """A script for this group alone failed."""
        self.since_s.pop(keys.group, None)
        self.since_s[keys.group] = monotonic()
        if len(self.since_s) > _FAULTY_MAX:
            del self.since_s[next(iter(self.since_s))]

    def __contains__(self, keys: GroupKeys) -> bool:
        since_s = self.since_s.get(keys.group)
        if since_s is None:
            return False
        if monotonic() - since_s < _FAULTY_S:
            return True
        del self.since_s[keys.group]
        return False


class ExpiringCall(Generic[Item]):
    """A call of one script for several groups; overdue groups are expired, then the call is repeated for them.

    `write(groups, again)` returns the script's keys and arguments, `again` of a repeated call. The script returns NONE
    and a code for each item.
    `reply(items, answer)` is called once for each of `groups`, with the codes of its items or with a failure.
    If a key of one group fails the script, it is repeated for each group, and the group is added to `faulty`.
    """

    __slots__ = ("_expire", "_faulty", "_reply", "_script", "_store", "_tries", "_write", "groups")

    def __init__(
        self,
        store: Store,
        expire: Expire,
        script: Script,
        write: Callable[[Gathered[Item], bool], tuple[list[str], list[Arg]]],
        reply: Callable[[list[Item], Sequence[int] | Failure], None],
        faulty: FaultyGroups,
        tries: int = 0,
    ) -> None:
        self.groups: Gathered[Item] = []
        self._store, self._expire, self._script = store, expire, script
        self._write, self._reply, self._faulty, self._tries = write, reply, faulty, tries

    def send(self, again: bool = False) -> None:
        """Queue the call for this tick's write; what cannot be sent is answered with a failure."""
        try:
            key_names, args = self._write(self.groups, again)
            self._store.send_script(self._script, key_names, args, self._answered)
        except Exception as error:
            logger.exception("script_not_sent", script=self._script.name)
            failure = Unknown(f"the script could not be sent: {error}")
            for _, items in self.groups:
                self._answer(items, failure)

    def _answered(self, reply: Any) -> None:
        if isinstance(reply, Failure):
            self._failed(reply)
            return
        at = 1
        for keys, items in self.groups:
            codes = reply[at : at + len(items)]
            at += len(items)
            if codes[0] == EXPIRY_DUE:
                self._ask_again(keys, items)
            else:
                self._answer(items, codes)

    def _failed(self, failure: Failure) -> None:
        if isinstance(failure, Faulty):
            if len(self.groups) > 1:
                for keys, items in self.groups:
                    self._send_alone(keys, items, self._tries)
                return
            self._faulty.add(self.groups[0][0])
        for _, items in self.groups:
            self._answer(items, failure)

    def _send_alone(self, keys: GroupKeys, items: list[Item], tries: int) -> None:
        call = ExpiringCall(self._store, self._expire, self._script, self._write, self._reply, self._faulty, tries)
        call.groups.append((keys, items))
        call.send(again=True)

    def _answer(self, items: list[Item], answer: Sequence[int] | Failure) -> None:
        """Pass the answer to one group's items; an exception there fails them, and no other group."""
        try:
            self._reply(items, answer)
        except Exception as error:
            logger.exception("answer_failed", script=self._script.name)
            if not isinstance(answer, Failure):
                self._answer(items, Unknown(f"the reply could not be used: {error}"))

    def _ask_again(self, keys: GroupKeys, items: list[Item]) -> None:
        if self._tries == _TRIES_MAX:
            self._answer(items, [_TRY_AGAIN] * len(items))  # deadlines pass faster than they are processed
            return

        def expired(failure: Failure | None) -> None:
            if failure is None:
                self._send_alone(keys, items, self._tries + 1)
            else:
                self._answer(items, failure)

        self._expire(keys, expired)
