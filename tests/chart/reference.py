"""`python -m tests.chart.reference`: helm/README.md from the comments of values.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

CHART: Final = Path(__file__).resolve().parents[2] / "helm"

_HEAD: Final = """# Tidegate, the chart

Brokers for Kubernetes 1.27 and newer. They keep nothing: bring a Redis or Valkey.

```
helm install tidegate ./helm --set redis.url=redis://redis:6379/0     # or redis.existingSecret=NAME
helm install tidegate ./helm --set valkey.enabled=true                # with a Valkey of one pod, to try
helm test tidegate
```

[docs/deploy-helm.md](../docs/deploy-helm.md): address modes, kinds of Redis, TLS, scaling, upgrades. Values are held to
`values.schema.json`: a key that is not here is refused. (This page is written by `make docs` from `values.yaml`.)
"""
_SECTION: Final = re.compile(r"# == (.+)")
_KEY: Final = re.compile(r"( *)([A-Za-z_]+):(.*)")


class Row(NamedTuple):
    """One key: its path, what the comment above it says, whether its value follows on its line."""

    path: tuple[str, ...]
    meaning: str
    is_leaf: bool


def rows(text: str) -> Iterator[Row | str]:
    """Keys in the order of the file, and headings of sections."""
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if heading := _SECTION.fullmatch(stripped):
            yield heading[1]
        elif stripped.startswith("# "):
            comment.append(stripped[2:])
            continue
        elif found := _KEY.fullmatch(line):
            depth = len(found[1]) // 2
            path = [*path[:depth], found[2]]
            yield Row(tuple(path), " ".join(comment), bool(found[3]))
        comment = []


def _default(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values[name]
    return values


def written() -> str:
    """The page."""
    text = (CHART / "values.yaml").read_text("utf-8")
    values = yaml.safe_load(text)
    lines = [_HEAD.rstrip()]
    for row in rows(text):
        if isinstance(row, str):
            lines += ["", f"## {row}", "", "| Value | Default | Meaning |", "|---|---|---|"]
            continue
        if not row.is_leaf and not row.meaning:
            continue
        shown = f"`{json.dumps(_default(values, row.path), ensure_ascii=False)}`" if row.is_leaf else ""
        lines.append(f"| `{'.'.join(row.path)}` | {shown} | {row.meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (CHART / "README.md").write_text(written(), "utf-8")
