"""Formats command output: tables for people; JSON, YAML or CSV for programs; findings as sentences.

rich is imported when a table is drawn, because its import is slower than most commands.
"""

from __future__ import annotations

import csv
import enum
import io
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from tidegate.telemetry.visible import CONTROLS, visible

_WIDTH_MAX: Final = 110
_TABLE_WIDTH: Final = 2_000
"""Rows are never wrapped, whatever the terminal's width: wrapped values cannot be copied."""
_STYLES: Final = {
    "stuck": "bold red",
    "problem": "bold red",
    "trouble": "yellow",
    "warning": "yellow",
    "note": "dim",
}


class Form(enum.StrEnum):
    """Output formats."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


Output = Annotated[Form, typer.Option("-o", "--output", help="table, json, yaml or csv.")]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its key in each row, its title, and the format for people."""

    key: str
    head: str
    show: Callable[[Any], str] = str
    right: bool = False


def write_rows(form: Form, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Programs get raw values, times in ms; JSON also contains fields without a column."""
    if form in (Form.JSON, Form.YAML):
        write_whole(form, list(rows))
    elif form is Form.CSV:
        _write_csv([column.key for column in columns], rows)
    else:
        _write_table(columns, rows)


def as_csv(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and a line per row; values other than text and numbers are JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(keys)
    for row in rows:
        writer.writerow(_cell(row.get(key)) for key in keys)
    return out.getvalue()


def _write_csv(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    typer.echo(as_csv(keys, printable(rows)), nl=False)


def printable(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Raw values in files; on a terminal control characters are escaped, because it would execute them."""
    if not sys.stdout.isatty():
        return rows
    return [{key: visible(value) if isinstance(value, str) else value for key, value in row.items()} for row in rows]


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | bool) else "" if value is None else value


def write_whole(form: Form, value: Any) -> None:
    """One value as indented JSON or YAML, keys in insertion order."""
    typer.echo(as_yaml(value) if form is Form.YAML else as_json(value, indent=2) + "\n", nl=False)


def as_yaml(value: Any) -> str:
    """YAML without control characters other than line ends."""
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    if CONTROLS.search(text.replace("\n", "")):  # YAML leaves bidirectional overrides unescaped
        text = yaml.safe_dump(value, sort_keys=False, allow_unicode=False)
    return text


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON without control characters other than the line ends of `indent`."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)  # json escapes controls below U+0020 itself
    return CONTROLS.sub(lambda found: found[0] if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


def write_one(form: Form, value: Mapping[str, Any], pairs: Sequence[tuple[str, str]]) -> None:
    """One object: `pairs` for people, its fields for programs."""
    if form is Form.TABLE:
        write_pairs(pairs)
    elif form is Form.CSV:
        _write_csv(list(value), [value])
    else:
        write_whole(form, value)


def _write_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.head, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        style = _STYLES.get(row.get("severity") or "", "")
        table.add_row(*(Text(_shown(column, row)) for column in columns), style=style)
    console = Console(file=sys.stdout, width=_TABLE_WIDTH, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def _shown(column: Column, row: Mapping[str, Any]) -> str:
    value = row.get(column.key)
    return "-" if value is None or value == "" else visible(column.show(value))


def write_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """One object, a line per property."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        typer.echo(f"{name:<{width}}  {visible(value) or '-'}".rstrip())


def write_findings(summary: str, findings: Sequence[Mapping[str, Any]]) -> None:
    """Sentences, each with its evidence and remedy."""
    from rich.console import Console
    from rich.text import Text

    terminal = sys.stdout.isatty()
    width = min(shutil.get_terminal_size().columns, _WIDTH_MAX) if terminal else _WIDTH_MAX

    def print_wrapped(text: str, first: str, rest: str, style: str = "") -> None:
        lines = textwrap.fill(
            visible(text), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
        )
        Console(highlight=False).print(Text(lines, style=style)) if terminal else typer.echo(lines)

    print_wrapped(summary, "", "")
    for finding in findings:
        severity = finding["severity"]
        typer.echo()
        print_wrapped(
            finding["sentence"], f"{severity.upper():<8} ", " " * 9, _STYLES[severity] if severity != "note" else ""
        )
        for line in finding["evidence"]:
            print_wrapped(line, " " * 9 + "- ", " " * 11, "dim")
        if finding["advice"]:
            print_wrapped(finding["advice"], " " * 9 + "> ", " " * 11)
