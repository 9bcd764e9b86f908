"""Generates docs/cli.md: hand-written text above a mark, below it every command's help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

from tidegate.cli.doctor.finding import KINDS
from tidegate.cli.failures import EXIT_CODES
from tidegate.cli.places import PLACES

MARK: Final = "<!-- Below: written by `make docs` from the commands. -->"
_HIDDEN: Final = ("help", "install_completion", "show_completion")


def page(old: str, root: Any, context: Any) -> str:
    """The page with its generated part replaced; `root` is the root command with its context."""
    by_hand = old.partition(MARK)[0].rstrip()
    return "\n".join([by_hand, "", MARK, "", *_exit_codes(), *_places(), *_commands(root, context), *_kinds()]) + "\n"


def _exit_codes() -> Iterator[str]:
    yield from ("## Exit codes", "", "| Code | Meaning |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    yield ""


def _places() -> Iterator[str]:
    yield from (
        "## Where commands go",
        "",
        "Each command below names what it connects to; these are the options for that.",
        "",
    )
    for place, make in PLACES.items():
        yield from (f"**{_TITLES[place.__name__]}**", "", "| Option | Variable | Meaning |", "|---|---|---|")
        _, *parameters = inspect.signature(make, eval_str=True).parameters.values()
        for parameter in parameters:
            (option,) = parameter.annotation.__metadata__
            name = f"--{parameter.name.replace('_', '-')}"
            variable = f"`{option.envvar}`" if option.envvar else ""
            yield f"| `{name}` | {variable} | {_cell(option.help)} |"
        yield ""


_TITLES: Final = {"Brokers": "Brokers", "AdminHttp": "Admin HTTP", "RedisServer": "Redis"}


def _commands(root: Any, context: Any) -> Iterator[str]:
    yield from ("## Commands", "")
    for names, command in sorted(_leaves(root, ("tidegate",)), key=lambda leaf: leaf[0]):
        yield from _command(" ".join(names), command, context)


def _leaves(command: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        if inner.hidden:
            continue
        if getattr(inner, "commands", None):
            yield from _leaves(inner, (*names, name))
        else:
            yield (*names, name), inner


def _command(name: str, command: Any, context: Any) -> Iterator[str]:
    yield from (f"### {name}", "", *_paragraphs(command.help or ""))
    shared: dict[str, str] = {}
    for place, make in PLACES.items():
        shared |= dict.fromkeys(inspect.signature(make).parameters, _TITLES[place.__name__])
    parameters = [one for one in command.params if one.name not in _HIDDEN]
    places = dict.fromkeys(shared[one.name] for one in parameters if one.name in shared and not _own(one, parameters))
    rows = [one for one in parameters if one.name not in shared or _own(one, parameters)]
    if rows:
        yield from ("| | Meaning |", "|---|---|")
        yield from (f"| {_spelt(one)} | {_cell(_help(one, context))} |" for one in rows)
        yield ""
    if places:
        yield from (f"Goes to: {', '.join(places).lower().replace('http', 'HTTP').replace('redis', 'Redis')}.", "")


def _own(parameter: Any, parameters: list[Any]) -> bool:
    """Whether an option with an address option's name is the command's own, as in `dev` and `serve`."""
    names = {one.name for one in parameters}
    return not any(set(inspect.signature(make).parameters) <= names for make in PLACES.values())


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        yield from (" ".join(paragraph.split()), "")


def _spelt(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    metavar = f" `{parameter.metavar}`" if parameter.metavar else ""
    return names + metavar


def _help(parameter: Any, context: Any) -> str:
    text = getattr(parameter, "help", None) or ""
    default = getattr(parameter, "default", None)
    shows = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    return f"{text} Default: {default}." if shows and "[default" not in text else text


def _kinds() -> Iterator[str]:
    yield from ("## What doctor finds", "", "| Kind | When |", "|---|---|")
    yield from (f"| `{kind}` | {_cell(meaning)} |" for kind, meaning in KINDS.items())


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").strip()
