"""Gauges as the lines that a scraper reads, written as they become known, so that a scrape only copies them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from tidegate.telemetry.declared import Declared

_LINES_AT_ONCE: Final = 5_000
"""Lines joined between two turns of the event loop."""


def labels(**values: str) -> str:
    """Label values as a line has them, without braces."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Page:
    """Samples of some gauges. Each family's lines stay together, as both text formats want it."""

    def __init__(self, families: Iterable[Declared]) -> None:
        self._lines: dict[Declared, list[str]] = {family: [] for family in families}

    def add(self, metric: Declared, labelled: str, value: float) -> None:
        """A sample; `labelled` is what `labels` made, of the labels that the metric declares."""
        if value == float("inf"):
            text = "+Inf"
        elif isinstance(value, int):
            text = str(value)
        else:
            text = format(value, ".6g" if value < 1e5 else ".17g")
        self._lines[metric].append(f"{metric.name}{{{labelled}}} {text}" if labelled else f"{metric.name} {text}")

    async def text(self) -> list[bytes]:
        """The page, in pieces that are sent one after the other; families without samples are left out."""
        parts: list[bytes] = []
        for metric, lines in self._lines.items():
            if lines:
                parts.append(f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n".encode())
            for start in range(0, len(lines), _LINES_AT_ONCE):
                parts.append(("\n".join(lines[start : start + _LINES_AT_ONCE]) + "\n").encode())
                await asyncio.sleep(0)
        return parts
