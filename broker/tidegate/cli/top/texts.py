"""Text of Redis and of clients on the screen: rich passes escape sequences on to the terminal."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from tidegate.telemetry.visible import visible


def cut(text: str, width: int) -> str:
    """The text as far as a column shows it, with one space before the next."""
    shown = visible(text)
    return shown if len(shown) < width else f"{shown[: width - 2]}…"


def shown_text(text: str, **style: Any) -> Text:
    """One line, with control characters as their escapes; other arguments as of `Text`."""
    return Text(visible(text), **style)


def shown_lines(lines: list[str]) -> Text:
    """Several lines, each as `shown_text`."""
    return Text("\n").join(map(shown_text, lines))
