"""Fixtures that every kind of test shares: one real server a session, a clean store a test."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

from tests.support import acl, plain_logs
from tests.support import clock as stepped
from tests.support.order_of_tests import spread
from tests.support.redis_cluster import Sharded
from tests.support.valkey import ValkeyServer
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate_pipeline.redis_access import connect

hypothesis.settings.register_profile("tidegate", deadline=None)  # times on a busy machine say nothing of the code
hypothesis.settings.load_profile("tidegate")
acl.install()
plain_logs.install()


ON_CLUSTER = os.environ.get("TIDEGATE_TEST_REDIS_CLUSTER") == "1"
"""`make test SUITE=cluster`: what can, on a Redis Cluster of three primaries."""


TIMEOUTS_S: Final = {"spark": 600, "chaos": 400, "conformance": 240}
"""For tests of these folders that name no time-out: they wait for whole jobs, faults or builds of other programs."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the time-out of its folder; the others have the default of pyproject.toml. Spread client tests."""
    items[:] = spread(items, lambda item: item.path, lambda item: _folder(item.path) == "conformance")
    for item in items:
        timeout_s = TIMEOUTS_S.get(_folder(item.path))
        if timeout_s is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(timeout_s))


@cache
def _folder(path: Path) -> str:
    """The folder of a test beside this file, "" elsewhere."""
    tests = Path(__file__).parent
    return path.relative_to(tests).parts[0] if tests in path.parents else ""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave what is collected out of garbage collection: 12,000 tests live until the end, and each pass visits them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """The session's server."""
    if ON_CLUSTER:
        pytest.skip("of one server")
    server = ValkeyServer()
    yield server
    server.stop()


@pytest.fixture
def client(valkey: ValkeyServer) -> Iterator[Any]:
    """The pipeline's way to the session's server, which is empty."""
    opened = connect(valkey.url)
    opened.flushall()
    yield opened
    opened.close()


@pytest.fixture
def debugged_valkey() -> Iterator[ValkeyServer]:
    """An own server that takes DEBUG: `CHANGE-REPL-ID` is what a fail-over does to `master_replid`."""
    server = ValkeyServer(["--enable-debug-command", "yes"])
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_cluster_url() -> Iterator[str | None]:
    """The session's Redis Cluster, None without `TIDEGATE_TEST_REDIS_CLUSTER`."""
    with ExitStack() as stack:
        yield stack.enter_context(Sharded(replicas=0)).url if ON_CLUSTER else None


@pytest.fixture
def settings(
    request: pytest.FixtureRequest, redis_cluster_url: str | None, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Defaults, on the session's server; on a busy machine it may take long to answer a connection."""
    url = redis_cluster_url or request.getfixturevalue("valkey").url
    monkeypatch.setattr(Settings, "redis_connect_timeout_ms", 30_000)
    return _settings(url).model_copy()


@cache
def _settings(url: str) -> Settings:
    """Made once: reading 100 fields and the environment takes as long as a small test."""
    return Settings(redis_url=url)


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    """A store on empty servers, with Redis's own clock."""
    opened = Store(settings)
    await opened.start()
    for node in opened.nodes:
        await node.control.call("FLUSHALL")
    yield opened
    await opened.close()


@pytest.fixture
async def clock(settings: Settings) -> AsyncIterator[stepped.SteppedClock]:
    """A stepped clock with its own store (`clock_store`), on an empty server."""
    stepped.install(by_slot=ON_CLUSTER)
    opened = Store(settings)
    await opened.start()
    for node in opened.nodes:
        await node.control.call("FLUSHALL")
    stepping = stepped.SteppedClock(opened)
    await stepping.set()
    yield stepping
    await opened.close()
    stepped.uninstall()


@pytest.fixture
def clock_store(clock: stepped.SteppedClock) -> Store:
    """The store whose scripts read `clock`."""
    return clock._store
