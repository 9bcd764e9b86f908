"""Every query of rules and dashboards, and the metric names in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from observability import dashboard
from tidegate.telemetry.declared import BROKER
from tidegate.telemetry.declared_cluster import CLUSTER
from tidegate_pipeline.query_metrics import DECLARED as PIPELINE

RULES: Final = Path(__file__).resolve().parents[2] / "observability" / "rules"
OWN: Final = re.compile(r"\b(?:tidegate|process)(?:_\w+|:[\w:]+)")
PROMETHEUS_OWN: Final = frozenset({"up", "ALERTS"})


def rules(name: str) -> list[dict[str, Any]]:
    """The rules of a file."""
    return [rule for group in yaml.safe_load((RULES / f"{name}.yml").read_text())["groups"] for rule in group["rules"]]


def recorded() -> set[str]:
    """Names that recording rules make."""
    return {rule["record"] for rule in rules("recording")}


def exposed() -> set[str]:
    """Names of samples that brokers and the pipeline's jobs export."""
    names = set()
    for metric in (*BROKER, *CLUSTER, *PIPELINE):
        endings = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        names |= {metric.exposed + ending for ending in endings}
    return names | {"process_cpu_seconds_total", "process_resident_memory_bytes"}


def panels() -> list[tuple[str, str]]:
    """Title and query of each panel."""
    return [(title, query) for _, row in dashboard.ROWS for _, title, _, query, _ in row]


def all_queries() -> list[str]:
    """Of rules, panels and variables."""
    made = [rule["expr"] for name in ("alerts", "recording") for rule in rules(name)]
    return [*made, *(query for _, query in panels()), *dashboard.VARIABLES.values()]
