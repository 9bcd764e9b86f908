"""Text formatting for people: times, durations, sizes, members, counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

COMMAND: Final = "tidegate-group"
"""The client id of the commands that read groups; commands that change groups append `@machine:process`."""

_TIME_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_NAMED_MAX: Final = 5


def format_duration(ms: int) -> str:
    """A duration in its two largest units: `850 ms`, `4.2 s`, `3 min 20 s`, `2 d 4 h`."""
    ms = max(ms, 0)
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f} s"
    seconds = ms // 1000
    for place, (name, size) in enumerate(_TIME_UNITS):
        if seconds >= size:
            rest = [(seconds % size) // smaller for _, smaller in _TIME_UNITS[place + 1 : place + 2]]
            tail = f" {rest[0]} {_TIME_UNITS[place + 1][0]}" if rest and rest[0] else ""
            return f"{seconds // size} {name}{tail}"
    raise AssertionError(ms)


def format_timestamp(ms: int) -> str:
    """Date and time, UTC."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(ms: int) -> str:
    """Time of day, UTC, for a time close to now."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S} UTC"


def format_member(client_id: str, host: str, instance_id: str | None = None) -> str:
    """A member for display: `billing-2 at 10.0.0.7`, and its instance id if it is static."""
    named = f"{client_id or 'a client without a name'} at {host.removeprefix('/') or 'an unknown host'}"
    return f"static member {instance_id} ({named})" if instance_id else named


def size(count: float) -> str:
    """Bytes in binary units, as in the limits of Redis and the settings: `512 B`, `1.4 MiB`, `123 GiB`."""
    unit = 0
    while count >= 1024 and unit < len(_BYTE_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:,.1f} {_BYTE_UNITS[unit]}" if unit and count < 100 else f"{count:,.0f} {_BYTE_UNITS[unit]}"


def counted(count: int, noun: str) -> str:
    """`1 member`, `3 members`, `1,200 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def either(count: int, one: str, several: str) -> str:
    """Singular or plural form of a word for a count."""
    return one if count == 1 else several


def listed(names: Iterable[str], names_max: int = _NAMED_MAX) -> str:
    """`a`, `a and b`, `a, b and 3 more`."""
    every = list(names)
    if len(every) > names_max:
        return f"{', '.join(every[: names_max - 1])} and {len(every) - names_max + 1} more"
    return every[0] if len(every) == 1 else f"{', '.join(every[:-1])} and {every[-1]}" if every else "nobody"


def ranges(numbers: Sequence[int]) -> str:
    """Partition numbers as ranges: `0-3,7`."""
    parts: list[str] = []
    start = previous = None
    for number in [*sorted(numbers), None]:
        if start is not None and (number is None or number != previous + 1):  # type: ignore[operator]
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = None
        if start is None:
            start = number
        previous = number
    return ",".join(parts)
