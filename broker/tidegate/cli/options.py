"""Converts command-line options and `TIDEGATE_*` into `Settings`, with one-line errors; and lists settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_settings import SettingsError

from tidegate.renamed_settings import REMOVED, RENAMED, REPLACED
from tidegate.settings import (
    SECRETS,
    SECRETS_DIR,
    Settings,
    check_replaced_variables,
    removed_variables,
    renamed_variables,
    secrets_folder,
)
from tidegate.startup import CannotStart
from tidegate.store.addresses import parse_redis_url, without_password

PREFIX: Final = "TIDEGATE_"
_NOT_SETTINGS: Final = ("TIDEGATE_TEST_", "TIDEGATE_KEEP_", "TIDEGATE_PIPELINE_", "TIDEGATE_CLI_", SECRETS_DIR)
_UNITS: Final = {"ms": "ms", "bytes": "bytes", "minutes": "minutes", "seconds": "s"}


def load(options: Mapping[str, object] | None = None, assignments: Sequence[str] = ()) -> Settings:
    """The settings of this process: `options` (None counts as absent) and `name=value` override the environment.

    Raises CannotStart with one line that names the variable or option.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    by_set = dict(_assigned(assignments))
    named = {name: f"--{name.replace('_', '-')}" for name in given} | {name: f"--set {name}" for name in by_set}
    given.update(by_set)
    try:
        check_replaced_variables()
        settings = Settings(**given)  # type: ignore[arg-type]
        parse_redis_url(settings.redis_url)
    except ValidationError as error:
        raise CannotStart("; ".join(_reported(problem, named) for problem in error.errors())) from None
    except SettingsError as error:
        raise CannotStart(str(error)) from None
    except ValueError as error:
        raise CannotStart(f"{_named('redis_url', named)}: {error}") from None
    return settings


def variables() -> set[str]:
    """The variables of all settings, and those that name a file with a secret."""
    names = [*Settings.model_fields, *(f"{name}_file" for name in SECRETS)]
    return {f"{PREFIX}{name}".upper() for name in names}


def unknown_variables() -> list[str]:
    """`TIDEGATE_*` variables and files in TIDEGATE_SECRETS_DIR that match no setting, probably misspelt."""
    former = {*renamed_variables(), *removed_variables()}
    known = variables()
    folder = secrets_folder()
    names = [*os.environ, *(one.name for one in folder.iterdir() if one.is_file())] if folder else list(os.environ)
    found = (name for name in names if name.upper().startswith(PREFIX) and not name.startswith(_NOT_SETTINGS))
    return sorted(name for name in found if name.upper() not in known and name not in former)


def _assigned(assignments: Sequence[str]) -> Iterator[tuple[str, str]]:
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip().lower().replace("-", "_").replace(".", "_").removeprefix(PREFIX.lower())
        name = RENAMED.get(name, name)
        if equals and name in REMOVED:
            raise CannotStart(f"--set {assignment}: this setting was removed")
        if equals and name in REPLACED:
            raise CannotStart(f"--set {assignment}: this setting was removed; set {REPLACED[name]}")
        if not equals or name not in Settings.model_fields:
            raise CannotStart(f"--set {assignment}: not a setting=value (`tidegate settings` lists them)")
        yield name, value


def _named(field: str, named: Mapping[str, str]) -> str:
    """The option or variable by which the user set a field."""
    return named.get(field) or f"{PREFIX}{field}".upper()


def _reported(problem: Any, named: Mapping[str, str]) -> str:
    field = str(problem["loc"][0]) if problem["loc"] else "settings"
    value = "" if field in SECRETS else f"={problem['input']}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{_named(field, named)}{value}: {message[:1].lower()}{message[1:]}"


@dataclass(frozen=True, slots=True)
class Listed:
    """One setting for display. `value` differs from `default` when it is set."""

    name: str
    variable: str
    unit: str
    default: str
    value: str
    meaning: str


def listed(settings: Settings | None = None) -> list[Listed]:
    """Every setting, in the order of `settings.py`."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = _text(name, field.default)
        value = default if settings is None else _text(name, getattr(settings, name))
        unit = _unit(name, field.annotation)
        rows.append(Listed(name, f"{PREFIX}{name}".upper(), unit, default, value, field.description or ""))
    return rows


def _text(name: str, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and name.endswith("url"):
        return without_password(value)
    return "***" if name in SECRETS else str(value)


def _unit(name: str, annotation: object) -> str:
    """A setting's unit, from the suffix of its name or its type."""
    words = name.split("_")
    for word in reversed(words):
        if word in _UNITS:
            return _UNITS[word]
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is Literal:
            return "choice"
        if isinstance(kind, type) and kind is not type(None):
            return {"int": "number", "bool": "true, false", "str": "text", "SecretStr": "text"}.get(
                kind.__name__, kind.__name__
            )
    return "text"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def markdown() -> str:
    """The content of docs/settings.md: every setting with its default."""
    lines = [
        "# Settings",
        "",
        "Each is a `TIDEGATE_*` environment variable of `tidegate serve`; `--set name=value` and the options of",
        "`tidegate serve --help` win over it. `tidegate settings` prints this list with the values in effect.",
        "",
        "A variable may be a file as well: `TIDEGATE_SECRETS_DIR` names a folder with files that are called as",
        "variables (`TIDEGATE_REDIS_URL`) and hold their values, as Kubernetes and Docker mount secrets. The",
        "environment wins over them. A secret alone may be in a file that its variable names with `_FILE` behind it:",
        ", ".join(f"`{PREFIX}{name.upper()}_FILE`" for name in sorted(SECRETS)) + ".",
        "(Written by `make docs` from `broker/tidegate/settings.py`.)",
        "",
        "| Variable | Unit | Default | Meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{row.variable}` | {row.unit} | `{row.default}` | {_cell(row.meaning)} |" for row in listed()]
    return "\n".join(lines) + "\n"
