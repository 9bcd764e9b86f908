"""Write the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.reference import clients, errors

ROOT: Final = Path(__file__).resolve().parents[2]


def files() -> tuple[tuple[Path, str], ...]:
    """Every page and what it should say."""
    return ((ROOT / "docs" / "errors.md", errors.page()), (ROOT / "docs" / "clients.md", clients.page()))


if __name__ == "__main__":
    for path, text in files():
        path.write_text(text, "utf-8")
