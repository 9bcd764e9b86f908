"""Stream entries that no broker appended: planning refuses them by name; `verify` compares log and archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.test_log_stray_entries import STRAY
from tests.support.archive import TOPIC_ID, Archive, log_keys
from tests.support.logs import batch_bytes
from tests.support.segments import batches_from
from tests.support.topic_reads import access_to
from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate_pipeline.archive.beside_log import LogBatches
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.verification import Verified, verify
from tidegate_pipeline.errors import StrayEntry
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.walking import LogWalker

PLACE = Place("default", "orders", TOPIC_ID, 0)
_END = 7
_FAR = 1_800_000_000_000


@pytest.fixture
def archive(valkey: ValkeyServer, tmp_path: Path) -> Iterator[Archive]:
    """Of a topic whose log has offsets 0 to 6, in three batches of two entries."""
    opened = Archive(valkey.url, tmp_path)
    fields: list[Any] = []
    for batch in batches_from(0, [2, 1], timestamp=1_000):
        fields += ["b", batch]
    opened.client.execute_command("XADD", log_keys().log, "0-1", "w", "x:1", *fields)
    opened.client.execute_command(
        "XADD", log_keys().log, "3-1", "w", "x:2", "b", *batches_from(3, [4], timestamp=1_000)
    )
    yield opened
    opened.client.close()


def _verify(archive: Archive) -> Verified:
    return verify(archive.root, archive.index(), PLACE, LogBatches(archive.client, log_keys(), 1.0))


@pytest.mark.parametrize("kind", STRAY)
def test_planning_refuses_a_stray_entry_by_its_id(client: Any, valkey: ValkeyServer, kind: str) -> None:
    topic = WrittenTopic(client, "orders")
    topic.fill([3, 4])
    entry_id, fields = STRAY[kind]
    added = client.execute_command("XADD", topic.keys().log, entry_id, *fields).decode()

    for start, stop in ((0, -1), (_END, -1), (1 << 53, -1), (0, 3)):
        with pytest.raises(StrayEntry, match=added):
            LogWalker(client, topic.keys(), 1.0).walk(start, stop)
    with pytest.raises(StrayEntry, match=added):
        plan_ranges(access_to(valkey.url, subscribe="orders"))


def test_planning_refuses_a_torn_entry_on_the_way(client: Any) -> None:
    topic = WrittenTopic(client, "orders")
    topic.fill([3])
    client.execute_command("XADD", topic.keys().log, "3-1", "w", "x:1", "b", batch_bytes(2)[:-1])
    topic.append(batch_bytes(2), at=5)

    walker = LogWalker(client, topic.keys(), 1.0)
    assert walker.walk(0, 3).position == 3
    with pytest.raises(StrayEntry, match="3-1"):
        walker.walk(0)


def test_planning_after_the_entry_was_removed_ends_at_the_last_good_one(client: Any) -> None:
    topic = WrittenTopic(client, "orders")
    topic.fill([3, 4])
    client.xdel(topic.keys().log, client.execute_command("XADD", topic.keys().log, "*", "key", "a"))

    assert LogWalker(client, topic.keys(), 1.0).offsets().end == _END


def test_verify_counts_the_same_batches_in_archive_and_log(archive: Archive) -> None:
    archive.publish(batches_from(0, [2, 1, 4], timestamp=1_000))
    reported = _verify(archive)

    assert (reported.problems, reported.batches, reported.log_batches) == ([], 3, 3)


def test_verify_names_an_archive_that_claims_more_than_the_log_had(archive: Archive) -> None:
    archive.publish(batches_from(0, [2, 1, 4], timestamp=1_000))
    archive.publish([(_END, _FAR)])  # what swallowing a stray entry published

    assert _verify(archive).problems == [f"orders-0: the archive claims offsets up to {_FAR}, the log ends at {_END}"]


def test_verify_names_a_stray_entry_of_the_log(archive: Archive) -> None:
    archive.publish(batches_from(0, [2, 1, 4], timestamp=1_000))
    added = archive.client.execute_command("XADD", log_keys().log, "*", "key", "a").decode()

    (problem,) = _verify(archive).problems
    assert added in problem


def test_verify_names_batches_that_only_the_log_has(archive: Archive) -> None:
    archive.publish(batches_from(0, [2], timestamp=1_000))
    archive.publish([(2, 6)])

    (problem,) = _verify(archive).problems
    assert problem == "orders-0: the log has a batch of offsets 2 to 2, the archive has not"


def test_verify_names_the_first_batch_that_differs(archive: Archive) -> None:
    archive.publish(batches_from(0, [2, 1], value=b"others") + batches_from(3, [4], timestamp=1_000))

    (problem,) = _verify(archive).problems
    assert problem.startswith("orders-0: the log has a batch of offsets 0 to 1, CRC ")


def test_verify_compares_from_what_redis_shows(archive: Archive) -> None:
    archive.publish(batches_from(0, [2, 1], value=b"others") + batches_from(3, [4], timestamp=1_000))
    archive.client.hset(log_keys().meta, "local_start", 3)

    assert (_verify(archive).problems, _verify(archive).log_batches) == ([], 1)
