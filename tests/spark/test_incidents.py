"""Incidents that real clients make on real brokers are found by the jobs, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.incidents import play


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_incident_is_found(tmp_path: Path) -> None:
    found = play(tmp_path, 40)

    assert len(found) == 9
    assert [one for one in found if not one.found] == []
