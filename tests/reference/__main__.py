"""Write the pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.reference import clients, errors

ROOT: Final = Path(__file__).resolve().parents[2]


PAGES: Final[dict[Path, Callable[[], str]]] = {
    ROOT / "docs" / "errors.md": errors.page,
    ROOT / "docs" / "clients.md": clients.page,
}
"""Every page and what makes its text."""


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), "utf-8")
