"""Refuses changes that an operator may have made through another broker meanwhile, with status 503.

That is what waited while this process stood still (`server.stalls`), what a client sent that has gone since, and what
comes to a broker without a lease. An action under way is checked again after it has read what it needs. The operator
looks at what holds now, and repeats the request. What is stored nowhere is let through: logging in and out, and the
drain of this process, which has to end without Redis too.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from aiohttp import http_exceptions, web
from aiohttp.typedefs import Handler

from tidegate.apis.call import BrokerContext
from tidegate.cluster.audit import REFUSED
from tidegate.http.access import LOGIN_PATH, LOGOUT_PATH, OWN_DRAIN_PATH
from tidegate.http.connection_limiter import RECEIVED_S
from tidegate.http.forms import READS
from tidegate.http.problems import Problem

LATE: Final = (
    "This broker stood still meanwhile and did not execute the request, or not all of it: "
    "look at what holds now, then repeat it."
)
LEFT: Final = "The client closed its connection before the whole request was executed."
NO_LEASE: Final = (
    "This broker has no valid lease and changes nothing now: Redis does not answer, or another broker has its node id. "
    "Repeat the request, or send it to another broker."
)
_STORED_NOWHERE: Final = (LOGIN_PATH, LOGOUT_PATH, OWN_DRAIN_PATH)


class NotExecuted(Problem):
    """A change that is not executed, or not further."""

    def __init__(self, detail: str) -> None:
        super().__init__(503, detail, headers={"Retry-After": "1"})
        self.outcome = REFUSED


@dataclass(frozen=True, slots=True)
class _Received:
    """When the last bytes of a change were received, by `perf_counter`, and the connection."""

    at_s: float
    transport: asyncio.Transport | None


_received: ContextVar[_Received | None] = ContextVar("_received", default=None)
"""The change that the current task executes; None outside an HTTP request."""


class LateRequests:
    """`middleware` goes inside the access rules: who may change nothing is refused before the body is read."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Execute a change that has just come, whole. Raises Problem."""
        if request.method in READS or request.path in _STORED_NOWHERE:
            return await handler(request)
        token = _received.set(_Received(request.get(RECEIVED_S, perf_counter()), request.transport))
        try:
            await self._read(request)
            return await handler(request)
        finally:
            _received.reset(token)

    async def _read(self, request: web.Request) -> None:
        """Raises Problem. The body may come later than the head, with a stall between them."""
        refuse_late(self._context)
        try:
            await request.read()
        except (web.RequestPayloadError, http_exceptions.HttpProcessingError):
            raise Problem(400, "The body cannot be read.") from None
        refuse_late(self._context)


def refuse_late(context: BrokerContext) -> None:
    """Check the change that the current task executes, also while it is under way. Raises NotExecuted.

    A stall counts from the time when the request was received, however long ago it ended. Outside an HTTP request, one
    that has just ended counts.
    """
    received, stalls = _received.get(), context.stalls
    if stalls is not None and stalls.is_late(perf_counter() if received is None else received.at_s):
        raise NotExecuted(LATE)
    if not context.broker_lease.valid:
        raise NotExecuted(NO_LEASE)
    if stalls is not None and received is not None and stalls.has_left(received.transport):
        raise NotExecuted(LEFT)
