"""Fixtures of the script tests. A scenario of the specification runs in every mode of `SCENARIO_MODES`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from tests.support.clock import SteppedClock
from tests.support.consumers import ConsumerWorld
from tests.support.groups import SCENARIO_MODES, Mode, World
from tests.support.handlers import Broker, FakeCatalog, topic
from tests.support.shares import ShareWorld
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.store import Store

SCENARIO = "test_scenario_"


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests run on the event loop that brokers run on."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each scenario once with one broker, once with each request at another, once without a sweeper.

    Those that ask handlers about stored groups (`broker`) let no time pass, so there is nothing to sweep.
    """
    if not metafunc.function.__name__.startswith(SCENARIO):
        return
    if "world" in metafunc.fixturenames:
        metafunc.parametrize("world", SCENARIO_MODES, indirect=True, ids=str)
    elif "consumers" in metafunc.fixturenames:
        metafunc.parametrize("consumers", SCENARIO_MODES, indirect=True, ids=str)
    elif "broker" in metafunc.fixturenames:
        metafunc.parametrize("broker", [Mode.ONE, Mode.ELSEWHERE], indirect=True, ids=str)


@pytest.fixture
async def world(settings: Settings, clock: SteppedClock, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Brokers with a stepped clock; sessions 10 s, initial delay 3 s."""
    opened = World(settings, clock, mode=getattr(request, "param", Mode.SHARED))
    await opened.start()
    yield opened
    await opened.close()


@pytest.fixture
async def broker(store: Store, settings: Settings, request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """The handlers of one broker, or of two that take turns; topics `t1` and `t2` of four partitions."""
    others = [Store(settings)] if getattr(request, "param", Mode.ONE) is Mode.ELSEWHERE else []
    for other in others:
        await other.start()
    yield Broker(store, FakeCatalog(topic("t1", number=1), topic("t2", number=2)), others=others)
    for other in others:
        await other.close()


@pytest.fixture
def keys(store: Store) -> GroupKeys:
    """The keys of the group `orders`."""
    return store.group_keys("default", "orders")


@pytest.fixture
async def consumers(
    settings: Settings, clock: SteppedClock, request: pytest.FixtureRequest
) -> AsyncIterator[ConsumerWorld]:
    """Brokers of KIP-848 groups with a stepped clock; sessions 45 s, heartbeats every 5 s."""
    opened = ConsumerWorld(settings, clock, mode=getattr(request, "param", Mode.SHARED))
    await opened.start()
    yield opened
    await opened.close()


@pytest.fixture
async def shares(settings: Settings, clock: SteppedClock) -> AsyncIterator[ShareWorld]:
    """Two brokers with share groups, topics and a stepped clock; the group `jobs` reads from the earliest offset."""
    opened = ShareWorld(settings, clock)
    await opened.start()
    await opened.configure(share_auto_offset_reset="earliest")
    yield opened
    await opened.close()
