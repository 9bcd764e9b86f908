"""When a node of Redis counts as just recovered, on a clock that is stepped."""

from __future__ import annotations

import pytest

from tidegate.store.redis_outage import RedisOutage


class SteppedLoop:
    """The clock."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def loop() -> SteppedLoop:
    return SteppedLoop()


@pytest.fixture
async def outages(loop: SteppedLoop) -> tuple[RedisOutage, RedisOutage]:
    """Of two nodes."""
    opened = RedisOutage(), RedisOutage()
    for one in opened:
        one._loop = loop  # type: ignore[assignment]
    return opened


Outages = tuple[RedisOutage, RedisOutage]


async def test_outage_counts_until_a_while_after_the_node_is_up(loop: SteppedLoop, outages: Outages) -> None:
    outage, _ = outages
    outage.down()
    assert not outage.recently_recovered  # short absences are covered by retries
    loop.now_s += 3.0
    assert outage.recently_recovered
    assert not outage.has_returned

    outage.up()
    loop.now_s += 4.0
    assert outage.recently_recovered
    assert outage.has_returned
    loop.now_s += 2.0
    assert not outage.recently_recovered


async def test_outage_of_one_node_is_none_of_another(loop: SteppedLoop, outages: Outages) -> None:
    outages[0].down()
    loop.now_s += 60.0

    assert [one.recently_recovered for one in outages] == [True, False]


async def test_inherit_of_a_node_that_is_away_lasts_until_the_new_one_is_up(
    loop: SteppedLoop, outages: Outages
) -> None:
    before, outage = outages
    before.down()
    loop.now_s += 3.0
    outage.inherit(before)
    loop.now_s += 60.0
    assert outage.recently_recovered

    outage.up()
    loop.now_s += 4.0
    assert outage.recently_recovered
    loop.now_s += 2.0
    assert not outage.recently_recovered


async def test_inherit_of_a_node_that_does_not_answer_counts_from_its_oldest_command(
    loop: SteppedLoop, outages: Outages
) -> None:
    before, outage = outages
    before.asked()
    loop.now_s += 1.5
    before.asked()
    loop.now_s += 0.5
    outage.inherit(before)
    outage.up()

    assert outage.recently_recovered


async def test_inherit_of_a_node_that_answers_is_no_outage(loop: SteppedLoop, outages: Outages) -> None:
    before, outage = outages
    before.asked()
    loop.now_s += 3.0
    before.answered()
    before.asked()
    outage.inherit(before)
    outage.up()

    assert not outage.recently_recovered


async def test_inherit_of_a_node_that_has_just_returned_lasts_as_long_as_there(
    loop: SteppedLoop, outages: Outages
) -> None:
    before, outage = outages
    before.observe_wait(2.0)
    loop.now_s += 3.0
    outage.inherit(before)
    outage.up()
    assert outage.recently_recovered
    loop.now_s += 3.0
    assert not outage.recently_recovered
