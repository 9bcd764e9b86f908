"""The rows of an entry of usage, as a broker writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tidegate_pipeline.sources.usage import SCHEMA, UsageSource

ENTRY = {
    b"time": b"1700000060000",
    b"broker": b"2",
    b"span_ms": b"60010",
    b"topics": json.dumps({"acme/t": [1, 2, 3, 4, 5, 6], "default/t": [9] * 6}).encode(),
    b"groups": json.dumps({"acme/a%2Fb": [7, 1, [["t:x:3", 90, 10, "app"]]]}).encode(),
    b"held": json.dumps({"acme/t": [100, 200], "acme/idle": [300, 0]}).encode(),
}


def rows(options: dict[str, str] | None = None, **changes: bytes) -> Iterator[dict[str, Any]]:
    names = [column.split(" ")[0] for column in SCHEMA.split(", ")]
    entry = ENTRY | {name.encode(): value for name, value in changes.items()}
    for row in UsageSource(options or {}).rows("1700000060007-0", entry):
        yield {name: value for name, value in zip(names, row, strict=True) if value is not None}


def test_entry_is_a_row_of_its_own_one_a_topic_and_one_a_group() -> None:
    own, idle, both, other, group = rows()

    head = {
        "id": "1700000060007-0", "ts": datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC), "span_ms": 60_010, "broker": "2",
    }  # fmt: skip
    assert own == head
    assert idle == head | {"org": "acme", "topic": "idle", "redis_bytes": 300, "archive_bytes": 0}
    assert both == head | {
        "org": "acme", "topic": "t", "records": 1, "stored_bytes": 2, "produce_requests": 3, "produced_bytes": 4,
        "fetch_requests": 5, "fetched_bytes": 6, "redis_bytes": 100, "archive_bytes": 200,
    }  # fmt: skip
    assert (other["org"], other["records"]) == ("default", 9)
    assert group == head | {
        "org": "acme", "group": "a/b", "commits": 7, "back_commits": 1, "back": [("t:x", 3, 90, 10, "app")],
    }  # fmt: skip


def test_usage_fields_of_later_versions_are_ignored() -> None:
    groups = {"acme/g": [7, 1, [["t:3", 90, 10, "app", "more"]], "more"]}
    found = list(rows(topics=json.dumps({"acme/t": [1] * 8}).encode(), groups=json.dumps(groups).encode()))

    assert found[-1]["back"] == [("t", 3, 90, 10, "app")]
    assert [row["fetched_bytes"] for row in found if "records" in row] == [1]


def test_entry_without_its_time_was_when_it_was_added() -> None:
    [bare] = UsageSource({}).rows("1700000060000-0", {})

    assert bare[:4] == ("1700000060000-0", datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC), 0, "")


def test_only_what_is_wanted() -> None:
    assert [row["topic"] for row in rows({"org": "default"})] == ["t"]
    assert [row["group"] for row in rows({"group": "a/b"})] == ["a/b"]
