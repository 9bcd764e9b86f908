"""Gauges formatted as exposition lines when they are measured, so that a scrape only copies them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from tidegate.telemetry.declared import Declared

_LINES_AT_ONCE: Final = 5_000
"""Lines that are joined before the event loop gets control again."""


def labels(**values: str) -> str:
    """Label values formatted for an exposition line, without braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Gauges:
    """Samples of some gauges. Lines of one metric family are contiguous, as both text formats require."""

    def __init__(self, families: Iterable[Declared]) -> None:
        self._lines: dict[Declared, list[str]] = {family: [] for family in families}

    def add(self, metric: Declared, labelled: str, value: float) -> None:
        """Add a sample; `labelled` is the result of `labels` for the metric's declared label names."""
        if value == float("inf"):
            text = "+Inf"
        elif isinstance(value, int):
            text = str(value)
        else:
            text = format(value, ".6g" if value < 1e5 else ".17g")
        self._lines[metric].append(f"{metric.name}{{{labelled}}} {text}" if labelled else f"{metric.name} {text}")

    async def text(self) -> list[bytes]:
        """The page in chunks; families without samples are omitted."""
        parts: list[bytes] = []
        for metric, lines in self._lines.items():
            if lines:
                parts.append(f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n".encode())
            for start in range(0, len(lines), _LINES_AT_ONCE):
                parts.append(("\n".join(lines[start : start + _LINES_AT_ONCE]) + "\n").encode())
                await asyncio.sleep(0)
        return parts
