"""The catalogue of topics as the pipeline reads it, and the selection of what a query reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.fake_redis import URL
from tests.support.topic_reads import access_to
from tests.support.topics import WrittenTopic
from tidegate.store.keys import ClusterKeys
from tidegate_pipeline.errors import UsageError
from tidegate_pipeline.jobs.archive import ArchiveJob
from tidegate_pipeline.sources import starting
from tidegate_pipeline.topics import Condition, find_batch_topic, read_topics, with_configs

KEYS = ClusterKeys("tidegate")


def put_topic(client: Any, name: str, **fields: Any) -> None:
    """A topic of the catalogue, without a log."""
    record = {"id": f"{len(name):032x}", "partitions": 2, "wanted": 2, "format": "batch", "state": "ready", **fields}
    client.hset(KEYS.topics, f"default/{name}", json.dumps(record))


def test_read_topics_lists_ready_topics_of_the_org_by_name(fake_redis: Any) -> None:
    put_topic(fake_redis, "orders")
    put_topic(fake_redis, "bills", partitions=7)
    put_topic(fake_redis, "deleted", state="deleting")
    fake_redis.hset(KEYS.topics, "other/theirs", fake_redis.hget(KEYS.topics, "default/orders"))

    topics = read_topics(fake_redis, "tidegate", "default")

    assert [(name, one.partition_count, one.bits) for name, one in topics.items()] == [
        ("bills", 7, 0),
        ("orders", 2, 0),
    ]
    assert list(read_topics(fake_redis, "tidegate", "other")) == ["theirs"]
    assert read_topics(fake_redis, "elsewhere", "default") == {}


def test_read_topics_sequence_bits_of_format_record_are_the_topics_own_or_10(fake_redis: Any) -> None:
    put_topic(fake_redis, "usual", format="record")
    put_topic(fake_redis, "wide", format="record")
    fake_redis.hset(KEYS.topic("default", "wide"), "tidegate.sequence.bits", 16)

    topics = read_topics(fake_redis, "tidegate", "default")

    assert {name: one.bits for name, one in topics.items()} == {"usual": 10, "wide": 16}
    assert topics["wide"].keys("tidegate", 1).log == "tidegate:{default/wide:1}:records"


def test_find_batch_topic_refuses_format_record(fake_redis: Any) -> None:
    put_topic(fake_redis, "orders", format="record")

    with pytest.raises(UsageError, match="orders has format record: replays and restores are for topics of format"):
        find_batch_topic(fake_redis, "tidegate", "default", "orders")
    with pytest.raises(UsageError, match="no such topic in organisation default: bills"):
        find_batch_topic(fake_redis, "tidegate", "default", "bills")


def test_with_configs_takes_topics_that_meet_every_condition(fake_redis: Any) -> None:
    for name, configs in (("both", {"a": "1", "b": "2"}), ("one", {"a": "1"}), ("neither", {"c": "1"})):
        put_topic(fake_redis, name)
        fake_redis.hset(KEYS.topic("default", name), mapping=configs)
    topics = read_topics(fake_redis, "tidegate", "default").values()

    def found(*conditions: Condition) -> list[str]:
        return [one.name for one in with_configs(fake_redis, "tidegate", topics, conditions)]

    assert found(Condition("a", "1"), Condition("b", "2")) == ["both"]
    assert found(Condition("a", "1"), Condition("b", "2", wanted=False)) == ["one"]
    assert found(Condition("a", "2")) == []


@pytest.mark.parametrize(
    ("options", "reported_text"),
    [
        ({"subscribe": "nothing,orders"}, "no such topic in organisation default: nothing"),
        ({"assign": '{"orders":[0,7]}'}, "no such partition: orders 7"),
        ({"subscribe": "orders", "org": "other"}, "no such topic in organisation other: orders"),
    ],
)
def test_select_reports_missing_topics(fake_redis: Any, options: dict[str, str], reported_text: str) -> None:
    WrittenTopic(fake_redis, "orders", 2)

    with pytest.raises(UsageError, match=reported_text):
        starting.select(access_to(URL, **options))


def test_select_by_pattern_and_by_assignment(fake_redis: Any) -> None:
    for name in ("orders", "orders-eu", "bills"):
        WrittenTopic(fake_redis, name, 2)

    by_pattern = starting.select(access_to(URL, subscribePattern="orders.*"))
    assigned = starting.select(access_to(URL, assign='{"bills":[1]}'))

    assert list(by_pattern) == [("orders", 0), ("orders", 1), ("orders-eu", 0), ("orders-eu", 1)]
    assert list(assigned) == [("bills", 1)]


def test_select_archive_leaves_out_topics_that_are_not_copied(fake_redis: Any) -> None:
    for name, configs in (
        ("copied", {"remote.storage.enable": "true"}),
        ("again", {"remote.storage.enable": "true", "remote.log.copy.disable": "false"}),
        ("stopped", {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}),
        ("plain", {"retention.ms": "1"}),
    ):
        WrittenTopic(fake_redis, name)
        fake_redis.hset(KEYS.topic("default", name), mapping=configs)

    access = access_to(URL, **ArchiveJob()._subscription())

    assert set(starting.select(access)) == {("again", 0), ("copied", 0)}
