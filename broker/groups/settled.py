"""Run a group's script with whatever is overdue in the group applied first.

Scripts that judge a request by the group's state answer OVERDUE instead when one of its deadlines has
passed (a session, the end of a join phase, the wait for assignments). The caller then settles the group,
which is a script of its own, and asks again. The outcome is that of one serial order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.errors import CoordinatorLoadInProgress, from_code
from broker.store.keys import GroupKeys
from broker.store.link import Arg
from broker.store.scripts import Script
from broker.store.store import Store

OVERDUE: Final = -100
_TRIES_MAX: Final = 5

Settle = Callable[[GroupKeys, Callable[[Exception | None], None]], None]
"""Apply what is overdue in one group, then call back with None, or with why not."""

OnAnswer = Callable[[Any], None]
"""Called once with a script's reply, code first and never OVERDUE, or with an exception."""


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
        elif self._tries == _TRIES_MAX:
            self._on_answer(CoordinatorLoadInProgress("the group's deadlines pass faster than they are settled"))
        else:
            self._tries += 1
            self._settle(self._keys, self._settled)

    def _settled(self, failure: Exception | None) -> None:
        if failure is None:
            self.send()
        else:
            self._on_answer(failure)


async def run_settled(
    store: Store, settle: Settle, keys: GroupKeys, script: Script, key_names: Sequence[str], *args: Arg
) -> list[Any]:
    """Run a script on a group and return what follows its code. Raises the KafkaError of a code other than NONE."""
    future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def answered(reply: Any) -> None:
        if future.done():
            return
        if isinstance(reply, Exception):
            future.set_exception(reply)
        elif reply[0] != 0:
            future.set_exception(from_code(reply[0]))
        else:
            future.set_result(reply[1:])

    SettledCall(store, settle, keys, script, key_names, args, answered).send()
    return await future
