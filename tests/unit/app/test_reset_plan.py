"""kafka-consumer-groups' ways to choose offsets, as they are written."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tidegate.admin.failures import CommandFailed
from tidegate.admin.kafka_client import Topic
from tidegate.admin.reset_plan import (
    Choice,
    Move,
    _move,
    _timestamp,
    parse_datetime,
    parse_duration,
    parse_file,
    parse_topics,
)

ORDERS = {"orders": Topic("orders", {0: 1, 1: 2, 2: 1})}


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
    assert parse_duration(text) == expected


def test_a_duration_beyond_all_time() -> None:
    with pytest.raises(CommandFailed, match="too long"):
        parse_duration("P99999999999D")


@pytest.mark.parametrize("text", ["", "P", "PT", "7D", "P7", "P7H"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(CommandFailed, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["2026-01-31T18:00:00", "2026-01-31T18:00:00.000", "2026-01-31T19:00:00+01:00", "2026-01-31T18:00:00Z"]
)
def test_times_are_utc_unless_they_say_otherwise(text: str) -> None:
    assert parse_datetime(text) == 1_769_882_400_000


def test_what_is_no_time() -> None:
    with pytest.raises(CommandFailed, match="not a time"):
        parse_datetime("yesterday")


@pytest.mark.parametrize(
    "text",
    [
        "orders,0,5\norders,2,-\n",
        "topic,partition,offset\norders,0,5\n\norders,2,-\n",
        "billing,orders,0,5\nbilling,orders,2,-\n",
    ],
    ids=["bare", "with a head", "with the group"],
)
def test_files_say_what_goes_where(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.csv").write_text(text)

    assert parse_file(tmp_path / "plan.csv", "billing") == {("orders", 0): 5, ("orders", 2): None}


@pytest.mark.parametrize("text", ["orders,0\n", "orders,zero,5\n", "other,orders,0,5\n"])
def test_files_that_say_something_else(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.csv").write_text(text)

    with pytest.raises(CommandFailed, match="line 1"):
        parse_file(tmp_path / "plan.csv", "billing")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "plan.csv").write_bytes(b"\xff\xfe")

    with pytest.raises(CommandFailed, match="line 1"):
        parse_file(tmp_path / "plan.csv", "billing")


@pytest.mark.parametrize("choice", [Choice(to_datetime="0001-01-01"), Choice(by_duration="P99999D")])
def test_moments_before_1970_mean_the_first_record(choice: Choice) -> None:
    assert _timestamp(choice) == 0


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No such file"):
        parse_file(tmp_path / "plan.csv", "billing")


def test_topics_and_partitions() -> None:
    assert parse_topics(["orders"], ORDERS) == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert parse_topics(["orders:2,0"], ORDERS) == [("orders", 2), ("orders", 0)]


@pytest.mark.parametrize(
    ("text", "why"),
    [("odrers", "there is no topic"), ("orders:3", "partitions 0 to 2"), ("orders:x", "not topic:0,1,2")],
)
def test_topics_that_do_not_exist(text: str, why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        parse_topics([text], ORDERS)


def test_exactly_one_way_is_chosen() -> None:
    Choice(to_offset=0).check()
    with pytest.raises(CommandFailed, match="choose one of --to-earliest"):
        Choice().check()
    with pytest.raises(CommandFailed, match="only one of"):
        Choice(to_latest=True, shift_by=0).check()


@pytest.mark.parametrize(
    ("wanted", "after", "note"),
    [(5, 10, "5 is below the log start"), (15, 15, ""), (99, 20, "99 is beyond the end"), (None, None, "")],
)
def test_offsets_stay_within_the_log(wanted: int | None, after: int | None, note: str) -> None:
    assert _move(("orders", 0), 12, wanted, 10, 20) == Move("orders", 0, 12, after, note)
