"""OpenTelemetry: one sampled span per request, with its scripts as child spans. Off unless `tracing` is set.

OpenTelemetry's own variables apply: OTEL_EXPORTER_OTLP_ENDPOINT and related ones, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_*. Kafka clients send no trace context, so each request is a
trace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import tidegate
from tidegate.settings import Settings
from tidegate.startup import CannotStart

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

    from tidegate.apis.call import BrokerContext
    from tidegate.apis.registry import Api
    from tidegate.server.listener import Server
    from tidegate.store.store import Store

SAMPLED: Final = 0.01
"""Default sampling ratio of requests, unless OTEL_TRACES_SAMPLER is set."""


class Tracing:
    """Creates spans and exports them by OTLP over HTTP, or to `processor`. Raises CannotStart."""

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
        """A store that creates a span for each script."""
        from tidegate.store.traced_store import TracedStore

        return TracedStore(settings, self._tracer)

    def server(self, context: BrokerContext, apis: Mapping[int, Api], settings: Settings) -> Server:
        """A server that creates a span for each request."""
        from tidegate.server.traced_requests import traced_server

        return traced_server(self._tracer, context, apis, settings)

    def close(self) -> None:
        """Export the remaining spans; blocks."""
        self._provider.shutdown()
