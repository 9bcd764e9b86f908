"""What a process needs before its imports: its options, settings of the interpreter, an end with its parent."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Final

UNUSED: Final = ("greenlet", "hypothesis", "rich", "twisted")
"""Packages that libraries import only because they are installed, and that a broker never uses: kio imports hypothesis
for strategies of its types, structlog rich for coloured tracebacks and the others for loggers of theirs. They do
without, at a fifth of the time of a start and 15 MB less."""
GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Imports and event-loop ticks allocate more objects than the default threshold of 700, and reference counting frees
them."""
_PR_SET_PDEATHSIG: Final = 1


class CannotStart(Exception):
    """This process cannot start; the message is one line for people, the exit code 2."""


def given_options(arguments: Sequence[str], names: Collection[str]) -> list[tuple[str, str]] | None:
    """(Name, value) of each option `--name value` or `--name=value`; None if there is anything else.

    Names have underscores for the hyphens of their options. Whatever gets None is for the full command line: `--help`,
    completion, and mistakes.
    """
    options = {f"--{name.replace('_', '-')}": name for name in names}
    given: list[tuple[str, str]] = []
    left = iter(arguments)
    for argument in left:
        option, equals, value = argument.partition("=")
        if option not in options:
            return None
        found = value if equals else next(left, None)
        if found is None:
            return None
        given.append((options[option], found))
    return given


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
