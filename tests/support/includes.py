"""Other texts in place of script files: a clock that a test steps, a planted bug, a next version."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

from tidegate.store import scripts

_read_file = scripts.read
_replacements: dict[str, str] = {}


def _read(name: str) -> str:
    return _replacements[name] if name in _replacements else _read_file(name)


def _by_replacements(function: Any) -> Callable[..., Any]:
    """The function with a cache for each set of replacements: tests of a stepped clock have the same ones."""
    results: dict[Any, Any] = {}

    def cached(*args: Any, **options: Any) -> Any:
        key = (*_replacements.items(), args, *options.items())
        if key not in results:
            results[key] = function.__wrapped__(*args, **options)
        return results[key]

    return cached


def replace_include(name: str, source: str | None) -> None:
    """Replace a file in scripts rendered from now on; None restores it."""
    if source is None:
        _replacements.pop(name, None)
    else:
        _replacements[name] = source
    if scripts.read is not _read:
        patch.object(scripts, "read", _read).start()
        patch.object(scripts, "_with_constants", cache(scripts._with_constants)).start()  # the slow part of rendering
        patch.object(scripts, "_resolved", _by_replacements(scripts._resolved)).start()
        patch.object(scripts, "_render", _by_replacements(scripts._render)).start()
    scripts.library.cache_clear()


@contextlib.contextmanager
def replaced_include(name: str, source: str) -> Iterator[None]:
    """A replacement for as long as the block runs; then what was there before."""
    before = _replacements.get(name)
    replace_include(name, source)
    try:
        yield
    finally:
        replace_include(name, before)
