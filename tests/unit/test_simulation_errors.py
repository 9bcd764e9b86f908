"""Which errors of brokers a simulation judges."""

from __future__ import annotations

import structlog

from tests.simulation.loop import Process, SimLoop
from tests.simulation.outside import taken_from


async def _broker(loop: SimLoop) -> None:
    try:
        await loop.create_future()
    finally:
        structlog.get_logger().error("log_state_not_loaded")


def test_simulation_judges_no_error_of_a_killed_process() -> None:
    loop, errors = SimLoop(), list[str]()
    with taken_from(loop, 1, errors):
        process = Process("broker")
        process.note(loop.create_task(_broker(loop), context=process.context))
        loop.run_until_complete(_tick())
        process.kill()
        assert errors == []
        structlog.get_logger().error("log_state_not_loaded")
    assert len(errors) == 1
    loop.close()


async def _tick() -> None:
    """Let the tasks that were created begin."""
