"""When Redis counts as just recovered, on a clock that is stepped."""

from __future__ import annotations

import pytest

from tidegate.store.redis_outage import RedisOutage


class Nodes:
    """Whether all nodes are connected, and the clock."""

    def __init__(self) -> None:
        self.up = True
        self.now_s = 100.0

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
async def outage(nodes: Nodes) -> RedisOutage:
    opened = RedisOutage(lambda: nodes.up)
    opened._loop = nodes  # type: ignore[assignment]
    return opened


async def test_outage_counts_until_a_while_after_all_nodes_are_up(nodes: Nodes, outage: RedisOutage) -> None:
    nodes.up = False
    outage.down()
    assert not outage.recently_recovered  # short absences are covered by retries
    nodes.now_s += 3.0
    assert outage.recently_recovered

    nodes.up = True
    outage.up()
    nodes.now_s += 4.0
    assert outage.recently_recovered
    nodes.now_s += 2.0
    assert not outage.recently_recovered


async def test_connection_of_a_removed_node_that_ends_later_is_no_lasting_outage(
    nodes: Nodes, outage: RedisOutage
) -> None:
    """No connection comes up behind it, and while Redis counts as recovered, dead members are kept."""
    outage.down()
    nodes.now_s += 60.0
    assert outage.recently_recovered  # noticed only now
    nodes.now_s += 6.0
    assert not outage.recently_recovered
    nodes.now_s += 600.0
    assert not outage.recently_recovered
