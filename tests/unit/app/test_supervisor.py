"""The supervisor starts brokers again that died, and no others; a signal ends all. Time is stepped, nothing forked."""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from typing import Any, cast

import pytest

from tidegate.forks import Events, Forks
from tidegate.settings import Settings
from tidegate.supervisor import DRAIN_SIGNAL, Supervisor


class ScriptedForks:
    """Children that exist by name only. Each `wait` plays the next step; its return value is what happened."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.started: list[tuple[float, int]] = []
        """Times and ordinals of starts; the child's id is its place here, plus one."""
        self.signals: list[tuple[int, int]] = []
        self.waited: list[float | None] = []
        self.steps: list[Callable[[], Events]] = []
        self.failures: list[int] = []
        """Errors of the next forks."""

    def start(self, run: Any) -> int:
        if self.failures:
            raise OSError(self.failures.pop(), "Resource temporarily unavailable")
        run()
        return len(self.started)

    def wait(self, timeout_s: float | None = None) -> Events:
        self.waited.append(timeout_s)
        return self.steps.pop(0)()

    def signal(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))

    def then(self, step_s: float, *, signals: tuple[int, ...] = (), **ended: int) -> None:
        """After `step_s`, these signals arrive and these children end: pid1=exit code."""

        def happen() -> Events:
            self.now_s += step_s
            return Events(list(signals), {int(pid.removeprefix("pid")): code for pid, code in ended.items()})

        self.steps.append(happen)


class Run:
    """A supervisor of two processes."""

    def __init__(self, serving: bool = True) -> None:
        self.forks = ScriptedForks()

        def run_broker(settings: Settings, host: Any) -> None:
            self.forks.started.append((self.forks.now_s, host.ordinal))
            if serving:
                host.page.report(host.ordinal, True, self.forks.now_s + 1e-3)

        self.supervisor = Supervisor(
            Settings(processes=2, shutdown_timeout_ms=4_000),
            cast(Forks, self.forks),
            run_broker,
            lambda: self.forks.now_s,
        )


def test_killed_process_is_started_again_after_growing_pauses() -> None:
    run = Run()
    run.forks.then(1.0, pid1=-9)
    run.forks.then(0.125)
    run.forks.then(1.0, pid3=1)
    run.forks.then(0.25)
    run.forks.then(0.0, signals=(signal.SIGTERM,))
    run.forks.then(0.1, pid2=0, pid4=0)

    assert run.supervisor.run() == 0
    assert run.forks.started == [(0.0, 0), (0.0, 1), (1.125, 0), (2.375, 0)]
    assert [round(waited, 3) for waited in run.forks.waited[1:4:2] if waited is not None] == [0.1, 0.2]


def test_process_that_ran_long_is_started_again_at_once() -> None:
    run = Run()
    run.forks.then(11.0, pid2=-9)
    run.forks.then(0.0, signals=(signal.SIGTERM,))
    run.forks.then(0.1, pid1=0, pid3=0)

    assert run.supervisor.run() == 0
    assert run.forks.started == [(0.0, 0), (0.0, 1), (11.0, 1)]


def test_drained_processes_are_not_started_again() -> None:
    run = Run()
    run.forks.then(20.0, pid2=0)
    run.forks.then(20.0, pid1=0)

    assert run.supervisor.run() == 0
    assert len(run.forks.started) == 2
    assert run.forks.signals == []


def test_signal_drains_all_and_what_remains_is_killed() -> None:
    run = Run()
    run.forks.then(1.0, signals=(signal.SIGINT,))
    run.forks.then(2.0, pid1=0)
    run.forks.then(8.0)
    run.forks.then(0.1, pid2=-9)

    assert run.supervisor.run() == 1
    assert run.forks.signals == [(1, signal.SIGTERM), (2, signal.SIGTERM), (2, signal.SIGKILL)]
    assert run.forks.waited[1] == 10.0


def test_second_signal_reaches_the_processes() -> None:
    run = Run()
    run.forks.then(1.0, signals=(signal.SIGTERM, signal.SIGTERM))
    run.forks.then(0.1, pid1=1, pid2=1)

    assert run.supervisor.run() == 1
    assert run.forks.signals == [(1, signal.SIGTERM), (2, signal.SIGTERM)] * 2


@pytest.mark.parametrize(
    ("numbers", "times"),
    [
        ((DRAIN_SIGNAL,), 1),
        ((DRAIN_SIGNAL, DRAIN_SIGNAL), 1),
        ((DRAIN_SIGNAL, signal.SIGTERM), 1),
        ((signal.SIGTERM, DRAIN_SIGNAL), 1),
        ((DRAIN_SIGNAL, signal.SIGTERM, signal.SIGTERM), 2),
        ((signal.SIGTERM, DRAIN_SIGNAL, signal.SIGTERM), 2),
    ],
)
def test_drain_request_and_signal_end_no_process_at_once(numbers: tuple[int, ...], times: int) -> None:
    run = Run()
    for number in numbers:
        run.forks.then(1.0, signals=(number,))
    run.forks.then(0.1, pid1=0, pid2=0)

    assert run.supervisor.run() == 0
    assert run.forks.signals == [(1, signal.SIGTERM), (2, signal.SIGTERM)] * times


def test_signal_during_a_pause_starts_nothing() -> None:
    run = Run()
    run.forks.then(1.0, pid1=-9)
    run.forks.then(0.05, signals=(signal.SIGTERM,))
    run.forks.then(0.1, pid2=0)

    assert run.supervisor.run() == 0
    assert len(run.forks.started) == 2


def test_broker_that_cannot_start_ends_all() -> None:
    run = Run(serving=False)
    run.forks.then(0.5, pid2=2)
    run.forks.then(0.1, pid1=0)

    assert run.supervisor.run() == 2
    assert run.forks.signals == [(1, signal.SIGTERM)]


def test_broker_that_cannot_start_again_is_tried_again() -> None:
    run = Run()
    run.forks.then(0.5, pid2=2)
    run.forks.then(0.125)
    run.forks.then(0.0, signals=(signal.SIGTERM,))
    run.forks.then(0.1, pid1=0, pid3=0)

    assert run.supervisor.run() == 0
    assert run.forks.started[2] == (0.625, 1)


def test_fork_that_fails_is_tried_again() -> None:
    run = Run()
    run.forks.failures = [errno.EAGAIN]
    run.forks.then(5.0)
    run.forks.then(0.0, signals=(signal.SIGTERM,))
    run.forks.then(0.1, pid1=0, pid2=0)

    assert run.supervisor.run() == 0
    assert run.forks.started == [(0.0, 1), (5.0, 0)]
