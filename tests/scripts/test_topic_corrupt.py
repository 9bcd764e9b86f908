"""Corrupt batches of topics: they fail a query, or are quarantined and counted; on the real server, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.support.logs import batch_bytes
from tests.support.topic_reads import access_to, offsets_of, rows_of
from tests.support.topics import WrittenTopic
from tests.support.valkey import ValkeyServer
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.record import OPENED_BYTES_MAX
from tidegate.store.keys import ClusterKeys, LogKeys
from tidegate_pipeline.archive.place import Place
from tidegate_pipeline.archive.quarantine import Quarantine
from tidegate_pipeline.decode.opening import OpenBatch, Opener, StoredBatch
from tidegate_pipeline.errors import CorruptLimit, PipelineError, UsageError
from tidegate_pipeline.jobs.corrupt_batches import count_last
from tidegate_pipeline.jobs.progress import Figures
from tidegate_pipeline.settings import PipelineSettings
from tidegate_pipeline.sources import starting
from tidegate_pipeline.sources.batch_plan import plan_ranges
from tidegate_pipeline.sources.offsets import name_of_micro_batch
from tidegate_pipeline.sources.planning import name_of
from tidegate_pipeline.sources.stream_plan import StreamPlan
from tidegate_pipeline.sources.tasks import arrow_rows


def quarantine(folder: Path) -> dict[str, str]:
    return {"onCorrupt": "quarantine", "archive_path": str(folder)}


def spoilt(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def test_batch_with_a_wrong_end_hides_none_that_follows(client: Any, valkey: ValkeyServer, tmp_path: Path) -> None:
    topic = WrittenTopic(client, "orders")
    for number, delta in enumerate((4, 12, 4, 4, 4, 2_000_000_000, 4, -7, 4)):
        batch = bytearray(batch_bytes(5))
        batch[23:27] = delta.to_bytes(4, "big", signed=True)
        topic.append(bytes(batch), at=5 * number)
    options = {"subscribe": "orders", "mode": "raw", "includeRange": "true", **quarantine(tmp_path)}

    access = access_to(valkey.url, **options)
    reported = [
        (row["from_offset"], row["last_offset"], row["records"]) for row in rows_of(access, plan_ranges(access))
    ]

    wrong = {5, 25, 35}
    assert reported == [(base, base + 4, 0 if base in wrong else 5) for base in range(0, 45, 5)]
    rows = parquet.read_table(tmp_path / "quarantine/batches").to_pylist()
    assert {row["base_offset"] for row in rows} == wrong


@pytest.mark.parametrize("mode", ["decoded", "raw"])
def test_corrupt_batch_among_good_ones(client: Any, valkey: ValkeyServer, mode: str, tmp_path: Path) -> None:
    topic = WrittenTopic(client, "orders")
    topic.append(batch_bytes(5, timestamp=1), spoilt(batch_bytes(5, timestamp=2)), batch_bytes(5, timestamp=3))
    topic.append(spoilt(batch_bytes(5, timestamp=4)), batch_bytes(5, timestamp=5))
    options = {"subscribe": "orders", "mode": mode}
    column = "base_offset" if mode == "raw" else "offset"

    access = access_to(valkey.url, **options, **quarantine(tmp_path))
    for _ in range(2):
        read = {row[column] // 5 for row in rows_of(access, plan_ranges(access))}
        assert read == {0, 2, 4}
    rows = parquet.read_table(tmp_path / "quarantine/batches").to_pylist()
    found = sorted(
        (row["topic"], row["partition"], row["base_offset"], row["last_offset"], row["reason"]) for row in rows
    )
    assert found == [("orders", 0, base, base + 4, "the CRC of the record batch is wrong") for base in (5, 15)]
    assert rows[0]["batch"] in (spoilt(batch_bytes(5, timestamp=2)), spoilt(batch_bytes(5, timestamp=4)))

    for more, error, reported_text in (
        (
            {},
            PipelineError,
            "topic orders partition 0: the batch at offsets 5 to 9 is corrupt: the CRC",
        ),
        ({"corruptLimit": "1", **quarantine(tmp_path)}, CorruptLimit, "2 corrupt batches.*corruptLimit is 1"),
        ({"onCorrupt": "quarantine"}, UsageError, "onCorrupt=quarantine needs archive.path"),
    ):
        broken = access_to(valkey.url, **options, **more)
        with pytest.raises(error, match=reported_text):
            rows_of(broken, plan_ranges(broken))
    if mode == "raw":
        ranged = access_to(valkey.url, **options, includeRange="true", **quarantine(tmp_path))
        reported = [(r["from_offset"], r["last_offset"], r["records"]) for r in rows_of(ranged, plan_ranges(ranged))]
        assert reported == [(0, 4, 5), (5, 9, 0), (10, 14, 5), (15, 19, 0), (20, 24, 5)]


def test_limit_of_corrupt_batches_counts_all_tasks_of_a_micro_batch(
    client: Any, valkey: ValkeyServer, tmp_path: Path
) -> None:
    topic = WrittenTopic(client, "orders", 2)
    for partition in (0, 1):
        topic.append(spoilt(batch_bytes(5, timestamp=partition)), partition=partition)
    options = {"subscribe": "orders", **quarantine(tmp_path)}

    enough = access_to(valkey.url, **options, corruptLimit="2")
    plan, start = StreamPlan(enough), starting.initial_offsets(enough, "earliest")
    end = plan.next_offsets(start, None, by_records=False)
    assert rows_of(enough, plan.ranges(start, end), name_of_micro_batch(start, end)) == []
    for _ in range(2):
        plan.count_corrupt()
    progress = plan.progress()
    assert progress is not None
    assert progress["_metrics"]["pipeline_corrupt_batches_total"] == 2
    figures = Figures(last_range=(json.dumps(start.to_json()), json.dumps(end.to_json())))
    given = {"archive": {"path": str(tmp_path)}, "source": {"on_corrupt": "quarantine"}}
    settings = PipelineSettings.model_validate(given)
    assert count_last(figures, settings) == 2, "Spark commits the last micro-batch of a query only with the next one"
    for no_start in (None, "null"):
        figures.last_range = no_start, json.dumps(end.to_json())
        assert count_last(figures, settings) == 2, "the first of all has no start in the progress"
    assert count_last(figures, PipelineSettings.model_validate({**given, "source": {}})) == 0
    strict = access_to(valkey.url, **options, corruptLimit="1")
    with pytest.raises(CorruptLimit, match="2 corrupt batches, corruptLimit is 1"):
        rows_of(strict, plan_ranges(strict))


def test_range_is_not_read_on_where_it_fails(
    client: Any, valkey: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a topic that is corrupt as a whole a task would keep all bytes in memory."""
    topic = WrittenTopic(client, "orders")
    for at in range(40):
        topic.append(spoilt(batch_bytes(5, timestamp=at)))
    read: list[int] = []
    open_batch = Opener.open

    def counting(self: Opener, stored: StoredBatch) -> OpenBatch:
        read.append(1)
        return open_batch(self, stored)

    monkeypatch.setattr(Opener, "open", counting)
    monkeypatch.setattr("tidegate_pipeline.sources.reading._REPLY_BYTES", 500)
    options = {"subscribe": "orders", "groupBytes": "500"}

    failing = access_to(valkey.url, **options)
    with pytest.raises(PipelineError, match="offsets 0 to 4 is corrupt"):
        rows_of(failing, plan_ranges(failing))
    assert len(read) < 20
    limited = access_to(valkey.url, **options, corruptLimit="3", **quarantine(tmp_path))
    with pytest.raises(CorruptLimit, match="corruptLimit is 3"):
        rows_of(limited, plan_ranges(limited))
    assert len(read) < 40


