"""Whatever is overdue in a group is applied before anything else.

Scripts that change a group settle it themselves: they include `lib/classic_group` and take the keys and
arguments below first. The small scripts of the hot path answer OVERDUE instead when a deadline of the group
has passed (a session, the end of a join phase, the wait for assignments); the caller settles the group, which
is a script of its own, and asks again. Either way the outcome is that of one serial order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.errors import CoordinatorLoadInProgress
from broker.store.keys import GroupKeys
from broker.store.link import Arg
from broker.store.scripts import Script
from broker.store.store import Store

OVERDUE: Final = -100
TRIES_MAX: Final = 5
"""Times that a group is settled for one call."""

Settle = Callable[[GroupKeys, Callable[[Exception | None], None]], None]
"""Apply what is overdue in one group, then call back with None, or with why not."""

BrokerName = Callable[[], str]
"""Who the events name: this broker's node id, which is another one after its lease was lost."""

OnAnswer = Callable[[Any], None]
"""Called once with a script's reply, code first and never OVERDUE, or with an exception."""


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


class SettledCall:
    """One call of a script on a group, repeated after settling until no deadline is in the way."""

    __slots__ = ("_args", "_key_names", "_keys", "_on_answer", "_script", "_settle", "_store", "_tries")

    def __init__(
        self,
        store: Store,
        settle: Settle,
        keys: GroupKeys,
        script: Script,
        key_names: Sequence[str],
        args: Sequence[Arg],
        on_answer: OnAnswer,
    ) -> None:
        self._store, self._settle, self._keys = store, settle, keys
        self._script, self._key_names, self._args = script, key_names, args
        self._on_answer = on_answer
        self._tries = 0

    def send(self) -> None:
        """File the call for this tick's write."""
        self._store.send_script(self._script, self._key_names, self._args, self._answered)

    def _answered(self, reply: Any) -> None:
        if isinstance(reply, Exception) or reply[0] != OVERDUE:
            self._on_answer(reply)
        elif self._tries == TRIES_MAX:
            self._on_answer(CoordinatorLoadInProgress("the group's deadlines pass faster than they are settled"))
        else:
            self._tries += 1
            self._settle(self._keys, self._settled)

    def _settled(self, failure: Exception | None) -> None:
        if failure is None:
            self.send()
        else:
            self._on_answer(failure)
