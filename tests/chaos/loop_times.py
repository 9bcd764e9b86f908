"""`python -m tests.chaos.loop_times FILE`: a broker that measures how long each callback of its event loop computes.

It is CPU time of the loop's thread, so other processes of the machine do not count, nor do threads of the broker. At
SIGUSR2 it appends the longest callback since the last one to the file: ms, how many of them collected garbage, and what
it was. On asyncio's own loop: uvloop's callbacks cannot be measured from Python.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from asyncio.events import Handle
from pathlib import Path
from time import thread_time
from typing import Any

import uvloop


class Longest:
    """The longest callback since the last report."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ms, self._what = 0.0, ""
        self._collected_s = self._collecting_s = 0.0
        gc.callbacks.append(self._on_collection)
        self._run = Handle._run
        Handle._run = lambda handle: self.measure(handle)  # type: ignore[method-assign]

    def measure(self, handle: Any) -> None:
        """Run a callback."""
        began_s, callback, self._collected_s = thread_time(), handle._callback, 0.0
        self._run(handle)
        took_ms = (thread_time() - began_s) * 1000
        if took_ms > self._ms:
            tasks = [one for one in gc.get_referents(callback) if isinstance(one, asyncio.Task)]
            what = repr(tasks or handle)[:300]
            self._ms, self._what = took_ms, f"({self._collected_s * 1000:.1f} of them collected garbage) {what}"

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_s = thread_time()
        else:
            self._collected_s += thread_time() - self._collecting_s

    def report(self, *_: object) -> None:
        """Append it to the file."""
        with self._path.open("a") as file:
            file.write(f"{self._ms:.1f} {self._what}\n")
        self._ms, self._what = 0.0, ""


def main() -> None:
    signal.signal(signal.SIGUSR2, Longest(Path(sys.argv[1])).report)
    uvloop.run = asyncio.run
    sys.argv = ["tidegate", "serve"]
    from tidegate.__main__ import main as tidegate

    tidegate()


if __name__ == "__main__":
    main()
