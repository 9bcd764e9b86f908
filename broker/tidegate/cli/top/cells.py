"""Text of the screens, without control characters: names come from clients, and rich draws most of them as they are."""

from __future__ import annotations

from rich.text import Text

from tidegate.telemetry.visible import visible


def text_of(line: str, style: str = "") -> Text:
    """One line, cut at the end of its widget."""
    return Text(visible(line), style=style, no_wrap=True, overflow="ellipsis")


def paragraph(lines: list[str], style: str = "") -> Text:
    """Lines that wrap."""
    return Text("\n".join(map(visible, lines)), style=style)


def cell(text: str, width: int, style: str = "") -> Text:
    """Text of a column, with one space before the next."""
    shown = visible(text)
    return text_of(shown if len(shown) < width else f"{shown[: width - 2]}…", style)
