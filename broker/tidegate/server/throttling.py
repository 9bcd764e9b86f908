"""Requests of clients with quotas: their use is counted; beyond the quota the connection is muted (KIP-13, KIP-219).

The reply is sent at once with its throttle time, then the broker reads no more from the connection until that has
passed. Other connections are not affected. Without quotas none of this exists: the server takes requests of the plain
class by the plain routes, and exchanges both when the first quota is set.
"""

from __future__ import annotations

import asyncio
import copy
import math
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from time import perf_counter
from typing import Any, Final

from tidegate.apis.call import Body, Client
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.primitives import Buffer
from tidegate.protocol.throttle_time import with_throttle_time
from tidegate.protocol.versions import Fields
from tidegate.quotas.buckets import Bucket
from tidegate.quotas.entities import Quota
from tidegate.quotas.leases import ClientLimits, QuotaLeases
from tidegate.server.pending_request import PendingRequest, Pipeline
from tidegate.server.routes import Route, Routes
from tidegate.telemetry.metrics import metrics

_FETCHES: Final = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
_MUTATIONS: Final = frozenset({ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS})
_MAX_BYTES_FROM: Final = {ApiKey.FETCH: 3, ApiKey.SHARE_FETCH: 0}
"""First version whose requests limit the bytes of the reply."""


class Metered(PendingRequest):
    """A request that spends the tokens of its client; `leases` is set by `metered`."""

    leases: QuotaLeases

    def __init__(
        self, connection: Pipeline, route: Route, correlation_id: int, data: Buffer, start: int, end: int, now_s: float
    ) -> None:
        super().__init__(connection, route, correlation_id, data, start, end, now_s)
        self.throttle_s = self.spent_s = self.entered_s = 0.0
        self.limits = limits = _limits_of(self.leases, self.client, connection.client_id)
        if limits is not None and route.key == ApiKey.PRODUCE:
            self._throttle(Quota.PRODUCE, self.leases.spend(limits.produce, end - start))

    def reply(self, body: Body | Sequence[Body]) -> None:
        if self.limits is None or self.answer is not None:
            super().reply(body)
            return
        if self.api_key in _FETCHES:
            size = len(body) if isinstance(body, Body) else sum(map(len, body))
            self._throttle(Quota.FETCH, self.leases.spend(self.limits.fetch, size))
        self._spend_time(self.limits)
        if self.throttle_s:
            body = with_throttle_time(self.api_key, self.version, body, math.ceil(self.throttle_s * 1000))
        super().reply(body)

    def mute(self, seconds: float) -> None:
        self.throttle_s = max(self.throttle_s, seconds)
        super().mute(seconds)

    def drop(self) -> None:
        if self.limits is not None and self.answer is None:
            self._spend_time(self.limits)
        super().drop()

    def _spend_time(self, limits: ClientLimits) -> None:
        if limits.mutation and self.api_key in _MUTATIONS:
            throttle_s, self.client.mutation_throttle_s = self.client.mutation_throttle_s, 0.0
            self._throttle(Quota.MUTATION, throttle_s)
        if limits.request:
            inside_s = perf_counter() - self.entered_s if self.entered_s else 0.0
            self._throttle(Quota.REQUEST, self.leases.spend_request_time(limits.request, self.spent_s + inside_s))

    def _throttle(self, quota: Quota, throttle_s: float) -> None:
        if throttle_s > 0:
            metrics.throttled(quota.value).observe(throttle_s)
            self.mute(throttle_s)


def metered(plain: type[PendingRequest], leases: QuotaLeases) -> type[PendingRequest]:
    """The class of requests of a server with quotas; `plain` is the one without."""
    return type("MeteredRequest", (Metered, plain), {"leases": leases})


def _limits_of(leases: QuotaLeases, client: Client, client_id: str) -> ClientLimits | None:
    """The limits of a client; None before it has authenticated."""
    if client.sasl is not None and client.sasl.identity is None:
        return None
    return leases.of_client(client.org, client.principal, client_id)


class MeteredRoutes(Routes):
    """The same routes; the time that their handlers take is measured, and replies to fetches are limited."""

    def __init__(self, plain: Routes) -> None:
        super().__init__({})
        self._plain = plain

    def find(self, route_key: int) -> Route | None:
        found = self._plain.get(route_key) or self._plain.find(route_key)
        if found is None:
            return None
        route = copy.copy(found)
        measure = _inline if route.inline else _task
        route.handler, route.large = measure(found.handler), measure(found.large)
        if route.key in _FETCHES and route.version >= _MAX_BYTES_FROM[route.key]:
            route.handler, route.large = _bounded(route.handler), _bounded(route.large)
        if route_key in self._plain:  # not the answer to a version that is not served
            self[route_key] = route
        return route

    def prepare(self, api_key: int) -> None:
        self._plain.prepare(api_key)

    def is_slow(self, route_key: int) -> bool:
        return self._plain.is_slow(route_key)

    def load(self, route_key: int) -> asyncio.Task[None]:
        return self._plain.load(route_key)


def _bounded(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Reads no more for one reply than may be fetched at once: a larger one would be throttled in any case."""

    def handle(pending: Any, request: Any) -> Any:
        limits = pending.limits
        most = _burst(limits.fetch) if limits is not None else math.inf
        if request.max_bytes > most:
            request = Fields(request, max_bytes=int(most))
        return handler(pending, request)

    return handle


def _burst(buckets: Sequence[Bucket]) -> float:
    return min((bucket.capacity for bucket in buckets), default=math.inf)


def _inline(handler: Callable[..., Any]) -> Callable[..., Any]:
    def handle(pending: Any, request: Any) -> None:
        pending.entered_s = perf_counter()
        try:
            handler(pending, request)
        finally:
            pending.spent_s += perf_counter() - pending.entered_s
            pending.entered_s = 0.0

    return handle


def _task(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def handle(pending: Any, request: Any) -> Any:
        return await _steps(handler(pending, request), pending)

    return handle


@types.coroutine
def _steps(coroutine: Coroutine[Any, Any, Any], pending: Any) -> Generator[Any, Any, Any]:
    """Run a coroutine; only its own steps count, not what it waits for."""
    step: Callable[[Any], Any] = coroutine.send
    value: Any = None
    while True:
        started_s = perf_counter()
        try:
            awaited = step(value)
        except StopIteration as end:
            return end.value
        finally:
            pending.spent_s += perf_counter() - started_s
        try:
            value, step = (yield awaited), coroutine.send
        except BaseException as error:  # noqa: BLE001 - a cancellation, for example, is the coroutine's to handle
            value, step = error, coroutine.throw
