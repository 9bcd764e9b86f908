"""`tidegate serve --processes N`: N brokers of one host, forked from one warm import and started again when they die.

Each is a broker like any other, with a port, a node id and a lease of its own; the supervisor serves no client, keeps
no state and holds no connection. A process that dies is started again with a back-off; one that was asked to drain is
not. SIGTERM and SIGINT drain all, a second one ends them at once. A drain request at the first one's admin HTTP drains
all too and counts as no signal.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from tidegate.app import serve
from tidegate.forks import CANNOT_START, FAILED, Events, Forks
from tidegate.host import HostPage, HostProcess, of_process
from tidegate.settings import Settings
from tidegate.telemetry import logs as logging_setup
from tidegate.telemetry.background_tasks import BACK_OFF_S

logger = structlog.get_logger()

DRAIN_SIGNAL: Final = signal.SIGUSR1
"""Of a child to the supervisor: drain all."""
_STABLE_AFTER_S: Final = 10.0
"""A process that has run this long starts again without a back-off."""
_STOP_MARGIN_S: Final = 6.0
"""Beyond `shutdown_timeout_ms`, for closing; then the processes that remain are killed."""


@dataclass(slots=True)
class Process:
    """One broker process and its history."""

    ordinal: int
    settings: Settings
    pid: int | None = None
    started_s: float = 0.0
    start_at_s: float | None = 0.0
    """When to start it, by the monotonic clock; None: not again."""
    attempt: int = 0
    """Ends in a row, each soon after its start."""


class Supervisor:
    """Starts and watches the processes; `run` ends when the last one has ended for good."""

    def __init__(
        self,
        settings: Settings,
        forks: Forks,
        run_broker: Callable[[Settings, HostProcess], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forks, self._run_broker, self._clock = forks, run_broker, clock
        self._page = HostPage(settings.processes)
        self._processes = [Process(ordinal, of_process(settings, ordinal)) for ordinal in range(settings.processes)]
        self._shutdown_s = settings.shutdown_timeout_ms / 1000 + _STOP_MARGIN_S
        self._kill_at_s: float | None = None
        self._served = self._signalled = False
        self._exit_code = 0

    def run(self) -> int:
        """Run all processes; the exit code: 2 if one could not start before any had served, and has said why."""
        while any(one.pid is not None or one.start_at_s is not None for one in self._processes):
            self._start_due()
            self._handle(self._forks.wait(self._timeout_s()))
        return self._exit_code

    def _start_due(self) -> None:
        now_s = self._clock()
        for process in self._processes:
            if process.pid is None and process.start_at_s is not None and process.start_at_s <= now_s:
                host = HostProcess(self._page, process.ordinal, partial(os.kill, os.getpid(), DRAIN_SIGNAL))
                try:
                    process.pid = self._forks.start(partial(self._run_broker, process.settings, host))
                except OSError as error:
                    process.start_at_s = now_s + BACK_OFF_S[-1]
                    logger.warning("process_not_started", ordinal=process.ordinal, reason=error.strerror)
                    continue
                process.started_s, process.start_at_s = now_s, None

    def _timeout_s(self) -> float | None:
        """Until the next start or kill."""
        due_s = [one.start_at_s for one in self._processes if one.start_at_s is not None]
        if self._kill_at_s is not None:
            due_s.append(self._kill_at_s)
        return max(min(due_s) - self._clock(), 0) if due_s else None

    def _handle(self, events: Events) -> None:
        for number in events.signals:
            logger.info("asked_to_stop", signal=signal.Signals(number).name)
            self._stop(by_signal=number != DRAIN_SIGNAL)
        by_pid = {one.pid: one for one in self._processes if one.pid is not None}
        for pid, code in events.ended.items():
            self._ended(by_pid[pid], code)
        if self._kill_at_s is not None and self._clock() >= self._kill_at_s:
            self._kill_at_s += 1
            self._signal_all(signal.SIGKILL)

    def _ended(self, process: Process, code: int) -> None:
        now_s = self._clock()
        self._served = self._served or any(self._page.reported(one.ordinal) for one in self._processes)
        pid, process.pid = process.pid, None
        if self._kill_at_s is not None or code == 0:
            self._page.ended(process.ordinal)
            self._exit_code = self._exit_code or min(abs(code), FAILED)
            logger.info("process_ended", ordinal=process.ordinal, ended_pid=pid, code=code)
            return
        if code == CANNOT_START and not self._served:
            self._page.ended(process.ordinal)
            self._exit_code = code
            self._stop(by_signal=False)
            return
        process.attempt = 0 if now_s - process.started_s > _STABLE_AFTER_S else process.attempt + 1
        back_off_s = BACK_OFF_S[min(process.attempt, len(BACK_OFF_S)) - 1] if process.attempt else 0.0
        process.start_at_s = now_s + back_off_s
        self._page.restarted(process.ordinal)
        logger.warning(
            "process_restarted", ordinal=process.ordinal, ended_pid=pid, code=code, after_ms=round(back_off_s * 1000)
        )

    def _stop(self, *, by_signal: bool) -> None:
        """Drain all processes; at the second signal end them at once, as a process does at its second SIGTERM."""
        for process in self._processes:
            process.start_at_s = None
        ends_at_once = by_signal and self._signalled
        self._signalled = self._signalled or by_signal
        if self._kill_at_s is None or ends_at_once:
            self._signal_all(signal.SIGTERM)
        if self._kill_at_s is None:
            self._kill_at_s = self._clock() + self._shutdown_s

    def _signal_all(self, number: int) -> None:
        for process in self._processes:
            if process.pid is not None:
                self._forks.signal(process.pid, number)


def supervise(settings: Settings, unknown: Sequence[str] = ()) -> None:
    """Run `settings.processes` brokers until a signal; exit with 2 if one cannot start. Raises CannotStart."""
    logging_setup.configure(settings.log_format, settings.log_level)
    logging_setup.bind(pid=os.getpid())
    with Forks(DRAIN_SIGNAL) as forks:
        supervisor = Supervisor(settings, forks, lambda own, host: serve(own, unknown, host))
        logger.info("supervising", processes=settings.processes)
        code = supervisor.run()
    if code:
        sys.exit(code)
