"""Refuses changes that an operator may have made through another broker meanwhile, with status 503.

That is what waited while this process stood still (`server.stalls`), what a client sent that has gone since, and what
comes to a broker without a lease. The operator looks at what holds now, and repeats the request. What is stored nowhere
is let through: logging in and out, and the drain of this process, which has to end without Redis too.
"""

from __future__ import annotations

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
LEFT: Final = "The client closed its connection before the request was executed."
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


class LateRequests:
    """`middleware` goes inside the access rules: who may change nothing is refused before the body is read."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Execute a change that has just come, whole. Raises Problem."""
        if request.method not in READS and request.path not in _STORED_NOWHERE:
            await self._check(request)
        return await handler(request)

    async def _check(self, request: web.Request) -> None:
        """Raises Problem. The body may come later than the head, with a stall between them."""
        received_s = request.get(RECEIVED_S, perf_counter())
        refuse_late(self._context, received_s)
        try:
            await request.read()
        except (web.RequestPayloadError, http_exceptions.HttpProcessingError):
            raise Problem(400, "The body cannot be read.") from None
        refuse_late(self._context, received_s)
        stalls = self._context.stalls
        if stalls is not None and stalls.has_left(request.transport):
            raise NotExecuted(LEFT)


def refuse_late(context: BrokerContext, received_s: float | None = None) -> None:
    """Check a change whose last bytes were received then, by `perf_counter`. Raises NotExecuted.

    Without a time: one that is under way, in which the process may just have stood still.
    """
    received_s = perf_counter() if received_s is None else received_s
    if context.stalls is not None and context.stalls.is_late(received_s):
        raise NotExecuted(LATE)
    if not context.broker_lease.valid:
        raise NotExecuted(NO_LEASE)
