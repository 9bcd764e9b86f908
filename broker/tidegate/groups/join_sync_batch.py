"""Joins, and syncs, of one event-loop tick: one script enters all requests of a group and answers each separately."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import structlog

from tidegate.errors import StoreUnavailable
from tidegate.groups.expire_and_retry import (
    BrokerName,
    extend_sessions_after_outage,
    group_script_args,
    group_script_keys,
)
from tidegate.groups.tick_batch import Gathered, TickBatch
from tidegate.groups.waiters import GroupStatus
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure, Unknown
from tidegate.store.scripts import Script
from tidegate.store.store import Store

_PER_SCRIPT_MAX: Final = 100

logger = structlog.get_logger()


class BatchReply(NamedTuple):
    """The script's result for one request."""

    answer: list[Any]
    """The request's own answer; its error code comes first."""
    due_ms: int
    """Time until the group's next deadline, ms; -1: it has none."""
    status: GroupStatus | None
    """The group's status if the script ended other requests' waits; only on the last request of the script."""


class _Request(NamedTuple):
    args: Sequence[Arg]
    trailing_args: Sequence[Arg]
    entered: asyncio.Future[BatchReply]


def _unchanged(args: Sequence[Arg]) -> Sequence[Arg]:
    return args


class RequestBatcher:
    """Enters requests into groups with one script. `shared` are the script arguments common to a group's requests.

    `apply_status` gets the status that ends other requests' waits, after the requests of the same script have begun
    theirs. `sent_again` are the arguments of a request that is sent a second time.
    """

    def __init__(
        self,
        store: Store,
        script: Script,
        shared: Callable[[GroupKeys], list[Arg]],
        broker: BrokerName,
        apply_status: Callable[[GroupKeys, GroupStatus], None],
        sent_again: Callable[[Sequence[Arg]], Sequence[Arg]] = _unchanged,
    ) -> None:
        self._store, self._script, self._common_args, self._broker, self._apply_status = (
            store,
            script,
            shared,
            broker,
            apply_status,
        )
        self._sent_again = sent_again
        self._tick: TickBatch[_Request] = TickBatch(self._flush)

    async def submit(self, keys: GroupKeys, args: Sequence[Arg], trailing_args: Sequence[Arg] = ()) -> BatchReply:
        """Enter a request; retried if the reply was lost, which is safe because the arguments identify the request.

        A request with `trailing_args`, which follow all requests, is sent alone. Raises StoreUnavailable.
        """
        try:
            return await self._ask(keys, args, trailing_args)
        except StoreUnavailable:
            await self._store.wait_up(keys.group)
            return await self._ask(keys, self._sent_again(args), trailing_args)

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
        def answered(reply: Any) -> None:
            self._reply(keys, requests, reply)

        try:
            args = self.script_args(keys, [request.args for request in requests], requests[0].trailing_args)
            extend_sessions_after_outage(self._store, keys)
            self._store.send_script(self._script, group_script_keys(keys), args, answered)
        except Exception as error:
            logger.exception("script_not_sent", script=self._script.name)
            answered(Unknown(f"the script could not be sent: {error}"))

    def script_args(
        self, keys: GroupKeys, requests: Sequence[Sequence[Arg]], trailing_args: Sequence[Arg] = ()
    ) -> list[Arg]:
        args = [*group_script_args(self._store, keys, self._broker()), len(requests)]
        args += self._common_args(keys)
        for request in requests:
            args += request
        return [*args, *trailing_args]

    def _reply(self, keys: GroupKeys, requests: Sequence[_Request], reply: Any) -> None:
        if isinstance(reply, Failure):
            for request in requests:
                if not request.entered.done():
                    request.entered.set_exception(reply.error)
            return
        _, due_ms, answers = reply[:3]
        status, last = GroupStatus.from_end_of(reply), len(requests) - 1
        for number, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if not request.entered.done():
                request.entered.set_result(BatchReply(answer, due_ms, status if number == last else None))
        if status is not None:
            self._apply_status(keys, status)
