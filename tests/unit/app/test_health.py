"""Ready means that a new client would be served."""

from __future__ import annotations

import pytest

from tidegate.http.health import Health


def test_broker_is_ready_when_all_is_up() -> None:
    assert Health(lambda: True, lambda: True, listening=True).ready


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (Health(lambda: False, lambda: True, listening=True), "redis is not reachable"),
        (Health(lambda: True, lambda: False, listening=True), "no lease is held"),
        (Health(lambda: True, lambda: True, listening=False), "the listener is not open"),
        (Health(lambda: True, lambda: True, listening=True, draining=True), "draining"),
        (
            Health(lambda: True, lambda: True, loop_lag_s=lambda: 2.0, listening=True),
            "the event loop stood still for 2 s or longer in the last 10 s",
        ),
    ],
)
def test_readiness_names_the_missing_part(health: Health, reason: str) -> None:
    assert health.reasons() == [reason]


def test_short_stall_stays_ready() -> None:
    assert Health(lambda: True, lambda: True, loop_lag_s=lambda: 1.9, listening=True).ready


def test_other_process_of_the_host_not_ready_is_not_its_own_reason() -> None:
    health = Health(
        lambda: True, lambda: True, others_not_ready=lambda: ["process 1 of this host is not ready"], listening=True
    )

    assert health.reasons() == ["process 1 of this host is not ready"]
    assert health.own_reasons() == []
