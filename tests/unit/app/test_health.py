"""Ready means that a new client would be served."""

from __future__ import annotations

import pytest

from tidegate.admin.health import Health


def test_a_broker_is_ready_when_all_is_up() -> None:
    assert Health(lambda: True, lambda: True, listening=True).ready


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (Health(lambda: False, lambda: True, listening=True), "redis is not reachable"),
        (Health(lambda: True, lambda: False, listening=True), "no lease is held"),
        (Health(lambda: True, lambda: True, listening=False), "the listener is not open"),
        (Health(lambda: True, lambda: True, listening=True, draining=True), "draining"),
    ],
)
def test_what_is_missing_is_named(health: Health, reason: str) -> None:
    assert health.reasons() == [reason]
