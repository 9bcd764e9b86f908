"""What a Python worker of Spark keeps for good is left out of its garbage collections."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_gc() -> None:
    """Call where a worker has imported what it needs: the first call of a process counts.

    Spark keeps workers and lets each collect all garbage after every task: 50 to 70 ms of CPU for modules alone.
    """
    gc.freeze()
