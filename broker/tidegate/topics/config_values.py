"""What values of configs may be: each check maps a value's text to the text to be stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tidegate.errors import InvalidConfig
from tidegate.list_configs import split_list

DEFAULT_LEVEL: Final = -1
"""The level of gzip that stands for its default."""
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")

Check = Callable[[str], str]
"""Maps a value's text to the text to be stored. Raises InvalidConfig."""


def whole(at_least: int, at_most: int) -> Check:
    def check(value: str) -> str:
        if _WHOLE_NUMBER.fullmatch(value.strip()) is None:
            raise InvalidConfig(f"{value!r} is not a whole number")
        number = int(value.strip())
        if not at_least <= number <= at_most:
            raise InvalidConfig(f"{number} is not between {at_least} and {at_most}")
        return str(number)

    return check


def gzip_level(value: str) -> str:
    level = whole(DEFAULT_LEVEL, 9)(value)
    if level == "0":
        raise InvalidConfig("gzip has no level 0")
    return level


def fraction(value: str) -> str:
    try:
        number = float(value)
    except ValueError:
        raise InvalidConfig(f"{value!r} is not a number") from None
    if not 0 <= number <= 1:
        raise InvalidConfig(f"{value} is not between 0 and 1")
    return value.strip()


def one_of(*choices: str) -> Check:
    def check(value: str) -> str:
        if value not in choices:
            raise InvalidConfig(f"{value!r} is none of {', '.join(choices)}")
        return value

    return check


def some_of(*choices: str) -> Check:
    """A check of a list that may be empty."""

    def check(value: str) -> str:
        parts = split_list(value)
        if len(set(parts)) != len(parts) or not set(parts) <= set(choices):
            raise InvalidConfig(f"{value!r} is not a list of {', '.join(choices)}")
        return ",".join(parts)

    return check


def boolean(value: str) -> str:
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise InvalidConfig(f"{value!r} is neither true nor false")
    return lowered


def throttled_replicas(value: str) -> str:
    """`*`, or pairs of a partition and a broker; as Kafka checks them."""
    if value.strip() != "*" and not all(_REPLICA.fullmatch(part) for part in split_list(value)):
        raise InvalidConfig(f"must be * or a list of partition:broker, not {value!r}")
    return value
