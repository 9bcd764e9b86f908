"""What needs neither Redis nor Spark: options, offsets, shares, and the rows that entries make."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.history_job import history_options
from tidegate_pipeline.settings import load
from tidegate_pipeline.sources.capped_streams import (
    EntryRange,
    Place,
    fair_shares,
    from_offsets,
    id_key,
    spread,
    to_offsets,
)
from tidegate_pipeline.sources.events import SCHEMA, EventsSource, event_row
from tidegate_pipeline.sources.history_source import GroupFilter, HistoryOptions
from tidegate_pipeline.sources.lag import SCHEMA as LAG_SCHEMA
from tidegate_pipeline.sources.lag import LagSource

EVENT = {
    "time": "1700000000123", "group": "default/a%2Fb%20c", "generation": "7", "kind": "rebalance_started",
    "cause": "member_joined", "member": "m-1", "instance_id": "", "client_id": "app", "host": "/10.0.0.1",
    "reason": "said so", "detail": "", "members": "3", "broker": "2", "duration_ms": "1500",
}  # fmt: skip


def row(**changes: str) -> dict[str, object]:
    names = [column.split(" ")[0] for column in SCHEMA.split(", ")]
    return dict(zip(names, event_row("1700000000125-3", EVENT | changes), strict=True))


def test_event_is_a_row() -> None:
    assert row() == {
        "id": "1700000000125-3", "ts": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC), "group": "a/b c",
        "org": "default", "event": "rebalance_started", "generation": 7, "member": "m-1", "instance": None,
        "client_id": "app", "client_host": "10.0.0.1", "state_from": None, "state_to": "PreparingRebalance",
        "assignor": None, "topics": None, "reason": "said so", "broker": "2",
        "detail": {"cause": "member_joined", "members": "3", "duration_ms": "1500"},
    }  # fmt: skip


def test_event_kinds_with_detail_columns() -> None:
    joined = row(kind="barrier_joined", detail="range")
    assert (joined["assignor"], joined["state_from"], joined["state_to"]) == (
        "range", "PreparingRebalance", "CompletingRebalance",
    )  # fmt: skip
    reset = row(kind="offsets_reset", detail="b:0 5 2 a:1 - 7 b:1 3 3")
    assert reset["topics"] == ["a", "b"] and reset["detail"]["detail"] == "b:0 5 2 a:1 - 7 b:1 3 3"  # type: ignore[index]
    assert row(kind="offsets_expired", detail="b:0 x.y:11")["topics"] == ["b", "x.y"]


def test_unknown_kinds_and_fields_pass_through() -> None:
    later = row(kind="seen_from_space", orbit="low", detail="anything at all")

    assert (later["event"], later["topics"], later["assignor"], later["state_to"]) == (
        "seen_from_space", None, None, None,
    )  # fmt: skip
    assert later["detail"] == {
        "cause": "member_joined", "members": "3", "duration_ms": "1500", "orbit": "low", "detail": "anything at all",
    }  # fmt: skip
    bare = event_row("17-0", {})
    assert bare[0] == "17-0" and bare[1] == datetime.fromtimestamp(0.017, UTC) and bare[5] is None


def test_sample_is_a_row_for_each_partition() -> None:
    fields = {
        b"time": b"2000",
        b"group": b"acme/a%2Fb",
        b"t:x:0": b"committed=1 start=0 end=5 lag=4 committed_at=2000 next_time=1000 head_time=1500 member=a b-1 x=y",
        b"t:x:11": b"committed=5 start=0 end=5 lag=0 committed_at=2000 next_time=-1 head_time=1500 member=",
    }
    source, at = LagSource({}), [datetime.fromtimestamp(second / 2, UTC) for second in range(5)]

    assert list(source.rows("2001-3", fields)) == [
        (at[4], "acme", "a/b", "t:x", 0, 1, 0, 5, 4, "a b-1 x=y", at[4], at[2], at[3]),
        (at[4], "acme", "a/b", "t:x", 11, 5, 0, 5, 0, None, at[4], None, at[3]),
    ]
    assert list(LagSource({"group": "other"}).rows("2001-3", fields)) == []
    assert len(LAG_SCHEMA.split(", ")) == 13

    del fields[b"time"]
    assert {row[0] for row in source.rows("4000-3", fields)} == {datetime.fromtimestamp(4, UTC)}
    del fields[b"group"]
    assert list(source.rows("4000-3", fields)) == []


def test_offsets_are_one_text_whatever_the_order() -> None:
    places = {"b": Place("5-1", 9), "a": Place("7-0", 2), "untouched": Place()}
    text = json.dumps(to_offsets(places))

    assert text == '{"a": "7-0", "b": "5-1", "_counts": {"a": 2, "b": 9}}'
    assert text == json.dumps(to_offsets(dict(reversed(places.items()))))
    assert from_offsets(json.loads(text)) == {"a": Place("7-0", 2), "b": Place("5-1", 9)}


def test_ids_are_ordered_as_numbers() -> None:
    assert id_key("9-10") > id_key("9-9") > id_key("9") and id_key("10-0") > id_key("9-9")
    with pytest.raises(UsageError, match="not the id"):
        id_key("yesterday")


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 50), max_size=6), st.integers(0, 120))
def test_shares_are_fair_and_complete(backlogs: dict[str, int], limit: int) -> None:
    shares = fair_shares(backlogs, limit)

    assert sum(shares.values()) == min(limit, sum(backlogs.values()))
    assert all(0 <= shares[stream] <= backlog for stream, backlog in backlogs.items())
    cut = [shares[stream] for stream in backlogs if shares[stream] < backlogs[stream]]
    assert not cut or max(shares.values()) <= min(cut) + 1  # nobody has more than one who wants more


@given(st.lists(st.integers(1, 100), max_size=20))
def test_tasks_cover_every_part_once(counts: list[int]) -> None:
    entry_ranges = [EntryRange(f"s{number}", "0-0", "1-0", count) for number, count in enumerate(counts)]
    tasks = spread(entry_ranges, 4)

    assert sorted(
        (entry_range for task in tasks for entry_range in task), key=lambda entry_range: entry_range.stream
    ) == sorted(entry_ranges, key=lambda entry_range: entry_range.stream)
    assert len(tasks) == min(len(counts), 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "latest"}, "history source: startingOffset; did you mean startingOffsets"),
        ({"maxEntriesPerTrigger": "0"}, "maxEntriesPerTrigger is a whole number of at least 1"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss is true or false"),
        ({"redis.url": "redis://:secret@r:1/0"}, "no password in an option"),
        ({"startingTimestamp": "1", "startingOffsets": "latest"}, "not both"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        HistoryOptions(options)


def test_password_stays_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PIPELINE_REDIS_URL", "redis://:secret@r:1/0")
    source = LagSource({})

    assert b"secret" not in pickle.dumps(source)
    assert load().redis.options == {"redis.url": "", "redis.keyPrefix": "tidegate"}
    assert history_options(load()) == {"redis.url": "", "redis.keyPrefix": "tidegate", "failOnDataLoss": "true"}
    assert source.open()._client.connection_pool.connection_kwargs["password"] == "secret"


def test_redis_url_may_be_in_the_file_of_the_brokers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    named = tmp_path / "url"
    named.write_text("redis://r:7/0\n")
    monkeypatch.setenv("TIDEGATE_REDIS_URL_FILE", str(named))
    assert load().redis.url == "redis://r:7/0"

    monkeypatch.setenv("TIDEGATE_REDIS_URL", "redis://s:7/0")
    with pytest.raises(UsageError, match="are both set"):
        load()


def test_redis_url_in_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEGATE_REDIS_URL_FILE", str(tmp_path / "url"))
    with pytest.raises(UsageError, match="No such file"):
        load()


def test_options_have_no_case_and_defaults() -> None:
    options = HistoryOptions({"REDIS.URL": "redis://r:1/2", "Group": "g", "failondataloss": "FALSE"})

    assert (options.url, options.prefix, options.fail_on_data_loss) == ("redis://r:1/2", "tidegate", False)
    assert options.wanted == GroupFilter("g") and not options.wanted.holds("h", "default")
    assert EventsSource({}).settings.max_entries == 100_000
