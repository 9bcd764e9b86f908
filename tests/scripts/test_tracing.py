"""Spans of requests, and of the scripts that they run, as an exporter gets them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.kit.wire import RawClient
from tests.kit.wire import request as asked
from tests.support.whole_broker import WholeBroker
from tidegate.apis import registry
from tidegate.server.listener import Server
from tidegate.server.pending_request import PendingRequest
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.store import Store
from tidegate.tracing import Tracing


@dataclass
class Traced:
    """A broker behind a port, and the spans that ended."""

    broker: WholeBroker
    server: Server
    client: RawClient
    exporter: InMemorySpanExporter

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
async def traced(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Traced]:
    """Every request is traced, unless a test says another sampler."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", getattr(request, "param", "always_on"))
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    broker = WholeBroker(settings)
    broker.store = tracing.store(settings)
    await broker.start()
    server = tracing.server(broker.context, registry.load_all(), settings)
    port = await server.open("127.0.0.1", 0)
    async with await RawClient.connect(f"127.0.0.1:{port}", "billing-1") as client:
        yield Traced(broker, server, client, exporter)
    await server.close()
    await broker.close()
    tracing.close()


def heartbeat() -> Any:
    return HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)


def create_topic(name: str) -> Any:
    topic = {"name": name, "num_partitions": 1, "replication_factor": -1,
             "assignments": (), "configs": ()}  # fmt: skip
    return asked(19, 7, topics=[topic], validate_only=False)


async def test_request_is_a_span_and_its_scripts_are_below_it(traced: Traced) -> None:
    await traced.client.ask(create_topic("t"))

    [span] = traced.spans("create_topics")
    below = [one for one in traced.exporter.get_finished_spans() if one.name.startswith("script ")]
    assert span.kind is SpanKind.SERVER and span.status.status_code is StatusCode.UNSET
    assert span.attributes is not None and span.attributes["kafka.api_version"] == 7
    assert span.attributes["kafka.client_id"] == "billing-1"
    assert {one.name for one in below} >= {"script topics/create_topic"}
    for one in below:
        assert one.parent is not None and one.parent.span_id == span.context.span_id
        assert one.kind is SpanKind.CLIENT
        assert span.start_time <= one.start_time <= one.end_time <= span.end_time  # type: ignore[operator]


async def test_traced_inline_request_has_a_span(traced: Traced) -> None:
    answer = await traced.client.ask(heartbeat())

    [span] = traced.spans("heartbeat")
    assert answer.error_code.name == "unknown_member_id"
    assert [one.name for one in traced.exporter.get_finished_spans() if one.parent is not None] == [
        "script groups/heartbeat"
    ]
    assert span.end_time is not None


async def test_traced_failed_request_has_an_error(traced: Traced) -> None:
    await traced.broker.store.close()
    await traced.client.ask(asked(16, 5, states_filter=(), types_filter=()))

    [span] = traced.spans("list_groups")
    assert span.status.status_code is StatusCode.ERROR and span.status.description == "coordinator_not_available"


@pytest.mark.parametrize("traced", ["always_off"], indirect=True)
async def test_unsampled_request_has_no_span(traced: Traced) -> None:
    await traced.client.ask(create_topic("t"))

    assert traced.exporter.get_finished_spans() == ()


async def test_scripts_that_no_request_runs_are_none(traced: Traced) -> None:
    await traced.broker.create("made-here")

    assert traced.exporter.get_finished_spans() == ()


async def test_without_tracing_there_is_nothing_of_it(settings: Settings, store: Store) -> None:
    broker = await WholeBroker(settings).start()
    server = Server(broker.context, registry.load_all(), settings)
    route = server.routes.find(12 << 16 | 4)

    assert server.request_type is PendingRequest and type(broker.store) is Store and not settings.tracing
    assert route is not None and route.handler is registry.served[12].handler
    await server.close()
    await broker.close()


def test_tracing_without_the_extra_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(CannotStart, match=r"pip install tidegate\[otel\]"):
        Tracing()
