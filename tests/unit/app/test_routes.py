"""The admin HTTP answers probes and scrapes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from tidegate.http import routes
from tidegate.http.health import Health


async def test_readiness_not_ready_gives_the_reason() -> None:
    app = routes.application(Health(lambda: False, lambda: True, listening=True, draining=True))

    answer = await routes.ready(make_mocked_request("GET", "/health/ready", app=app))

    assert answer.status == 503
    reasons = ["redis is not reachable", "draining"]
    assert json.loads(answer.text or "") == {"ready": False, "reasons": reasons, "redis_scripts": "evalsha"}


async def test_ready_broker_is_200() -> None:
    app = routes.application(Health(lambda: True, lambda: True, runs_functions=lambda: True, listening=True))

    answer = await routes.ready(make_mocked_request("GET", "/health/ready", app=app))

    assert answer.status == 200
    assert json.loads(answer.text or "") == {"ready": True, "reasons": [], "redis_scripts": "functions"}


async def test_broker_is_live_without_redis() -> None:
    app = routes.application(Health(lambda: False, lambda: False))

    assert (await routes.live(make_mocked_request("GET", "/health/live", app=app))).status == 200


async def test_metrics_are_in_prometheus_text() -> None:
    app = routes.application(Health(lambda: True, lambda: True))

    async with TestClient(TestServer(app)) as client, client.get("/metrics") as answer:
        body = await answer.text()

    assert answer.content_type == "text/plain"
    assert "# TYPE tidegate_connections_opened_total counter" in body


@pytest.mark.parametrize("org", ["default:orders", "Default", "", "a" * 64])
async def test_invalid_org_is_400(org: str) -> None:
    context: Any = SimpleNamespace(store=None, audit=None)
    async with TestClient(TestServer(routes.application(Health(lambda: True, lambda: True), context))) as http:
        answer = await http.get("/api/v1/groups", params={"org": org})

        assert answer.status == 400
        assert answer.content_type == "application/problem+json"
        assert (await answer.json())["detail"].startswith("query.org: ")
