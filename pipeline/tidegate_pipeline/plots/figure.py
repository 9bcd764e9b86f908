"""Style of all plots: sizes for a printed column, colours safe for colour-blind readers, times in UTC."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import dates
from matplotlib.figure import Figure

from tidegate_pipeline.errors import UsageError

COLORS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6D31", "#5E4FA2", "#3B3B3B")
"""Okabe and Ito's, and four more; vermilion is kept for trouble."""
TROUBLE: Final = "#D55E00"
QUIET: Final = "#999999"

_WIDTH_IN: Final = 7.2
_STYLE: Final[Any] = {
    "font.size": 8.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.4,
}


def panels(heights_in: Sequence[float]) -> tuple[Figure, list[Any]]:
    """A figure of panels below each other that share their times."""
    mpl.rcParams.update(_STYLE)
    figure = Figure(figsize=(_WIDTH_IN, sum(heights_in)), layout="constrained")
    axes = figure.subplots(len(heights_in), sharex=True, squeeze=False, height_ratios=list(heights_in))
    return figure, [row[0] for row in axes]


def time_axis(axes: Any, first: datetime, last: datetime) -> None:
    """Times of day below the lowest panel, and their date."""
    known: Any = dates  # its functions have no types
    locator = known.AutoDateLocator(tz=UTC, minticks=4, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(known.ConciseDateFormatter(locator, tz=UTC, show_offset=False))
    days = sorted({f"{moment:%Y-%m-%d}" for moment in (first, last)})
    axes.set_xlabel(f"time (UTC), {' to '.join(days)}")


def legend_beside(axes: Any, title: str = "") -> None:
    """The legend right of a panel, where it hides nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0, title=title, alignment="left")


def save(figure: Figure, path: Path) -> None:
    """Write it as PNG, with no metadata that differs between two runs. Raises UsageError."""
    try:
        figure.savefig(path, format="png", dpi=130, metadata={"Software": None})
    except OSError as error:
        raise UsageError(f"--out {path}: {error.strerror}") from None
