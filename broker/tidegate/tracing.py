"""OpenTelemetry: a span a request, sampled; the scripts that it runs below it. Off unless `tracing` is set.

What OpenTelemetry's own variables say holds: OTEL_EXPORTER_OTLP_ENDPOINT and its like, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_*. Clients of Kafka send no context, so each request is a trace.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import tidegate
from tidegate.errors import CannotStart
from tidegate.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from tidegate.server.listener import Server
    from tidegate.store.store import Store

SAMPLED: Final = 0.01
"""The part of requests that are traced where OTEL_TRACES_SAMPLER says nothing else."""


class Tracing:
    """What makes spans, and where they go: by OTLP over HTTP, unless `processor` takes them. Raises CannotStart."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
        except ImportError as error:
            raise CannotStart(f"TIDEGATE_TRACING needs pip install tidegate[otel]: {error}") from None
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "tidegate"}
        self._provider = TracerProvider(
            sampler=None if "OTEL_TRACES_SAMPLER" in os.environ else ParentBasedTraceIdRatio(SAMPLED),
            resource=Resource.create({**named, "service.version": tidegate.__version__}),
        )
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("tidegate", tidegate.__version__)

    def store(self, settings: Settings) -> Store:
        """A store whose scripts are spans."""
        from tidegate.store.traced_store import TracedStore

        return TracedStore(settings, self._tracer)

    def trace(self, server: Server) -> None:
        """Make spans of the server's requests."""
        from tidegate.server.traced_requests import trace_requests

        trace_requests(server, self._tracer)

    def close(self) -> None:
        """Send what is left; this blocks."""
        self._provider.shutdown()
