"""Fixtures of the script tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker.settings import Settings
from tests.support.clock import SteppedClock
from tests.support.groups import World


@pytest.fixture
async def world(settings: Settings, clock: SteppedClock) -> AsyncIterator[World]:
    """Two brokers with a stepped clock; sessions 10 s, initial delay 3 s."""
    opened = World(settings, clock)
    await opened.start()
    yield opened
    await opened.close()
