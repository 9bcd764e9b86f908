"""When connections are closed for brokers that join, on a clock that a test steps."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.server.connection_rebalancing import PAUSE_FACTOR_MAX, ConnectionRebalancer


class Clock:
    """A loop's clock and timers."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Any:
        due = (self.now_s + delay_s, len(self._timers), call)
        heapq.heappush(self._timers, due)
        clock = self

        class Handle:
            def cancel(self) -> None:
                clock._timers.remove(due)

        return Handle()

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            self.now_s, _, call = heapq.heappop(self._timers)
            call()
        self.now_s = end_s


class World:
    """Brokers that join and leave, and when connections were closed for how many."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._processes = itertools.count()
        self.serving = {1: "first process", 2: "first process"}
        self.made: list[tuple[float, float]] = []
        self.spreading = ConnectionRebalancer(self._shed_connections, lambda: set(self.serving.items()), 60_000)

    def _shed_connections(self, share: float) -> None:
        self.made.append((self.clock.now_s - 1_000, share))

    def wait_for_state(self, *node_ids: int) -> None:
        joined = {node_id: f"process {next(self._processes)}" for node_id in node_ids}
        self.serving |= joined
        self.spreading.on_broker_joined(joined.items())

    def leave(self, node_id: int) -> None:
        del self.serving[node_id]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    clock = Clock()
    monkeypatch.setattr("tidegate.server.connection_rebalancing.asyncio.get_running_loop", lambda: clock)
    return World(clock)


def test_rebalance_after_a_calm_time_sheds_connections_at_once(world: World) -> None:
    world.wait_for_state(3)
    world.clock.advance(3_600)
    world.wait_for_state(4)

    assert world.made == [(0, 1 / 3), (3_600, 1 / 4)]


def test_rebalance_brokers_that_join_within_the_pause_share_a_window(world: World) -> None:
    world.wait_for_state(3)
    for node_id in (4, 5, 6):
        world.clock.advance(10)
        world.wait_for_state(node_id)
    world.clock.advance(600)

    assert world.made == [(0, 1 / 3), (60, 3 / 6)]


def test_rebalance_joining_brokers_alone_do_not_lengthen_the_pause(world: World) -> None:
    for node_id in range(3, 9):
        world.wait_for_state(node_id)
        world.clock.advance(60)

    assert [at_s for at_s, _ in world.made] == [0, 60, 120, 180, 240, 300]


def test_rebalance_broker_that_joined_and_left_costs_no_connection(world: World) -> None:
    world.wait_for_state(3)
    world.clock.advance(10)
    world.wait_for_state(4)
    world.clock.advance(10)
    world.leave(4)
    world.clock.advance(600)

    assert world.made == [(0, 1 / 3)]


def test_rebalance_flapping_broker_lengthens_the_pauses_up_to_a_limit(world: World) -> None:
    for node_id in range(3, 1_003):
        world.wait_for_state(node_id)
        world.clock.advance(20)
        world.leave(node_id)
        world.clock.advance(5)

    pauses = [after - before for (before, _), (after, _) in zip(world.made, world.made[1:], strict=False)]
    assert min(pauses) >= 60
    assert len(world.made) <= 5 + 25_000 / (60 * PAUSE_FACTOR_MAX)


def test_one_that_flaps_slower_than_the_pause_is_noticed_too(world: World) -> None:
    for node_id in range(3, 103):
        world.wait_for_state(node_id)
        world.clock.advance(50)
        world.leave(node_id)
        world.clock.advance(50)

    assert len(world.made) <= 5 + 10_000 / (60 * PAUSE_FACTOR_MAX)


def test_one_that_flaps_under_one_node_id_is_noticed_too(world: World) -> None:
    """As one does that starts again at its address."""
    for _ in range(300):
        world.leave(2)
        world.clock.advance(3)
        world.wait_for_state(2)
        world.clock.advance(41)

    pauses = [after - before for (before, _), (after, _) in zip(world.made, world.made[1:], strict=False)]
    assert min(pauses) >= 60 and max(pauses) >= 60 * PAUSE_FACTOR_MAX
    assert len(world.made) <= 5 + 300 * 44 / (60 * PAUSE_FACTOR_MAX)


def test_after_a_calm_time_flapping_is_forgotten(world: World) -> None:
    for node_id in range(3, 23):
        world.wait_for_state(node_id)
        world.clock.advance(90)
        world.leave(node_id)
    world.clock.advance(5 * 60 * PAUSE_FACTOR_MAX)
    before = len(world.made)

    world.wait_for_state(100)
    world.clock.advance(60)
    world.wait_for_state(101)

    assert len(world.made) == before + 2


def test_rebalance_leaving_broker_sheds_no_connections(world: World) -> None:
    world.wait_for_state(3)
    world.clock.advance(10)
    world.wait_for_state(4)
    world.spreading.close()
    world.clock.advance(600)

    assert len(world.made) == 1
