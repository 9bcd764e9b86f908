"""Background loops start again when they fail, and say so once."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from tidegate.errors import StoreUnavailable
from tidegate.telemetry import background_tasks
from tidegate.telemetry.background_tasks import BackgroundTasks


@pytest.fixture(autouse=True)
def no_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "BACK_OFF_S", (0.0,))


async def test_failed_loop_runs_again_and_is_logged_once() -> None:
    loops, runs = BackgroundTasks(), 0
    done = asyncio.Event()

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise StoreUnavailable("away")
        done.set()
        await asyncio.sleep(60)

    with capture_logs() as lines:
        loops.run("upkeep", loop)
        await asyncio.wait_for(done.wait(), 30)
    await loops.close()

    assert runs == 4
    assert [(line["event"], line["loop"], line["log_level"]) for line in lines] == [
        ("background_loop_failed", "upkeep", "warning")
    ]


async def test_bug_is_logged_with_its_traceback() -> None:
    loops, failed = BackgroundTasks(), asyncio.Event()

    async def loop() -> None:
        if failed.is_set():
            await asyncio.sleep(60)
        failed.set()
        raise ValueError("a bug")

    with capture_logs() as lines:
        loops.run("upkeep", loop)
        await asyncio.wait_for(failed.wait(), 30)
        await asyncio.sleep(0)
    await loops.close()

    assert lines[0]["log_level"] == "error"
    assert isinstance(lines[0]["exc_info"], ValueError)


async def test_every_runs_a_step_again_and_again() -> None:
    loops, runs = BackgroundTasks(), 0
    enough = asyncio.Event()

    async def step() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            enough.set()

    loops.every("step", 1, step)
    await asyncio.wait_for(enough.wait(), 30)
    await loops.close()
    observed = runs
    await asyncio.sleep(0.01)

    assert runs == observed
