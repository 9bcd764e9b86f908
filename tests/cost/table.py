"""The checked-in costs: read, compared with what was measured, written, shown."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.cost.counting import COLUMNS, PYTHON_COLUMNS

PATH: Final = Path(__file__).parent / "table.toml"
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
RISE_MAX: Final = {"bytecodes": 0.01}
"""How much more than the table says is accepted; nothing, of other columns."""
FALL_MAX: Final = 0.03
"""How much less is accepted before the table must be brought down."""

_HEADER: Final = """\
# What one warm broker spends on each operation (tests/cost/operations.py): frames entered and bytecodes executed in
# Python, reads and writes of sockets towards clients and towards Redis, commands sent to Redis, commands that Redis
# ran (those of scripts included), bytes each way. Written by `make cost ARGS=--update`. A figure may rise only with
# a reason in the commit that raises it.
"""

Costs = Mapping[str, Mapping[str, int]]


def read() -> tuple[str, dict[str, dict[str, int]]]:
    """The version of Python whose calls and bytecodes are in the table, and its rows."""
    table = tomllib.loads(PATH.read_text("utf-8"))
    return table["python"], table["operations"]


def text(costs: Costs) -> str:
    """The file's text for these costs, measured on this version of Python."""
    rows = [
        f"{name} = {{ {', '.join(f'{column} = {cost[column]}' for column in COLUMNS)} }}"
        for name, cost in costs.items()
    ]  # fmt: skip
    return "\n".join([_HEADER, f'python = "{PYTHON}"', "", "[operations]", *rows, ""])


def problems(allowed: Costs, measured: Costs, python: str) -> list[str]:
    """What is wrong between a table and a measurement, a line each.

    `python` is the table's version: calls and bytecodes are compared only on the same one.
    """
    found = [f"{name}: not in the table" for name in measured if name not in allowed]
    found += [f"{name}: in the table, but not measured" for name in allowed if name not in measured]
    for name in allowed.keys() & measured.keys():
        for column in COLUMNS:
            if column in PYTHON_COLUMNS and python != PYTHON:
                continue
            table, now = allowed[name][column], measured[name][column]
            if now > table * (1 + RISE_MAX.get(column, 0)):
                found.append(f"{name}: {column} rose from {table} to {now}")
            elif now < table * (1 - FALL_MAX):
                found.append(f"{name}: {column} fell from {table} to {now}: bring the table down")
    return sorted(found)


def shown(measured: Costs, allowed: Mapping[str, Any]) -> str:
    """The costs as a table for people; what differs from the checked-in figure is beside it."""
    lines = [["", *COLUMNS]]
    for name, cost in measured.items():
        row = [name]
        for column in COLUMNS:
            difference = cost[column] - allowed.get(name, {}).get(column, 0)
            row.append(f"{cost[column]}{f' ({difference:+d})' if difference else ''}")
        lines.append(row)
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    widths[0] *= -1  # to the left
    return "\n".join(
        "  ".join(f"{cell:{'<' if width < 0 else '>'}{abs(width)}}" for cell, width in zip(row, widths, strict=True))
        for row in lines
    )
