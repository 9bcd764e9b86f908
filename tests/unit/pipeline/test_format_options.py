"""Options of Spark formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidegate_pipeline.decode.schema import decoded_schema
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.format_options import FormatOptions
from tidegate_pipeline.replay.sink import plan_of, ranges_of
from tidegate_pipeline.sources.sql_table import same_columns, table_options, with_table_options
from tidegate_pipeline.tables.delta_sink import DeltaSink


def options(**given: str) -> FormatOptions:
    return FormatOptions("tidegate-x", ("topicId", "retry", "on", "count"), given)


def test_format_options_names_have_no_case() -> None:
    assert options(TOPICID="a").text("topicId") == "a"


def test_format_options_empty_value_is_default() -> None:
    given = options(topicId="", count="", retry="", on="")
    assert given.text("topicId", "d") == "d" and given.optional_text("topicId") is None
    assert given.integer("count", 1) is None and given.number("retry", 2.5) == 2.5 and given.flag("on", True)


def test_format_options_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown option of tidegate-x: other; its options are topicId, retry"):
        options(other="1")


def test_format_options_of_spark_are_accepted() -> None:
    options(path="p", checkpointLocation="c", queryName="q", owner="root", provider="tidegate-x")


def test_format_options_of_a_sql_table_have_a_prefix() -> None:
    given = FormatOptions("tidegate-x", ("topicId",), {"option.topicId": "a", "provider": "tidegate-x"})
    assert given.text("topicId") == "a"
    with pytest.raises(UsageError, match="unknown option of tidegate-x: other"):
        FormatOptions("tidegate-x", ("topicId",), {"option.other": "a"})


def test_sql_table_keeps_its_options_in_its_schema() -> None:
    created = {"option.subscribe": "t", "subscribe": "t", "provider": "tidegate"}
    stored = with_table_options(decoded_schema(), created)
    assert same_columns(stored, decoded_schema())
    assert table_options(stored) == {"subscribe": "t"}
    assert with_table_options(decoded_schema(), {"subscribe": "t"}) == decoded_schema()
    assert table_options(decoded_schema()) == {}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda given: given.required_text("topicId"), "tidegate-x needs the option topicId"),
        (lambda given: given.integer("count", 1), "count is a whole number of at least 1, not 0"),
        (lambda given: given.number("retry", 1.0), "retry is a number of at least 0, not soon"),
        (lambda given: given.flag("on", True), "on is true or false, not yes"),
        (lambda given: given.one_of("on", "a", ("a", "b")), "on is one of a, b, not yes"),
    ],
)
def test_format_options_wrong_value_is_named(read: Callable[[FormatOptions], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(options(count="0", retry="soon", on="yes"))


@pytest.mark.parametrize("text", ["nan", "inf", "-1"])
def test_format_options_number_is_finite(text: str) -> None:
    with pytest.raises(UsageError, match="retry is a number"):
        options(retry=text).number("retry", 1.0)


def test_replay_unknown_option_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown option of tidegate-replay: recordPerSecond"):
        plan_of({"topic": "new", "recordPerSecond": "1"})


@pytest.mark.parametrize("text", ["0", "0:1", "0:a-2", "x:1-2"])
def test_replay_ranges_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="ranges are <partition>:<start>-<end>"):
        ranges_of(text)


def test_delta_unknown_option_is_refused() -> None:
    schema = decoded_schema()
    with pytest.raises(UsageError, match="unknown option of tidegate-delta: topic; did you mean topicId"):
        DeltaSink({"path": "p", "topicId": "00", "topic": "t"}).streamWriter(schema, False)
    with pytest.raises(UsageError, match="tidegate-delta needs the option topicId"):
        DeltaSink({"path": "p"}).streamWriter(schema, False)
