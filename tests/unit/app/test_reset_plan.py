"""kafka-consumer-groups' ways to choose offsets, as they are written."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tidegate.cli.client.group_reset import as_option, parse_file
from tidegate.cli.failures import CommandFailed
from tidegate.groups.reset_plan import (
    Choice,
    InvalidReset,
    Move,
    _move,
    _timestamp,
    parse_datetime,
    parse_duration,
    parse_topics,
)

ORDERS = {"orders": range(3)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P7D", timedelta(days=7)),
        ("PT1H30M", timedelta(minutes=90)),
        ("P1DT0.5S", timedelta(days=1, seconds=0.5)),
        ("-PT5M", -timedelta(minutes=5)),
    ],
)
def test_durations(text: str, expected: timedelta) -> None:
    assert parse_duration(text, "by_duration") == expected


def test_duration_beyond_all_time() -> None:
    with pytest.raises(InvalidReset, match="too long"):
        parse_duration("P99999999999D", "by_duration")


@pytest.mark.parametrize("text", ["", "P", "PT", "7D", "P7", "P7H"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidReset, match="not a duration"):
        parse_duration(text, "by_duration")


@pytest.mark.parametrize(
    "text", ["2026-01-31T18:00:00", "2026-01-31T18:00:00.000", "2026-01-31T19:00:00+01:00", "2026-01-31T18:00:00Z"]
)
def test_times_are_utc_by_default(text: str) -> None:
    assert parse_datetime(text, "to_datetime") == 1_769_882_400_000


def test_invalid_time_is_refused() -> None:
    with pytest.raises(InvalidReset, match="not a time"):
        parse_datetime("yesterday", "to_datetime")


@pytest.mark.parametrize(
    "text",
    [
        "orders,0,5\norders,2,-\n",
        "topic,partition,offset\norders,0,5\n\norders,2,-\n",
        "billing,orders,0,5\nbilling,orders,2,-\n",
    ],
    ids=["bare", "with a head", "with the group"],
)
def test_plan_file_maps_partitions_to_offsets(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.csv").write_text(text)

    assert parse_file(tmp_path / "plan.csv", "billing") == {("orders", 0): 5, ("orders", 2): None}


@pytest.mark.parametrize("text", ["orders,0\n", "orders,zero,5\n", "other,orders,0,5\n"])
def test_plan_file_with_other_content_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.csv").write_text(text)

    with pytest.raises(CommandFailed, match="line 1"):
        parse_file(tmp_path / "plan.csv", "billing")


def test_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "plan.csv").write_bytes(b"\xff\xfe")

    with pytest.raises(CommandFailed, match="line 1"):
        parse_file(tmp_path / "plan.csv", "billing")


@pytest.mark.parametrize("choice", [Choice(to_datetime="0001-01-01"), Choice(by_duration="P99999D")])
def test_moments_before_1970_mean_the_first_record(choice: Choice) -> None:
    assert _timestamp(choice, as_option, 1_795_000_000_000) == 0


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No such file"):
        parse_file(tmp_path / "plan.csv", "billing")


def test_topics_and_partitions() -> None:
    assert parse_topics(["orders"], ORDERS, as_option) == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert parse_topics(["orders:2,0"], ORDERS, as_option) == [("orders", 2), ("orders", 0)]


@pytest.mark.parametrize(
    ("text", "why"),
    [("odrers", "there is no topic"), ("orders:3", "partitions 0 to 2"), ("orders:x", "not topic:0,1,2")],
)
def test_topics_that_do_not_exist(text: str, why: str) -> None:
    with pytest.raises(InvalidReset, match=why):
        parse_topics([text], ORDERS, as_option)


def test_exactly_one_way_is_chosen() -> None:
    Choice(to_offset=0).check(as_option)
    with pytest.raises(InvalidReset, match="choose one of --to-earliest"):
        Choice().check(as_option)
    with pytest.raises(InvalidReset, match="only one of"):
        Choice(to_latest=True, shift_by=0).check(as_option)


@pytest.mark.parametrize(
    ("wanted", "after", "note"),
    [(5, 10, "5 is below the log start"), (15, 15, ""), (99, 20, "99 is beyond the end"), (None, None, "")],
)
def test_offsets_stay_within_the_log(wanted: int | None, after: int | None, note: str) -> None:
    assert _move(("orders", 0), 12, wanted, 10, 20) == Move("orders", 0, 12, after, note)
