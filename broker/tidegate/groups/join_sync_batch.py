"""Joins, and syncs, of one event-loop tick: one script enters those of a group, each with an answer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import StoreUnavailable
from tidegate.groups.coalesce import Coalescer, Gathered
from tidegate.groups.expire_and_retry import (
    BrokerName,
    extend_sessions_after_outage,
    group_script_args,
    group_script_keys,
)
from tidegate.groups.waiters import GroupStatus
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.scripts import Script
from tidegate.store.store import Store

_PER_SCRIPT_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class BatchReply:
    """What the script said of one request."""

    answer: list[Any]
    """Code first."""
    due_ms: int
    """Until something of the group falls due; -1: nothing does."""
    status: GroupStatus | None
    """What ended the wait of others, told to the last of the script's requests, behind which nothing else changed."""


@dataclass(frozen=True, slots=True)
class _Request:
    args: Sequence[Arg]
    trailing_args: Sequence[Arg]
    entered: asyncio.Future[BatchReply]


class RequestBatcher:
    """The way into groups by one script. `shared` are its arguments that are the same for every request.

    `apply_status` hears what ended a wait; those whose wait begins with the same answer are told first.
    """

    def __init__(
        self,
        store: Store,
        script: Script,
        shared: Callable[[Settings], list[Arg]],
        broker: BrokerName,
        apply_status: Callable[[GroupKeys, GroupStatus], None],
    ) -> None:
        self._store, self._script, self._common_args, self._broker, self._apply_status = (
            store,
            script,
            shared,
            broker,
            apply_status,
        )
        self._tick: Coalescer[_Request] = Coalescer(self._flush)

    async def submit(self, keys: GroupKeys, args: Sequence[Arg], trailing_args: Sequence[Arg] = ()) -> BatchReply:
        """Enter a request; once more where the answer was lost, for the script knows its arguments again.

        `trailing_args` goes behind all requests, so one that has it goes alone. Raises StoreUnavailable.
        """
        try:
            return await self._ask(keys, args, trailing_args)
        except StoreUnavailable:
            await self._store.wait_up(keys.group)
            return await self._ask(keys, args, trailing_args)

    def _ask(self, keys: GroupKeys, args: Sequence[Arg], trailing_args: Sequence[Arg]) -> asyncio.Future[BatchReply]:
        request = _Request(args, trailing_args, asyncio.get_running_loop().create_future())
        if trailing_args:
            self._send(keys, [request])
        else:
            self._tick.add(keys, request)
        return request.entered

    def _flush(self, groups: Gathered[_Request]) -> None:
        for keys, requests in groups:
            for first in range(0, len(requests), _PER_SCRIPT_MAX):
                self._send(keys, requests[first : first + _PER_SCRIPT_MAX])

    def _send(self, keys: GroupKeys, requests: Sequence[_Request]) -> None:
        args = self.script_args(keys, [request.args for request in requests], requests[0].trailing_args)

        def answered(reply: Any) -> None:
            self._reply(keys, requests, reply)

        extend_sessions_after_outage(self._store, keys)
        self._store.send_script(self._script, group_script_keys(keys), args, answered)

    def script_args(
        self, keys: GroupKeys, requests: Sequence[Sequence[Arg]], trailing_args: Sequence[Arg] = ()
    ) -> list[Arg]:
        """All arguments of the script."""
        args = [*group_script_args(self._store, keys, self._broker()), len(requests)]
        args += self._common_args(self._store.settings)
        for request in requests:
            args += request
        return [*args, *trailing_args]

    def _reply(self, keys: GroupKeys, requests: Sequence[_Request], reply: Any) -> None:
        if isinstance(reply, Exception):
            for request in requests:
                if not request.entered.done():
                    request.entered.set_exception(StoreUnavailable(str(reply)))
            return
        _, due_ms, answers = reply[:3]
        status, last = GroupStatus.behind(reply), len(requests) - 1
        for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if not request.entered.done():
                request.entered.set_result(BatchReply(answer, due_ms, status if number == last else None))
        if status is not None:
            self._apply_status(keys, status)
