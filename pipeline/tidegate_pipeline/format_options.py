"""The options of a Spark format: names without case, unknown names refused, wrong values reported by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from tidegate_pipeline.errors import UsageError

SPARK_OPTIONS: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Options that Spark adds or reads itself; sinks accept them."""


def check_names(
    format_name: str, given: Iterable[str], names: Collection[str], ignored: Collection[str] = SPARK_OPTIONS
) -> None:
    """Raises UsageError for an option that is neither one of `names` nor ignored."""
    known = {*(name.lower() for name in names), *ignored}
    unknown = sorted(name for name in given if name.lower() not in known)
    if unknown:
        raise UsageError(f"unknown option of {format_name}: {', '.join(unknown)}; its options are {', '.join(names)}")


class FormatOptions:
    """The options of one query. An empty value counts as not given."""

    def __init__(self, format_name: str, names: Collection[str], given: Mapping[str, str]) -> None:
        """Raises UsageError for an unknown option."""
        check_names(format_name, given, names)
        self._format_name = format_name
        self._given = {name.lower(): value for name, value in given.items() if value}

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
