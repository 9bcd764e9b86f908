"""Other texts in place of script files: a clock that a test steps, a planted bug, a next version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

from tidegate.store import scripts

_read_file = scripts.read
_replacements: dict[str, str] = {}


def _read(name: str) -> str:
    return _replacements[name] if name in _replacements else _read_file(name)


def replace_include(name: str, source: str | None) -> None:
    """Replace a file in scripts rendered from now on; None restores it."""
    if source is None:
        _replacements.pop(name, None)
    else:
        _replacements[name] = source
    if scripts.read is not _read:
        patch.object(scripts, "read", _read).start()
        patch.object(scripts, "_with_constants", cache(scripts._with_constants)).start()  # the slow part of rendering
    scripts._resolved.cache_clear()
    scripts._render.cache_clear()
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
