"""Requests with an OpenTelemetry span; the class is chosen at the start, so untraced brokers pay nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, use_span

from tidegate.apis.call import BrokerContext
from tidegate.apis.registry import Api
from tidegate.protocol.primitives import Buffer
from tidegate.server.listener import Server
from tidegate.server.pending_request import PendingRequest, Pipeline
from tidegate.server.routes import Route
from tidegate.settings import Settings


def traced_server(
    tracer: Tracer,
    context: BrokerContext,
    apis: Mapping[int, Api],
    settings: Settings,
) -> Server:
    """A server that creates a span for every request; scripts that its handler runs are child spans."""

    class TracedRequest(PendingRequest):
        """A request with a span from its last byte to its reply."""

        __slots__ = ("span",)

        def __init__(
            self,
            connection: Pipeline,
            route: Route,
            correlation_id: int,
            data: Buffer,
            start: int,
            end: int,
            now_s: float,
        ) -> None:
            super().__init__(connection, route, correlation_id, data, start, end, now_s)
            self.span: Span = tracer.start_span(route.name, kind=SpanKind.SERVER)
            if self.span.is_recording():
                self.span.set_attributes(
                    {
                        "rpc.system": "kafka",
                        "rpc.method": route.name,
                        "kafka.api_version": route.version,
                        "kafka.client_id": connection.client_id,
                        "kafka.request_bytes": end - start,
                        "client.address": connection.client.host,
                        "tidegate.client_software": connection.client.software.name,
                        "tidegate.org": connection.client.org,
                    }
                )

        def note_error(self, code: ErrorCode) -> None:
            super().note_error(code)
            self.span.set_status(StatusCode.ERROR, code.name)

        def _answered(self) -> None:
            self.span.end()
            super()._answered()

    return Server(context, apis, settings, request_type=TracedRequest, wrap=_within_span)


def _within_span(api: Api) -> Callable[..., Any]:
    handler = api.handler

    def inline(pending: Any, request: Any) -> None:
        with use_span(pending.span):
            handler(pending, request)

    async def task(pending: Any, request: Any) -> Any:
        with use_span(pending.span):
            return await handler(pending, request)

    return inline if api.inline else task
