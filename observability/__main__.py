"""Write what comes from other files: docs/metrics.md, the dashboard, the chart's copies (`make docs`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from observability import dashboard, reference

ROOT: Final = Path(__file__).resolve().parent.parent


def files() -> Iterator[tuple[Path, str]]:
    """Every file that is made here, and its text. A chart reads only files of its own folder: hence copies."""
    yield ROOT / "docs" / "metrics.md", reference.page()
    yield ROOT / "observability" / "grafana" / "tidegate.json", dashboard.text()
    yield ROOT / "helm" / "files" / "dashboards" / "tidegate.json", dashboard.text()
    for path in sorted((ROOT / "observability" / "rules").glob("*.yml")):
        yield ROOT / "helm" / "files" / "rules" / path.name, path.read_text("utf-8")


if __name__ == "__main__":
    for target, text in files():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
