"""Templates and value formats: numbers, sizes, times with their zone, remedies with commands."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from markupsafe import Markup, escape

from tidegate.diagnosis import formatting
from tidegate.diagnosis.formatting import clock, counted, format_duration, format_timestamp, ranges

if TYPE_CHECKING:
    from jinja2 import Environment

DIRECTORY: Final = Path(__file__).parent
ROOT: Final = "/console"
_COMMAND: Final = re.compile(r"`([^`]+)`")
_WORD: Final = re.compile(r"([a-z])(?=[A-Z])")
_TIME: Final = re.compile(r"(?<![-\d] )\b(\d\d):(\d\d):(\d\d) UTC")
_CLOCK: Final = (3_600, 60, 1)
_DAY_MS: Final = 86_400_000


def url(page: str, **query: object) -> str:
    """A page's URL. Names go into the query, because browsers normalise `..` and proxies decode `%2F` in a path."""
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{ROOT}/{page}{'?' + urlencode(given) if given else ''}"


def number(value: float | None) -> str:
    """`1,234`; a dash when unknown."""
    return "–" if value is None else f"{value:,}"  # noqa: RUF001 - a dash, as it is printed


def size(count: float | None) -> str:
    """Bytes with a unit: `1.4 GiB`; a dash when unknown."""
    return number(None) if count is None else formatting.size(count)


def duration(ms: float | None) -> str:
    """`3 min 20 s`; a dash when unknown."""
    return number(None) if ms is None else format_duration(int(ms))


def when(ms: int | None, full: bool = False) -> Markup | str:
    """A time element: UTC in the HTML; a script converts it to the browser's zone and shows UTC as tooltip."""
    if not ms:
        return number(None)
    exact = f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
    shown = format_timestamp(ms) if full else clock(ms)
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(
        exact, format_timestamp(ms), Markup(" data-full") if full else "", shown
    )


def words(name: str) -> Markup:
    """A camel-case name with optional line breaks between its words: PreparingRebalance."""
    return Markup(_WORD.sub(r"\1<wbr>", str(escape(name))))  # noqa: S704 - escaped before


def commands(text: str) -> Markup:
    """Text with `this` rendered as a command."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def with_times(text: str, now_ms: int) -> Markup:
    """A sentence with recent times, `18:04:05 UTC`, as time elements, and `this` as a command."""

    def moment_of(found: re.Match[str]) -> str:
        midnight_ms = now_ms - now_ms % _DAY_MS
        at_ms = midnight_ms + 1_000 * sum(int(part) * unit for part, unit in zip(found.groups(), _CLOCK, strict=True))
        near_ms = min((at_ms - _DAY_MS, at_ms, at_ms + _DAY_MS), key=lambda one: abs(one - now_ms))
        return str(when(near_ms))

    return Markup(_TIME.sub(moment_of, str(commands(text))))  # noqa: S704 - escaped before


def sparkline(values: Sequence[float], width: int = 96, height: int = 22) -> Markup:
    """An SVG line of the points, with 0 as its lowest value; empty below two points."""
    if len(values) < 2:
        return Markup("")
    top, step = max(max(values), 1), width / (len(values) - 1)
    points = " ".join(f"{at * step:.1f},{height - 2 - (height - 4) * one / top:.1f}" for at, one in enumerate(values))
    return Markup(  # noqa: S704 - numbers alone
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" aria-hidden="true">'
        f'<polyline points="{points}"/></svg>'
    )


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # lazy: most brokers render no page

    made = Environment(
        loader=FileSystemLoader(DIRECTORY / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "number": number,
        "size": size,
        "duration": duration,
        "when": when,
        "words": words,
        "with_times": with_times,
        "sparkline": sparkline,
        "ranges": ranges,
    }
    made.globals |= {"url": url, "counted": counted}
    return made


def _render(template: str, values: dict[str, Any]) -> str:
    return _templates().get_template(template).render(**values)


async def rendered(template: str, **values: Any) -> str:
    """Render a page in a thread: 500 members take 20 ms, which would delay heartbeats."""
    return await asyncio.to_thread(_render, template, values)
