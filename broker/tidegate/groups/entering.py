"""Joins, and syncs, of one event-loop tick: one script enters those of a group, each with an answer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import StoreUnavailable
from tidegate.groups.coalesce import Coalescer, Gathered
from tidegate.groups.settled import BrokerName, forgive, group_script_args, group_script_keys
from tidegate.groups.waiters import Look
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

_PER_SCRIPT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Entered:
    """What the script said of one request."""

    answer: list[Any]
    """Code first."""
    due_ms: int
    """Until something of the group falls due; -1: nothing does."""
    look: Look | None
    """What ended the wait of others, told to the last of the script's requests, behind which nothing else changed."""


@dataclass(frozen=True, slots=True)
class _Request:
    args: Sequence[Arg]
    rest: Sequence[Arg]
    entered: asyncio.Future[Entered]


class Entering:
    """The way into groups by one script. `shared` are its arguments that are the same for every request.

    `saw` hears what ended a wait; those whose wait begins with the same answer are told first.
    """

    def __init__(
        self,
        store: Store,
        script: Script,
        shared: Callable[[Settings], list[Arg]],
        broker: BrokerName,
        saw: Callable[[GroupKeys, Look], None],
    ) -> None:
        self._store, self._script, self._shared, self._broker, self._saw = store, script, shared, broker, saw
        self._tick: Coalescer[_Request] = Coalescer(self._flush)

    async def enter(self, keys: GroupKeys, args: Sequence[Arg], rest: Sequence[Arg] = ()) -> Entered:
        """Enter a request; once more where the answer was lost, for the script knows its arguments again.

        `rest` goes behind all requests, so one that has it goes alone. Raises StoreUnavailable.
        """
        try:
            return await self._ask(keys, args, rest)
        except StoreUnavailable:
            await self._store.wait_up(keys.group)
            return await self._ask(keys, args, rest)

    def _ask(self, keys: GroupKeys, args: Sequence[Arg], rest: Sequence[Arg]) -> asyncio.Future[Entered]:
        request = _Request(args, rest, asyncio.get_running_loop().create_future())
        if rest:
            self._send(keys, [request])
        else:
            self._tick.add(keys, request)
        return request.entered

    def _flush(self, groups: Gathered[_Request]) -> None:
        for keys, requests in groups:
            for first in range(0, len(requests), _PER_SCRIPT_MAX):
                self._send(keys, requests[first : first + _PER_SCRIPT_MAX])

    def _send(self, keys: GroupKeys, requests: Sequence[_Request]) -> None:
        args = self.script_args(keys, [request.args for request in requests], requests[0].rest)

        def answered(reply: Any) -> None:
            self._tell(keys, requests, reply)

        forgive(self._store, keys)
        self._store.send_script(self._script, group_script_keys(keys), args, answered)

    def script_args(self, keys: GroupKeys, requests: Sequence[Sequence[Arg]], rest: Sequence[Arg] = ()) -> list[Arg]:
        """All arguments of the script."""
        args = [*group_script_args(self._store, keys, self._broker()), len(requests)]
        args += self._shared(self._store.settings)
        for request in requests:
            args += request
        return [*args, *rest]

    def _tell(self, keys: GroupKeys, requests: Sequence[_Request], reply: Any) -> None:
        if isinstance(reply, Exception):
            for request in requests:
                if not request.entered.done():
                    request.entered.set_exception(StoreUnavailable(str(reply)))
            return
        _, due_ms, answers = reply[:3]
        look, last = Look.behind(reply), len(requests) - 1
        for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if not request.entered.done():
                request.entered.set_result(Entered(answer, due_ms, look if number == last else None))
        if look is not None:
            self._saw(keys, look)
