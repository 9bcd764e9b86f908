"""Fixtures of the tests of the server."""

from __future__ import annotations

import pytest

from tidegate.server import sweeping


@pytest.fixture
def swept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweeper checks all the time; `pass_time` lets connections grow old for it."""
    monkeypatch.setattr(sweeping, "CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr(sweeping, "SWEEP_INTERVAL_S", 0.01)
