"""Reading logs straight from Redis: the catalogue's partitions, whole entries, pages."""

from __future__ import annotations

from typing import Any

from tests.support.logs import batch_bytes
from tests.support.topics import WrittenTopic
from tidegate.cli.client.stray_entries import partitions, read_log, with_plain_entries
from tidegate.log.entries import StrayEntry


def test_partitions_are_listed_by_name_of_topics_that_are_ready(fake_redis: Any) -> None:
    orders = WrittenTopic(fake_redis, "orders", 2)
    WrittenTopic(fake_redis, "bills")
    WrittenTopic(fake_redis, "deleted").delete()

    found = list(partitions(fake_redis, "tidegate"))

    assert [(one.topic, one.index) for one in found] == [("bills", 0), ("orders", 0), ("orders", 1)]
    assert found[2].keys == orders.keys(1)


def test_read_log_passes_every_entry_once_over_several_pages(fake_redis: Any) -> None:
    topic = WrittenTopic(fake_redis, "orders")
    topic.fill([2] * 130)

    entries = [parsed for _, _, parsed in read_log(with_plain_entries(fake_redis), topic.keys().log)]

    assert [entry.end for entry in entries if not isinstance(entry, StrayEntry)] == list(range(2, 262, 2))


def test_read_log_from_an_id_reports_stray_entries_in_their_place(fake_redis: Any) -> None:
    topic = WrittenTopic(fake_redis, "orders")
    topic.append(batch_bytes(3))
    fake_redis.execute_command("XADD", topic.keys().log, "3-1", "key", "by hand")
    topic.append(batch_bytes(2), at=5)

    entries = list(read_log(with_plain_entries(fake_redis), topic.keys().log, "0-1"))

    assert [(entry_id, isinstance(parsed, StrayEntry)) for entry_id, _, parsed in entries] == [
        (b"3-1", True),
        (b"5-1", False),
    ]
