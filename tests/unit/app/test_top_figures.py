"""What the live view reckons: rates from look to look, orders, texts that fit 80 columns."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.cli.top.figures import Line, Rates, barrier_line, cells, chosen, rate, short


def row(group: str, lag: int, **others: Any) -> dict[str, Any]:
    values = {"state": "Stable", "members": 2, "state_since_ms": 1_000, "severity": "", "trouble": ""}
    return {"group": group, "lag": lag, **values, **others}


def lines(*rows: dict[str, Any]) -> list[Line]:
    return Rates().lines(rows, 0.0, 5_000)


def test_rate_is_known_from_the_second_sample_on() -> None:
    rates = Rates()

    first = rates.lines([row("a", 100), row("b", 50)], 10.0, 5_000)
    second = rates.lines([row("a", 160), row("b", 20), row("new", 5)], 12.0, 7_000)

    assert [line.rate for line in first] == [None, None]
    assert [line.rate for line in second] == [30.0, -15.0, None]
    assert second[0].since_ms == 6_000


def test_worst_first_then_by_lag() -> None:
    found = lines(row("a", 10), row("b", 20), row("c", 1, severity="trouble"), row("d", 0, severity="stuck"))

    assert [line.group for line in chosen(found, "trouble", "")] == ["d", "c", "b", "a"]
    assert [line.group for line in chosen(found, "lag", "")] == ["b", "a", "c", "d"]


def test_filter_finds_ids_states_and_trouble() -> None:
    found = lines(row("Orders", 1), row("b", 1, state="PreparingRebalance"), row("c", 1, trouble="no_commits"))

    assert [line.group for line in chosen(found, "name", "ord")] == ["Orders"]
    assert [line.group for line in chosen(found, "name", "joining")] == ["b"]
    assert [line.group for line in chosen(found, "name", "no com")] == ["c"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (9_999, "9,999"), (12_345, "12.3k"), (-12_345, "-12.3k"), (3_400_000, "3.4M"), (7e9, "7.0G")],
)
def test_counts_are_short(count: float, text: str) -> None:
    assert short(count) == text


def test_rates_have_a_sign() -> None:
    assert [rate(value) for value in (None, 0.2, 12.0, -3.0)] == ["", "0", "+12", "-3"]
    assert cells(lines(row("a", 1))[0]) == ("a", "stable", "2", "1", "", "4.0 s", "")


def test_barrier_counts_down_and_names_missing_members() -> None:
    members = [
        {"client_id": "w-1", "member_id": "m1", "phase": "missing"},
        {"client_id": "", "member_id": "m2", "phase": "missing"},
        {"client_id": "w-3", "member_id": "m3", "phase": "joined"},
    ]
    found = {"join_deadline_ms": 20_000, "sync_deadline_ms": 0, "members": members}

    assert barrier_line(found, 8_000) == "join barrier ends in 12 s; waits for w-1, m2"
    assert barrier_line({**found, "join_deadline_ms": 0}, 8_000) == ""
