"""How long processes have waited for a processor: what a busy machine adds to a measured time."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def waited_s(tasks: Iterable[int | str]) -> float:
    """Seconds in the run queue so far, of the main threads of processes, or of what else has a name below /proc."""
    return sum(int(Path(f"/proc/{task}/schedstat").read_text().split()[1]) for task in tasks) / 1e9
