"""Sizes as people read them, the same in console and commands: units of 1,024, as limits of Redis and settings are."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes in their unit: `512 B`, `1.4 MiB`, `123 GiB`."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:,.1f} {_UNITS[unit]}" if unit and count < 100 else f"{count:,.0f} {_UNITS[unit]}"
