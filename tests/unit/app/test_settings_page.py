"""docs/settings.md says what the code says."""

from __future__ import annotations

from pathlib import Path

from broker.admin import options

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == options.markdown(), "run `make docs`"
