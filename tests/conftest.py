"""Fixtures that every kind of test shares: one real server a session, a clean store a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from broker.settings import Settings
from broker.store.store import Store
from pipeline.redis_access import connect
from tests.support import acl
from tests.support import clock as stepped
from tests.support.valkey import ValkeyServer

acl.install()


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    """The session's server."""
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
def settings(valkey: ValkeyServer) -> Settings:
    """Defaults, on the session's server."""
    return Settings(redis_url=valkey.url)


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    """A store on an empty server, with Redis's own clock."""
    opened = Store(settings)
    await opened.start()
    await opened.command("FLUSHALL")
    yield opened
    await opened.close()


@pytest.fixture
async def clock(settings: Settings) -> AsyncIterator[stepped.SteppedClock]:
    """A stepped clock with its own store (`clock_store`), on an empty server."""
    stepped.install()
    opened = Store(settings)
    await opened.start()
    await opened.command("FLUSHALL")
    stepping = stepped.SteppedClock(opened)
    await stepping.set()
    yield stepping
    await opened.close()
    stepped.uninstall()


@pytest.fixture
def clock_store(clock: stepped.SteppedClock) -> Store:
    """The store whose scripts read `clock`."""
    return clock._store