def test_decompression_bomb_is_corrupt(client: Any, valkey: ValkeyServer, tmp_path: Path) -> None:
    topic = WrittenTopic(client, "orders")
    topic.append(build_batch([NewRecord(bytes(1 << 20))], codec=4), batch_bytes(1))
    access = access_to(valkey.url, subscribe="orders", **quarantine(tmp_path), maxDecodedBatch="100k", decoder="numpy")

    assert offsets_of(access, plan_ranges(access)) == [(0, 1)]
    (row,) = parquet.read_table(tmp_path / "quarantine/batches").to_pylist()
    assert "larger than" in row["reason"]


def test_90_mb_record_is_read_as_brokers_read_it(client: Any, valkey: ValkeyServer) -> None:
    topic = WrittenTopic(client, "orders")
    topic.append(build_batch([NewRecord(bytes(90 << 20))], codec=4), batch_bytes(1))
    access = access_to(valkey.url, subscribe="orders", decoder="numpy")

    ranges = plan_ranges(access)
    sizes = [
        len(value)
        for batch in arrow_rows(access, ranges[0], name_of(ranges))
        for value in batch.column("value").to_pylist()
    ]

    assert sizes == [90 << 20, 1]
    assert access.options.decoded_batch_max == OPENED_BYTES_MAX


def test_quarantines_of_orgs_and_of_recreated_topics_are_separate(
    client: Any, valkey: ValkeyServer, tmp_path: Path
) -> None:
    batch = spoilt(batch_bytes(5))
    first = WrittenTopic(client, "orders")
    first.append(batch)
    access = access_to(valkey.url, subscribe="orders", corruptLimit="1", **quarantine(tmp_path))
    rows_of(access, plan_ranges(access))
    first.delete()
    again = WrittenTopic(client, "orders")
    again.append(batch)
    rows_of(access, plan_ranges(access))
    topics = ClusterKeys("tidegate").topics
    client.hset(topics, "other/orders", client.hget(topics, "default/orders"))
    keys = LogKeys.of("tidegate", "other", "orders", 0, again.topic_id)
    client.copy(again.keys().log, keys.log)
    client.copy(again.keys().meta, keys.meta)
    other = access_to(valkey.url, subscribe="orders", org="other", corruptLimit="1", **quarantine(tmp_path))
    rows_of(other, plan_ranges(other))

    rows = parquet.read_table(tmp_path / "quarantine/batches").to_pylist()
    assert {(row["org"], row["topic_id"]) for row in rows} == {
        ("default", first.topic_id), ("default", again.topic_id), ("other", again.topic_id),
    }  # fmt: skip
    found = Quarantine.open(str(tmp_path))
    assert found.base_offsets(Place("default", "orders", again.topic_id, 0)) == {0}
    assert found.base_offsets(Place("other", "orders", first.topic_id, 0)) == set()
