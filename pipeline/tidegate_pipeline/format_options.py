"""The options of a Spark format: names without case, unknown names refused, wrong values reported by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from tidegate_pipeline.errors import UsageError

SPARK_OPTIONS: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Options that Spark adds or reads itself."""
TABLE_PROPERTIES: Final = frozenset(
    {"collation", "comment", "external", "is_managed_location", "location", "owner", "provider"}
)
"""Properties that Spark gives the table of a `CREATE TABLE` (TableCatalog's reserved ones)."""
_CLOSE: Final = 0.75
"""Similarity from which on a name is taken for a misspelt one (difflib's ratio)."""
TABLE_OPTION_PREFIX: Final = "option."
"""The options of a SQL table come with this prefix, at its creation without it too (CatalogV2Util)."""


def given_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a query or of a SQL table, without those that Spark adds or reads itself."""
    own = {*SPARK_OPTIONS, *TABLE_PROPERTIES}
    return {
        name[len(TABLE_OPTION_PREFIX) :] if name.lower().startswith(TABLE_OPTION_PREFIX) else name: value
        for name, value in given.items()
        if name.lower() not in own
    }


def check_names(format_name: str, given: Iterable[str], names: Collection[str]) -> None:
    """Raises UsageError for an option that is not one of `names`."""
    known = {name.lower() for name in names}
    unknown = sorted(name for name in given if name.lower() not in known)
    if not unknown:
        return
    spelled = {name.lower(): name for name in names}
    close = [spelled[near] for name in unknown for near in get_close_matches(name.lower(), spelled, 1, _CLOSE)]
    suggestion = f"did you mean {', '.join(close)}?" if close else f"its options are {', '.join(names)}"
    raise UsageError(f"unknown option of {format_name}: {', '.join(unknown)}; {suggestion}")


class FormatOptions:
    """The options of one query. An empty value counts as not given."""

    def __init__(self, format_name: str, names: Collection[str], given: Mapping[str, str]) -> None:
        """Raises UsageError for an unknown option."""
        known = {name.lower() for name in names}
        own = {name: value for name, value in given.items() if name.lower() in known}
        options = {**given_options(given), **own}
        check_names(format_name, options, names)
        self._format_name = format_name
        self._given = {name.lower(): value for name, value in options.items() if value}

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name.lower(), default)

    def optional_text(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def required_text(self, name: str) -> str:
        """Raises UsageError if it is not given."""
        value = self._given.get(name.lower())
        if value is None:
            raise UsageError(f"{self._format_name} needs the option {name}")
        return value

    def one_of(self, name: str, default: str, values: Collection[str]) -> str:
        """Raises UsageError if it is not one of `values`."""
        value = self._given.get(name.lower(), default)
        if value not in values:
            raise UsageError(f"{name} is one of {', '.join(values)}, not {value}")
        return value

    def integer(self, name: str, minimum: int) -> int | None:
        """None if it is not given. Raises UsageError."""
        text = self._given.get(name.lower())
        if text is None:
            return None
        if not text.isdecimal() or int(text) < minimum:
            raise UsageError(f"{name} is a whole number of at least {minimum}, not {text}")
        return int(text)

    def number(self, name: str, default: float) -> float:
        """A number of at least 0. Raises UsageError."""
        text = self._given.get(name.lower())
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise UsageError(f"{name} is a number of at least 0, not {text}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Raises UsageError."""
        text = self._given.get(name.lower(), str(default)).lower()
        if text not in ("true", "false"):
            raise UsageError(f"{name} is true or false, not {text}")
        return text == "true"
