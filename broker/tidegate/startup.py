"""What a process needs before its imports: its options, settings of the interpreter, an end with its parent."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from types import ModuleType
from typing import Any, Final

UNUSED: Final = ("greenlet", "hypothesis", "rich", "snappy", "twisted")
"""Packages that libraries import only because they are installed, and that a broker never uses: kio imports hypothesis
for strategies of its types, structlog rich for coloured tracebacks and greenlet and twisted for loggers of theirs,
prometheus_client snappy for remote writes. They do without, at a fifth of the time of a start and 15 MB less."""
GC_THRESHOLDS: Final = (30_000, 0, 1_700)
"""Once a broker is ready. Event-loop ticks allocate more objects than the default threshold of 700, and reference
counting frees them: 1,000 requests that wait are 30,000 objects. Every other collection is one of the second
generation, which visits at most 60,000 objects, and takes 20 ms; the oldest is collected after 100 million."""
_START_THRESHOLD: Final = 1_000_000
"""Until a broker is ready: imports make 150,000 objects, of which collections find 1,500 to free, in 50 ms."""
_ARENA_MAX_OPTION: Final = -8
"""`M_ARENA_MAX` of glibc's mallopt."""
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


class _WithoutClient(ModuleType):
    """The package aiohttp, whose `__init__` runs once something asks for what it defines: the client, of 4 MB.

    `aiohttp.web`, the server, imports none of it.
    """

    def __getattr__(self, name: str) -> Any:
        from importlib import metadata, util

        if name == "__version__":
            return metadata.version("aiohttp")
        if name.startswith("__") or util.find_spec(f"aiohttp.{name}") is not None:
            raise AttributeError(name)  # `from . import NAME` then imports the module of that name
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def _defer_aiohttp_client() -> None:
    from importlib import util

    spec = util.find_spec("aiohttp")
    if spec is not None and "aiohttp" not in sys.modules:
        package = _WithoutClient("aiohttp")
        package.__spec__, package.__loader__, package.__file__ = spec, spec.loader, spec.origin
        package.__path__, package.__package__ = spec.submodule_search_locations or [], "aiohttp"
        sys.modules["aiohttp"] = package


def prepare() -> None:
    """Make imports of unused packages fail, and collect no garbage yet. For a broker's own process alone.

    The threads of a broker allocate in one arena: few allocate at the same time, and each arena keeps 1 MB of its own.

    pydantic does not search the installed distributions for plugins (its setting PYDANTIC_DISABLE_PLUGINS). None in
    `sys.modules` makes `import` raise ModuleNotFoundError (Python's reference, "The import system"); a package that is
    imported already stays.
    """
    for name in UNUSED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # typeshed knows modules only
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    _defer_aiohttp_client()
    gc.set_threshold(_START_THRESHOLD)
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_ARENA_MAX_OPTION, 1)


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
