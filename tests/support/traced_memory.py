"""Memory of Python objects, as the allocator sees it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any


def taken(make: Callable[[], Any]) -> tuple[int, Any]:
    """Memory that what is made holds."""
    gc.collect()
    tracemalloc.start()
    made = make()
    gc.collect()
    found = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return found, made
