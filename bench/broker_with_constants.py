"""`python -m bench.broker_with_constants tidegate.log.append.ENTRY_BYTES_MAX=8192 ...`: a broker with other constants.

Measures and tests set here what no operator sets. A constant is replaced in the module that defines it, and in those
that have imported it. The wall clock is ahead by the seconds in the file that BROKER_CLOCK names, if it is set.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path


def step_clock_by(path: Path) -> None:
    """Add the seconds in the file to `time.time` and `time.time_ns`, read at each call; the monotonic clock stays true.

    Modules that are imported later have it. Threads of Python starve under libfaketime, which fakes their waits too.
    """
    true_time_ns = time.time_ns

    def time_ns() -> int:
        return true_time_ns() + int(path.read_text()) * 1_000_000_000

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def replace_constant(name: str, value: int | str) -> None:
    """Replace the constant of this dotted name, whose type stays."""
    module_name, _, constant = name.rpartition(".")
    new = type(getattr(importlib.import_module(module_name), constant))(value)
    for module in [one for name, one in sys.modules.items() if name.startswith("tidegate.")]:
        if hasattr(module, constant):
            setattr(module, constant, new)


def main() -> None:
    """Replace the constants of the command line, then run `tidegate serve`."""
    if clock := os.environ.get("BROKER_CLOCK"):
        step_clock_by(Path(clock))
    for assignment in sys.argv[1:]:
        name, _, value = assignment.partition("=")
        replace_constant(name, value)
    sys.argv = ["tidegate", "serve"]
    from tidegate.__main__ import main as tidegate

    tidegate()


if __name__ == "__main__":
    main()
