"""What of the chart is made from other files is as they are now: `make docs`."""

from __future__ import annotations

import pytest

from tests.chart import reference, schema

OBSERVABILITY = reference.CHART.parent / "observability"


def test_page_of_values_is_up_to_date() -> None:
    assert (reference.CHART / "README.md").read_text("utf-8") == reference.written(), "make docs"


def test_schema_knows_every_setting() -> None:
    assert schema.PATH.read_text("utf-8") == schema.written(), "make docs"


@pytest.mark.parametrize(("ours", "theirs"), [("rules/*.yml", "rules/*.yml"), ("dashboards/*.json", "grafana/*.json")])
def test_rules_and_dashboards_are_those_of_observability(ours: str, theirs: str) -> None:
    shipped = {path.name: path.read_text("utf-8") for path in (reference.CHART / "files").glob(ours)}

    assert shipped
    assert shipped == {path.name: path.read_text("utf-8") for path in OBSERVABILITY.glob(theirs)}, "make docs"
