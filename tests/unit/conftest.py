"""Fixtures of the unit tests."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def fake_redis(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of an empty fake server, which the CLI and the pipeline reach by any address of one server."""
    from tests.support.fake_redis import FakeRedis  # takes 0.25 s, and most unit tests need no Redis
    from tidegate.store import clients
    from tidegate_pipeline import redis_access

    server = FakeRedis()
    monkeypatch.setattr(clients, "server_client", server.server_client)
    monkeypatch.setattr(redis_access, "_KEPT", {})
    return server.client
