"""An Iceberg catalog in SQLite beside its tables, as pyiceberg finds it in the environment."""

from __future__ import annotations

from pathlib import Path


def catalog_environment(folder: Path, name: str = "lake") -> dict[str, str]:
    """The variables of a catalog."""
    prefix = f"PYICEBERG_CATALOG__{name.upper()}__"
    return {
        f"{prefix}TYPE": "sql",
        f"{prefix}URI": f"sqlite:///{folder}/catalog.db",
        f"{prefix}WAREHOUSE": f"file://{folder}/warehouse",
    }
