"""What the process of a broker sets before its imports, and that it ends when its parent does."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

UNUSED: Final = ("greenlet", "hypothesis", "rich", "twisted")
"""Packages that libraries import only because they are installed, and that a broker never uses: kio imports hypothesis
for strategies of its types, structlog rich for coloured tracebacks and the others for loggers of theirs. They do
without, at a fifth of the time of a start and 15 MB less."""
GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Imports and event-loop ticks allocate more objects than the default threshold of 700, and reference counting frees
them."""
_PR_SET_PDEATHSIG: Final = 1


def prepare() -> None:
    """Make imports of unused packages fail, and collect garbage rarely. For a broker's own process alone.

    pydantic does not search the installed distributions for plugins (its setting PYDANTIC_DISABLE_PLUGINS). None in
    `sys.modules` makes `import` raise ModuleNotFoundError (Python's reference, "The import system"); a package that is
    imported already stays.
    """
    for name in UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # typeshed knows modules only
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    gc.set_threshold(*GC_THRESHOLDS)


def dies_with_parent(number: int) -> Callable[[], None] | None:
    """A function for a child to run first: the kernel signals it when this process exits (Linux only)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return in_child
