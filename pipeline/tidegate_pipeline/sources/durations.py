"""Durations as Spark's options have them: `30s`, `15m`, `1h`; a number alone is milliseconds."""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = re.compile(r"(-?\d+) *([a-z]*)")
_SECONDS: Final = {
    "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "": 1e-3,
}  # fmt: skip


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError. Source: Spark's JavaUtils.timeStringAsMs, which knows no fractions."""
    match = _TEXT.fullmatch(text.strip().lower())
    if match is None or match[2] not in _SECONDS or int(match[1]) < 0:
        raise ValueError(f"{text!r} is not a duration such as 30s, 15m or 1h")
    return int(match[1]) * _SECONDS[match[2]]
