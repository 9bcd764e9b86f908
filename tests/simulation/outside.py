"""What a process asks the world outside for, taken from the simulation: time, randomness, logging.

`os.urandom` feeds uuid4, secrets and ULIDs, whoever imported them and how. Clocks are replaced in `time` and, where
a broker's module imported one by name, in that module.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog

from tests.simulation.loop import SimLoop, current_process
from tests.support import clock

_CLOCKS: Final = ("time", "monotonic", "perf_counter")
_REAL: Final = {name: getattr(time, name) for name in (*_CLOCKS, "time_ns", "monotonic_ns")}
real_s = time.perf_counter
"""The clock on the wall, for what a run costs."""


@contextmanager
def taken_from(loop: SimLoop, seed: int, errors: list[str]) -> Iterator[None]:
    """Virtual time and seeded randomness while the block runs; what brokers log as errors goes to `errors`."""
    rng = random.Random(f"urandom {seed}")
    urandom = os.urandom
    virtual = {
        "time": lambda: clock.START_MS / 1000 + loop.now,
        "monotonic": loop.time,
        "perf_counter": loop.time,
        "time_ns": lambda: clock.START_MS * 1_000_000 + int(loop.now * 1e9),
        "monotonic_ns": lambda: int(loop.now * 1e9),
    }
    named = [
        (module, name, value)
        for module_name, module in list(sys.modules.items())
        if module_name.startswith("tidegate.")
        for name, value in list(vars(module).items())
        if any(value is _REAL[clock_name] for clock_name in _CLOCKS)
    ]
    random.seed(seed)
    os.urandom = random._urandom = rng.randbytes
    for name, function in virtual.items():
        setattr(time, name, function)
    for module, name, value in named:
        setattr(module, name, virtual[value.__name__])
    _receive_errors(errors)
    try:
        yield
    finally:
        os.urandom = random._urandom = urandom
        for name, function in _REAL.items():
            setattr(time, name, function)
        for module, name, value in named:
            setattr(module, name, value)
        structlog.reset_defaults()


def _receive_errors(errors: list[str]) -> None:
    """A process that was killed logs nothing: only its coroutines are closed."""

    def on_request(_: Any, level: str, event: dict[str, Any]) -> Any:
        process = current_process()
        if level in ("error", "exception", "critical") and (process is None or process.alive):
            errors.append(str(event))
        raise structlog.DropEvent

    structlog.configure(
        processors=[structlog.processors.format_exc_info, on_request],
        wrapper_class=structlog.make_filtering_bound_logger(40),
    )
