"""Load Lua scripts, resolve their includes, and describe them; `Store.run` calls them.

A script's header is its contract: `KEYS[n]`, `ARGV[n]`, `Returns`, `Errors`; `tests/unit/test_house.py` checks it.
`-- @include lib/x` is replaced by that file, once; `ERROR.NAME` by its number in `lib/errors`, because building a
table of the codes at every call costs as much as three commands. `-- @nest` wraps the rest of the script in a function
that is called at once: Redis creates a script's functions at every call, and Lua 5.1 searches the chunk's open locals
for each upvalue; inside a function they are upvalues already. This saves a quarter of the time of a join.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

_INCLUDE: Final = re.compile(r"^-- @include (\S+)$", re.MULTILINE)

_ERRORS: Final = "lib/errors"
_CODE: Final = re.compile(r"\bERROR\.([A-Z_]+)")
_NEST: Final = re.compile(r"^-- @nest$", re.MULTILINE)
_CODE_LINE: Final = re.compile(r"^  ([A-Z_]+) = (-?\d+),", re.MULTILINE)

_overrides: dict[str, str] = {}


def swap_include(name: str, source: str | None) -> None:
    """Replace an include in scripts rendered from now on; None restores it. For tests that step the clock."""
    if source is None:
        _overrides.pop(name, None)
    else:
        _overrides[name] = source
    _render.cache_clear()


@cache
def root() -> Traversable:
    """The folder of the scripts: inside the package in a wheel, else at the top of the checkout."""
    packaged = resources.files("tidegate").joinpath("redis_scripts")
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "redis_scripts"


def overridden(name: str) -> str | None:
    """The replacement of an include, or None."""
    return _overrides.get(name)


def read(name: str) -> str:
    """The text of a script file, with any replacement."""
    return _overrides[name] if name in _overrides else _read_file(name)


@cache
def _read_file(name: str) -> str:
    path = root()
    for part in f"{name}.lua".split("/"):
        path = path.joinpath(part)
    return path.read_text("utf-8")


@cache
def _render(name: str, allows_oom: bool = True) -> tuple[bytes, str]:
    observed = {_ERRORS}
    codes = dict(_CODE_LINE.findall(read(_ERRORS)))

    def include(match: re.Match[str]) -> str:
        included = match.group(1)
        if included in observed:
            return ""
        observed.add(included)
        return _INCLUDE.sub(include, read(included))

    text = _CODE.sub(lambda match: codes[match.group(1)], _INCLUDE.sub(include, read(name)))
    if not allows_oom:
        text = text.replace(" flags=allow-oom", "", 1)
    text, nests = _NEST.subn("local function nested()", text)
    source = (text + "\nend\nreturn nested()\n" * nests).encode()
    return source, hashlib.sha1(source, usedforsecurity=False).hexdigest()


_registered: dict[str, list[Script]] = {}


@dataclass(frozen=True, slots=True)
class Script:
    """A script by its path under redis_scripts/, without the extension. Each is declared once, by its caller."""

    name: str
    label: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.name.replace("/", "_"))
        _registered.setdefault(self.name, []).append(self)

    def refused_when_full(self) -> Script:
        """The same script without its flag `allow-oom`, for calls that add much data."""
        return _RefusedWhenFull(self.name)

    @property
    def source(self) -> bytes:
        """The text with its includes, as sent to Redis."""
        return _render(self.name)[0]

    @property
    def sha(self) -> str:
        """SHA-1 in hex, for EVALSHA."""
        return _render(self.name)[1]


class _RefusedWhenFull(Script):
    __slots__ = ()

    @property
    def source(self) -> bytes:
        return _render(self.name, allows_oom=False)[0]

    @property
    def sha(self) -> str:
        return _render(self.name, allows_oom=False)[1]


def registered() -> list[Script]:
    """Every declared script, in order of name."""
    return [script for _, scripts in sorted(_registered.items()) for script in scripts]
