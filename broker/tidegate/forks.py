"""Child processes that share one warm import: forked before this process has an event loop or a thread.

A child has every module in memory that its parent imported, in pages that both share until one of them writes. The
parent stays without a loop and threads: it waits in `select` for signals, ended children and one file.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

from tidegate.startup import CannotStart, dies_with_parent

_HANDLED: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
FAILED: Final = 1
CANNOT_START: Final = 2


@dataclass(slots=True)
class Events:
    """What happened since the last wait."""

    signals: list[int] = field(default_factory=list)
    """SIGTERM, SIGINT and the further ones that `Forks` got, in order of arrival."""
    ended: dict[int, int] = field(default_factory=dict)
    """Process id -> exit code; -N for signal N."""
    readable: bool = False


class Forks:
    """Forks children and waits for them; a context manager, because it takes over this process's signals.

    `further` are signals that it reports beside SIGTERM and SIGINT.
    """

    def __init__(self, *further: signal.Signals) -> None:
        self._reported = (*_HANDLED, *further)
        self._wakeups, self._wakeups_in = os.pipe()
        self._before: dict[int, Any] = {}
        self._children: set[int] = set()

    def __enter__(self) -> Forks:
        for fileno in (self._wakeups, self._wakeups_in):
            os.set_blocking(fileno, False)
        signal.set_wakeup_fd(self._wakeups_in, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _handled) for number in self._reported}
        gc.collect()
        gc.freeze()  # a collection in a child would write to every shared page
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release_signals()

    def _release_signals(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._wakeups)
        os.close(self._wakeups_in)

    def start(self, run: Callable[[], None]) -> int:
        """Run a function in a child, in a session of its own, which dies with this process; returns the child's id.

        Exit code 0 after `run` has returned, 2 with a line on stderr for CannotStart, 1 for a bug. Raises OSError when
        the system has no process or memory left.
        """
        die = dies_with_parent(signal.SIGKILL)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, self._reported)  # the child must not write to our wake-ups
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if pid:
            self._children.add(pid)
            return pid
        code = FAILED
        try:
            os.setsid()  # Ctrl-C on the terminal does not reach it
            if die is not None:
                die()
            self._release_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            code = exit_code(run)
        finally:
            _leave(code)

    def wait(self, timeout_s: float | None = None, fileno: int | None = None) -> Events:
        """Wait for a signal, the end of a child or, if given, bytes or the end of a file."""
        watched = [self._wakeups] if fileno is None else [self._wakeups, fileno]
        readable, _, _ = select.select(watched, [], [], timeout_s)
        events = Events(readable=fileno in readable)
        with contextlib.suppress(BlockingIOError):
            events.signals = [number for number in os.read(self._wakeups, 4096) if number != signal.SIGCHLD]
        for pid in sorted(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._children.remove(pid)
                events.ended[pid] = os.waitstatus_to_exitcode(status)
        return events

    def signal(self, pid: int, number: int) -> None:
        """Signal a child that has not ended."""
        if pid in self._children:
            os.kill(pid, number)


def exit_code(run: Callable[[], None]) -> int:
    """Run a broker and report what prevented its start on one line of stderr; the exit code of the process."""
    try:
        run()
    except CannotStart as error:
        print(f"tidegate: {error}", file=sys.stderr)  # noqa: T201 - logging may not be set up yet
        return CANNOT_START
    except Exception:  # noqa: BLE001 - a bug: this process ends
        traceback.print_exc()
        return FAILED
    return 0


def _handled(number: int, frame: FrameType | None) -> None:
    """Python writes the number to the wake-up file; the default action must not happen."""


def _leave(code: int) -> NoReturn:
    """End a child without the parent's exit handlers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
