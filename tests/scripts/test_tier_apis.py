"""What clients get from a log in two tiers: fetch, positions, configs."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.log_broker import Connection, LogBroker, fetch_request, produce_request
from tests.support.segments import archive
from tidegate.errors import InvalidConfig
from tidegate.log.partition import PartitionLog
from tidegate.log.retention import apply_retention
from tidegate.records.batch import iter_headers
from tidegate.records.build import NewRecord, build_batch
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.topics import configs

COUNT = 20
LOCAL = 4


@pytest.fixture
async def started(
    store: Store, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LogBroker]:
    monkeypatch.setattr("tidegate.log.append.ENTRY_BYTES_MAX", 1)
    own = Settings(**{**settings.model_dump(), "archive_path": str(tmp_path)})
    opened = await LogBroker.start(own)
    yield opened
    await opened.close()


async def given_two_tiers(broker: LogBroker, root: Path) -> tuple[Connection, PartitionLog]:
    """Topic t: 20 batches of 1 record, of which the last 4 are in Redis."""
    client = broker.connect()
    size = len(batch(0))
    topic = await broker.create("t", remote_storage_enable="true", local_retention_bytes=str(LOCAL * size))
    for number in range(COUNT):
        await client.ask(produce_request([("t", [(0, batch(number))])]))
    log = broker.logs.partition(topic, 0)
    await archive(log, root, COUNT - 2, topic=topic)
    await apply_retention(log)
    log.void("what is cached would be read")
    return client, log


def batch(number: int) -> bytes:
    return build_batch([NewRecord(b"%02d" % number * 100, None, int(time.time() * 1000))])


async def fetched(client: Connection, offset: int, **fields: Any) -> Any:
    answer = await client.ask(fetch_request([("t", [(0, offset)])], **fields))
    return answer.responses[0].partitions[0]


async def listed(client: Connection, *timestamps: int, version: int = 9) -> list[Any]:
    found = []
    for timestamp in timestamps:
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
        answer = await client.ask(request(2, version, replica_id=-1, isolation_level=0, topics=topics))
        one = answer.topics[0].partitions[0]
        found.append(one.offset if one.error_code is ErrorCode.none else one.error_code)
    return found


async def test_clients_read_on_over_the_border(started: LogBroker, tmp_path: Path) -> None:
    client, _ = await given_two_tiers(started, tmp_path)
    values, offset, steps = [], 0, 0
    while offset < COUNT:
        partition = await fetched(client, offset, max_wait_ms=60_000)
        assert (partition.error_code, partition.log_start_offset) == (ErrorCode.none, 0)
        values.append(bytes(partition.records))
        offset, steps = _end(values[-1]), steps + 1
    whole = b"".join(values)

    assert steps >= 3
    assert [whole.count(b"%02d" % number * 100) for number in range(COUNT)] == [1] * COUNT


def _end(records: bytes) -> int:
    """The offset after the last record."""
    header = list(iter_headers(records))[-1]
    return header.base_offset + header.last_offset_delta + 1


async def test_positions_of_both_tiers(started: LogBroker, tmp_path: Path) -> None:
    client, log = await given_two_tiers(started, tmp_path)

    assert await listed(client, -2, -4, -5, -1) == [0, COUNT - LOCAL, COUNT - 3, COUNT]
    assert await listed(client, -4, version=8) == [COUNT - LOCAL]
    assert await listed(client, -5, version=8) == [ErrorCode.unsupported_version]
    assert await listed(client, -6, version=9) == [ErrorCode.unsupported_version]
    await log.delete_records(3)
    assert await listed(client, -2, -4) == [3, COUNT - LOCAL]


async def test_without_tiered_storage_the_tiers_are_one(started: LogBroker) -> None:
    await started.create("t")
    client = started.connect()
    await client.ask(produce_request([("t", [(0, batch(0))])]))

    assert await listed(client, -2, -4, -5, -1) == [0, 0, -1, 1]


async def test_fetch_unavailable_archive_is_answered_after_a_pause(started: LogBroker, tmp_path: Path) -> None:
    client, _ = await given_two_tiers(started, tmp_path)
    shutil.rmtree(tmp_path / "raw")
    begun = time.monotonic()
    partition = await fetched(client, 0, max_wait_ms=600_000)

    assert partition.error_code is ErrorCode.kafka_storage_error
    assert time.monotonic() - begun >= 0.09
    assert (await fetched(client, COUNT - 1)).error_code is ErrorCode.none


async def test_fetch_one_partition_archived_and_one_local(started: LogBroker, tmp_path: Path) -> None:
    client, _ = await given_two_tiers(started, tmp_path)
    await started.create("u")
    await client.ask(produce_request([("u", [(0, batch(7))])]))
    answer = await client.ask(fetch_request([("t", [(0, 0)]), ("u", [(0, 0)])], max_wait_ms=60_000))

    assert [len(topic.partitions[0].records) > 0 for topic in answer.responses] == [True, True]


# -- configs

WITH = Settings(archive_path="/archive")


@pytest.mark.parametrize(
    ("settings", "given", "before", "problem"),
    [
        (Settings(), {"remote.storage.enable": "true"}, {}, "the broker has no archive_path"),
        (WITH, {"remote.storage.enable": "true", "cleanup.policy": "compact"}, {}, "cleanup.policy must be delete"),
        (
            WITH,
            {"remote.storage.enable": "true", "retention.ms": "10", "local.retention.ms": "11"},
            {},
            "local.retention.ms: must not be more than retention.ms, 10",
        ),
        (WITH, {"remote.storage.enable": "true", "local.retention.ms": "-1"}, {}, "not be more than retention.ms"),
        (
            WITH,
            {"remote.storage.enable": "true", "remote.log.copy.disable": "true", "local.retention.bytes": "5"},
            {},
            "local.retention.bytes: must be retention.bytes",
        ),
        (WITH, {}, {"remote.storage.enable": "true"}, "remote.log.delete.on.disable=true"),
        (WITH, {"local.retention.ms": "-3"}, {}, "-3 is not between"),
    ],
)
def test_configs_that_contradict_each_other(
    settings: Settings, given: dict[str, str | None], before: dict[str, str], problem: str
) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        configs.parse(settings, given, before)


def test_configs_of_tiers() -> None:
    on = {"remote.storage.enable": "true", "retention.ms": "10"}
    off: dict[str, str | None] = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}

    assert configs.parse(WITH, off, on) == off
    config = configs.effective(WITH, on)
    assert (config.remote_storage, config.local_retention_ms, config.local_retention_bytes) == (True, 10, -1)
    config = configs.effective(WITH, {**on, "local.retention.ms": "5", "local.retention.bytes": "7"})
    assert (config.local_retention_ms, config.local_retention_bytes) == (5, 7)
    assert not configs.effective(WITH, {}).remote_storage
