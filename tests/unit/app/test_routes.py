"""The admin HTTP answers probes and scrapes."""

from __future__ import annotations

import json

from aiohttp.test_utils import make_mocked_request

from broker.admin import routes
from broker.admin.health import Health


async def test_a_broker_that_is_not_ready_says_why() -> None:
    app = routes.application(Health(lambda: False, lambda: True, listening=True, draining=True))

    answer = await routes.ready(make_mocked_request("GET", "/health/ready", app=app))

    assert answer.status == 503
    assert json.loads(answer.text or "") == {"ready": False, "reasons": ["redis is not reachable", "draining"]}


async def test_a_ready_broker_is_200() -> None:
    app = routes.application(Health(lambda: True, lambda: True, listening=True))

    assert (await routes.ready(make_mocked_request("GET", "/health/ready", app=app))).status == 200


async def test_a_broker_is_live_without_redis() -> None:
    app = routes.application(Health(lambda: False, lambda: False))

    assert (await routes.live(make_mocked_request("GET", "/health/live", app=app))).status == 200


async def test_metrics_are_in_prometheus_text() -> None:
    app = routes.application(Health(lambda: True, lambda: True))

    answer = await routes.metrics(make_mocked_request("GET", "/metrics", app=app))

    assert answer.content_type == "text/plain"
    assert isinstance(answer.body, bytes)
    assert b"# TYPE tidegate_connections_opened_total counter" in answer.body
