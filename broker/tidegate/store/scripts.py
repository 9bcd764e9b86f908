"""Load Lua scripts, resolve their includes, and describe them; `Store.run` calls them.

A script's header is its contract: `KEYS[n]`, `ARGV[n]`, `Returns`, `Errors`; `tests/unit/test_house.py` checks it.
`-- @include lib/x` is replaced by that file, once, after what the file includes itself: one function named `x`, or a
table of that name with functions. What is passed between files is a parameter. Constants such as `ERROR.NAME` and
`STATE.EMPTY` are replaced by their texts in `lib/errors` and `lib/layout`, because building such tables at every call
costs as much as three commands.

The scripts of `FUNCTIONS` are rendered twice: each by itself for EVALSHA, which makes its Lua functions again at every
call, and together as a library for FCALL, whose functions are made once (`store.functions`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, NamedTuple

_INCLUDE: Final = re.compile(r"^-- @include (\S+)$", re.MULTILINE)

_CONSTANT_FILES: Final = ("lib/errors", "lib/layout")
_TABLE: Final = re.compile(r"^local ([A-Z]+) = \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_ENTRY: Final = re.compile(r"^  ([A-Z_]+) = (.+?),(?: --[^\n]*)?$", re.MULTILINE | re.DOTALL)
_CONTINUED: Final = re.compile(r"'\n +\.\. '")

FUNCTIONS: Final = ("groups/join_group", "groups/sync_group", "groups/leave_group", "groups/expire_group")
"""Scripts with many includes: the others would gain nothing as functions."""
LIBRARY_PREFIX: Final = "tidegate_"
_HASH_DIGITS: Final = 12
_HEADER: Final = re.compile(r"\A#!lua(?: flags=(\S+))?\n(?:--\[\[.*?\]\]\n)?", re.DOTALL)


@cache
def root() -> Traversable:
    """The folder of the scripts: inside the package in a wheel, else at the top of the checkout."""
    packaged = resources.files("tidegate").joinpath("redis_scripts")
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "redis_scripts"


@cache
def read(name: str) -> str:
    """The text of a script file."""
    path = root()
    for part in f"{name}.lua".split("/"):
        path = path.joinpath(part)
    return path.read_text("utf-8")


@cache
def constants() -> Mapping[str, str]:
    """The constants of scripts and their texts in Lua, such as `ERROR.NONE` and `0`."""
    return {
        f"{table}.{name}": _CONTINUED.sub("", value)
        for file in _CONSTANT_FILES
        for table, entries in _TABLE.findall(read(file))
        for name, value in _ENTRY.findall(entries)
    }


def _with_includes(text: str, observed: set[str]) -> str:
    """The text with the files that it includes, but those that were included before."""

    def include(match: re.Match[str]) -> str:
        included = match.group(1)
        if included in observed:
            return ""
        observed.add(included)
        return _with_includes(_resolved(included), observed)

    return _INCLUDE.sub(include, text)


@cache
def _constant() -> re.Pattern[str]:
    tables = "|".join(sorted({name.partition(".")[0] for name in constants()}))
    return re.compile(rf"\b(?:{tables})\.[A-Z_]+\b")


def _with_constants(text: str) -> str:
    values = constants()
    return _constant().sub(lambda match: values[match.group()], text)


@cache
def _resolved(name: str) -> str:
    """The text of a script file with the texts of its constants: files are included by many scripts."""
    return _with_constants(read(name))


@cache
def _render(name: str, allows_oom: bool = True) -> tuple[bytes, str]:
    text = _with_includes(_resolved(name), set(_CONSTANT_FILES))
    if not allows_oom:
        text = text.replace(" flags=allow-oom", "", 1)
    source = text.encode()
    return source, hashlib.sha1(source, usedforsecurity=False).hexdigest()


class Library(NamedTuple):
    """The scripts of `FUNCTIONS` as a library of Redis Functions, named by the hash of its text."""

    name: str
    source: bytes
    functions: dict[str, str]
    """Script -> its function: names of functions are unique over all libraries of a server."""


@cache
def library() -> Library:
    """All includes first, made once; then the text of each script as a function's body.

    KEYS and ARGV, which are globals of a script, are locals of the library that a call sets.
    """
    observed = set(_CONSTANT_FILES)
    included = "".join(_with_includes(line, observed) for name in FUNCTIONS for line in _includes_of(read(name)))
    text = "local KEYS, ARGV\n" + included + "".join(map(_registration, FUNCTIONS))
    digits = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:_HASH_DIGITS]
    functions = {name: _function_name(name, digits) for name in FUNCTIONS}
    for name in FUNCTIONS:
        text = text.replace(f'"{_function_name(name, "")}"', f'"{functions[name]}"')
    return Library(LIBRARY_PREFIX + digits, f"#!lua name={LIBRARY_PREFIX}{digits}\n{text}".encode(), functions)


def _includes_of(text: str) -> list[str]:
    return [f"{match.group()}\n" for match in _INCLUDE.finditer(text)]


def _function_name(name: str, digits: str) -> str:
    return f"{LIBRARY_PREFIX}{name.rpartition('/')[2]}_{digits}"


def _registration(name: str) -> str:
    """The Lua text that registers a script as a function, with its flags."""
    text = _resolved(name)
    header = _HEADER.match(text)
    if header is None:
        raise ValueError(f"{name} does not begin with #!lua")
    flags = ", ".join(f'"{flag}"' for flag in (header.group(1) or "").split(",") if flag)
    body = _INCLUDE.sub("", text[header.end() :])
    return (
        f'redis.register_function{{ function_name = "{_function_name(name, "")}", flags = {{ {flags} }},\n'
        f"callback = function(keys, args)\nKEYS, ARGV = keys, args\n{body}end }}\n"
    )


_registered: dict[str, list[Script]] = {}


@dataclass(frozen=True, slots=True)
class Script:
    """A script by its path under redis_scripts/, without the extension. Each is declared once, by its caller."""

    name: str
    label: str = field(init=False, default="")
    is_function: bool = field(init=False, default=False)
    """Whether servers that take functions run it as one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_function", self.name in FUNCTIONS)
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

    @property
    def function(self) -> str:
        """Its function in the library, for FCALL. Raises KeyError if it has none."""
        return library().functions[self.name]


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
