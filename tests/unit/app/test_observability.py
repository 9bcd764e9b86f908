"""Rules, dashboard and chart use only metrics that brokers export; generated files are up to date."""

from __future__ import annotations

import pytest
import yaml

from observability import dashboard
from observability.__main__ import ROOT, files
from observability.reference import alerts
from tests.observability.queries import OWN, RULES, all_queries, exposed, recorded, rules

DOCS = ROOT / "docs"


@pytest.mark.parametrize("path", [path for path, _ in files()], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_generated_files_are_up_to_date(path: object) -> None:
    assert dict(files())[path].strip() == path.read_text("utf-8").strip(), "run `make docs`"  # type: ignore


def test_queries_name_exported_metrics() -> None:
    known = exposed() | recorded()

    unknown = {name for query in all_queries() for name in OWN.findall(query)} - known

    assert unknown == set()
    assert recorded().isdisjoint(exposed())


def test_queries_ignore_the_instance_of_cluster_metrics() -> None:
    """Over a hand-over an alert must continue, and no rate may see the old and the new broker's as two."""
    for rule in rules("recording"):
        if rule["record"].count(":") == 1:
            assert rule["expr"].startswith("max without (instance, pod"), rule


def test_alerts_have_a_runbook() -> None:
    page = (DOCS / "operations.md").read_text()
    for rule in alerts():
        annotations = rule["annotations"]
        assert annotations["summary"] and annotations["description"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        target, _, anchor = annotations["runbook_url"].partition("#")
        assert target.endswith("/docs/operations.md") and f"\n### {rule['alert']}\n" in page
        assert anchor == rule["alert"].lower()


def test_every_alert_has_a_test() -> None:
    tested = (ROOT / "observability" / "tests" / "alerts_test.yml").read_text()
    untested = {rule["alert"] for rule in alerts()} - {name for name in OWN_ALERTS if name in tested}

    assert untested == PLAIN
    assert RULES.is_dir()


OWN_ALERTS = {rule["alert"] for rule in alerts()}
PLAIN = {
    "TidegateBackgroundFailures", "TidegateColdReadsFail", "TidegateConnectionsRefused", "TidegateDrainHangs",
    "TidegateGroupCommitsNothing", "TidegateScriptsSlow", "TidegateSeriesLeftOut",
}  # fmt: skip
"""Those that compare one value with a bound."""


def test_panels_have_units_and_the_three_variables_are_used() -> None:
    made = dashboard.dashboard()
    queries = " ".join(all_queries())

    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in made["panels"] if panel["type"] != "row")
    assert all(f"${name}" in queries for name in dashboard.VARIABLES)
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


def test_provisioning_is_yaml() -> None:
    found = list((ROOT / "observability" / "grafana" / "provisioning").rglob("*.yml"))

    assert len(found) == 2 and all(yaml.safe_load(path.read_text())["apiVersion"] == 1 for path in found)
