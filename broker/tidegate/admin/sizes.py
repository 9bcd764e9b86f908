"""Formats sizes for console and CLI in binary units, as in the limits of Redis and the settings."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: float) -> str:
    """Bytes with a unit: `512 B`, `1.4 MiB`, `123 GiB`."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:,.1f} {_UNITS[unit]}" if unit and count < 100 else f"{count:,.0f} {_UNITS[unit]}"
