"""`tidegate redis keys` and `redis log` on keys that brokers write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.support.fake_redis import KEY_BYTES, URL, group_keys
from tests.support.logs import batch_bytes
from tests.support.topics import TIMESTAMP_MS, WrittenTopic
from tidegate.cli.failures import DONE, FAILED
from tidegate.command_line import command_line


def typed(*words: str, code: int = DONE) -> str:
    """Run `tidegate redis WORDS`; what it prints."""
    done = CliRunner().invoke(command_line, ["redis", words[0], "--redis-url", URL, *words[1:]])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def reported(*words: str) -> Any:
    return json.loads(typed(*words, "-o", "json"))


def test_keys_pattern_lists_keys_with_their_kind_and_owner(fake_redis: Any) -> None:
    keys = group_keys("a:b")
    fake_redis.hset(keys.offsets, "orders:0", "{}")
    fake_redis.hset(keys.group, "state", "Empty")
    fake_redis.set("another:key", 1)

    rows = reported("keys", "*:group:default:a%3Ab*")

    assert sorted((row["kind"], row["group"], row["key"]) for row in rows) == [
        ("group", "a:b", keys.group),
        ("offsets", "a:b", keys.offsets),
    ]
    assert len(reported("keys", "*", "--count", "1")) == 1


def test_keys_hash_decodes_json_and_times(fake_redis: Any) -> None:
    keys = group_keys("g")
    fake_redis.hset(keys.offsets, "orders:0", '{"offset":5}')
    fake_redis.hset(keys.group, mapping={"state": "Empty", "created": TIMESTAMP_MS})

    offsets = reported("keys", keys.offsets)
    group = reported("keys", keys.group.removeprefix("tidegate:"))

    assert offsets["of"] == {"org": "default", "group": "g", "shard": str(keys.shard_keys.shard)}
    assert offsets["elements"] == [{"field": "orders:0", "value": {"offset": 5}}]
    assert (group["key"], group["bytes"], group["count"]) == (keys.group, KEY_BYTES, 2)
    assert group["elements"][0]["value"] == f"{TIMESTAMP_MS} (2023-11-14 22:13:20 UTC)"


def test_keys_zset_shows_deadlines_as_times(fake_redis: Any) -> None:
    keys = group_keys("g")
    fake_redis.zadd(keys.sessions, {"member-1": TIMESTAMP_MS})

    (row,) = reported("keys", keys.sessions)["elements"]

    assert row == {"member": "member-1", "score": TIMESTAMP_MS, "time": "2023-11-14 22:13:20 UTC"}


def test_keys_log_lists_every_batch_of_an_entry(fake_redis: Any) -> None:
    topic = WrittenTopic(fake_redis, "orders")
    topic.append(batch_bytes(3, timestamp=TIMESTAMP_MS), batch_bytes(2, timestamp=TIMESTAMP_MS))

    (entry,) = reported("keys", topic.keys().log)["elements"]

    assert entry["writer"] == "test:1"
    assert [(batch["offsets"], batch["records"]) for batch in entry["batches"]] == [("0-2", 3), ("3-4", 2)]
    assert reported("keys", "{default/orders:0}:*:log")[0]["key"] == topic.keys().log


def test_keys_log_names_a_batch_that_cannot_be_read(fake_redis: Any) -> None:
    topic = WrittenTopic(fake_redis, "orders")
    fake_redis.execute_command("XADD", topic.keys().log, "0-1", "w", "x:1", "b", batch_bytes(2)[:-1])

    (entry,) = reported("keys", topic.keys().log)["elements"]

    assert list(entry["batches"][0]) == ["unreadable"]


def test_keys_count_shown_is_limited(fake_redis: Any) -> None:
    keys = group_keys("g")
    fake_redis.hset(keys.offsets, mapping={f"orders:{number}": "{}" for number in range(60)})

    assert "… 10 more" in typed("keys", keys.offsets)


@pytest.mark.parametrize(
    ("name", "reported_text"),
    [
        ("tidegate:{cluster}:nothing", "tidegate: tidegate:{cluster}:nothing is not a key of Tidegate"),
        ("{co:49}:group:default:none", "tidegate: there is no key tidegate:{co:49}:group:default:none"),
    ],
)
def test_keys_missing_key_is_reported(fake_redis: Any, name: str, reported_text: str) -> None:
    assert typed("keys", name, code=FAILED).startswith(reported_text)


def test_log_names_the_stream_and_its_entries(fake_redis: Any) -> None:
    topic = WrittenTopic(fake_redis, "orders")
    topic.fill([1, 1])
    fake_redis.xgroup_create(topic.keys().log, "mine", "$")

    assert reported("log", "orders") == {"key": topic.keys().log, "format": "batch", "entries": 2, "groups": 1}
    assert "there is no partition 1 of topic default/orders" in typed("log", "orders", "1", code=FAILED)
