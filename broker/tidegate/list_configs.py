"""Values of configs, of whatever resource: their greatest length, and the lists in them."""

from __future__ import annotations

from typing import Final

from tidegate.errors import InvalidConfig

VALUE_BYTES_MAX: Final = 32_767
"""The longest string of DescribeConfigs below version 4; a longer value could be set, but not described."""


def check_length(value: str) -> None:
    """Raises InvalidConfig for a value above VALUE_BYTES_MAX."""
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > VALUE_BYTES_MAX:
        raise InvalidConfig(f"a value has at most {VALUE_BYTES_MAX} bytes, not {size}")


def split_list(value: str) -> list[str]:
    """The elements of a list value."""
    return [part.strip() for part in value.split(",") if part.strip()]


def appended(now: str, value: str) -> str:
    """A list with the elements of `value` that it does not have yet."""
    return ",".join(dict.fromkeys(split_list(now) + split_list(value)))


def subtracted(now: str, value: str) -> str:
    """A list without the elements of `value`."""
    parts = set(split_list(value))
    return ",".join(part for part in split_list(now) if part not in parts)
