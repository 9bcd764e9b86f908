"""Entries of `{cluster}:usage`, on a real server: what was produced, fetched and committed, and what topics hold."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.log_broker import LogBroker, fetch_request, produce_request
from tidegate.errors import StoreUnavailable
from tidegate.monitoring.usage_reports import SIZES_MS, UsageReports
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.segments import Segment
from tidegate.settings import Settings
from tidegate.store.store import Store

BATCH = build_batch([NewRecord(b"1"), NewRecord(b"2")])


@pytest.fixture
async def broker(store: Store, settings: Settings) -> AsyncIterator[LogBroker]:
    started = await LogBroker.start(settings)
    await started.create("t", 2)
    yield started
    await started.close()


def reports(broker: LogBroker) -> UsageReports:
    topics = broker.catalog.all_topics
    return UsageReports(broker.store, broker.store.settings, broker.logs.usage, topics, lambda: "7")


async def entries(store: Store) -> list[dict[str, Any]]:
    found = []
    for _, values in await store.command("XRANGE", store.cluster_keys.usage, "-", "+"):
        texts = [value.decode() for value in values]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        found.append(fields | {name: json.loads(fields[name]) for name in ("topics", "groups", "held")})
    return found


async def test_usage_entry_counts_bytes_since_the_last(broker: LogBroker) -> None:
    client, reported = broker.connect(), reports(broker)
    await client.ask(produce_request([("t", [(0, BATCH), (1, BATCH)])]))
    await client.ask(fetch_request([("t", [(0, 0), (1, 0)])]))
    await reported.report()
    await client.ask(produce_request([("t", [(0, b"no batch")])]))
    await reported.report()

    first, second = await entries(broker.store)
    assert list(first) == ["time", "broker", "span_ms", "topics", "groups", "held"]
    assert first["broker"] == "7" and int(first["span_ms"]) >= 0
    assert first["topics"] == {"default/t": [4, 2 * len(BATCH), 1, 2 * len(BATCH), 1, 2 * len(BATCH)]}
    assert second["topics"] == {"default/t": [0, 0, 1, 8, 0, 0]}, (
        "a refused batch came over the wire, and is not stored"
    )


async def test_usage_entry_counts_stored_bytes_of_both_tiers(broker: LogBroker) -> None:
    store, reported = broker.store, reports(broker)
    topic = broker.catalog.get("default", "t")
    assert topic is not None
    keys = store.log_keys("default", "t", 0, topic.topic_hex)
    await store.command("HSET", keys.meta, "bytes", 700)
    segment = Segment(0, 0, 9, 10, 1_000, 0, "file")
    await store.command("ZADD", keys.segments, 9, segment.to_json())
    await store.command("HSET", keys.archive, "start", 0, "end", 10)
    await reported.report()
    await store.command("ZADD", keys.segments, 19, Segment(10, 10, 19, 10, 500, 0, "other").to_json())
    await reported.report()
    await store.command("HSET", keys.archive, "end", 20)
    for _ in range(SIZES_MS // store.settings.usage_report_interval_ms):
        await reported.report()

    found = [one["held"]["default/t"] for one in await entries(store)]
    assert (found[:2], found[-1]) == ([[700, 1_000], [700, 1_000]], [700, 1_500])


async def test_usage_entry_counts_stored_bytes_of_format_record(broker: LogBroker) -> None:
    topic = await broker.catalog.create("default", "r", 1, {"tidegate.format": "record"})
    log = broker.store.log_keys("default", "r", 0, topic.topic_hex, topic.format).log
    await broker.store.command("XADD", log, "*", "value", "v" * 20_000)
    await reports(broker).report()

    [found] = await entries(broker.store)
    assert found["held"]["default/r"][0] > 20_000


async def test_usage_sizes_that_stand_still_are_not_read_each_minute(broker: LogBroker) -> None:
    store, reported = broker.store, reports(broker)
    await broker.create("idle", 50)
    sizes = Counter[str]()
    read = store.read

    async def counted(*command: Any) -> Any:
        sizes[command[1].rpartition(":")[2]] += command[0] == "HGET"
        return await read(*command)

    store.read = counted  # type: ignore[method-assign]
    for _ in range(2):
        await reported.report()
    assert sizes["meta"] == 2 * 52
    for _ in range(SIZES_MS // store.settings.usage_report_interval_ms):
        await reported.report()
    assert sizes["meta"] <= 3 * 52

    topic = broker.catalog.get("default", "t")
    assert topic is not None
    before = sizes["meta"]
    broker.logs.usage.stored(topic, 1, 100)
    await reported.report()
    assert sizes["meta"] == before + 2, "this broker appended to it"


async def test_usage_stream_is_capped_and_an_idle_broker_writes_to_it(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.monitoring.usage_reports.SAMPLES_MAX", 100)
    reported = reports(broker)
    for _ in range(300):
        await reported.report()

    kept = await entries(broker.store)
    assert 100 <= len(kept) <= 250
    assert kept[-1]["topics"] == kept[-1]["groups"] == {}


async def test_usage_unread_samples_are_dropped(broker: LogBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.monitoring.usage_reports._FORGOTTEN_MS", 1)
    broker.store.settings = broker.store.settings.model_copy(update={"lag_sample_interval_ms": 0})
    reported = reports(broker)
    await reported.start()
    broker.logs.usage.committed("default/g", "", [])

    async with asyncio.timeout(40):
        while broker.logs.usage.groups:
            await asyncio.sleep(0.001)
    await reported.close()
    assert await entries(broker.store) == []


async def test_full_server_takes_no_samples(broker: LogBroker) -> None:
    reported = reports(broker)
    await reported.report()
    await broker.store.command("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="OOM"):
            await reported.report()
    finally:
        await broker.store.command("CONFIG", "SET", "maxmemory", 0)
    assert len(await entries(broker.store)) == 1


async def test_usage_close_of_full_redis_leaves_no_failure_behind(
    broker: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that cannot start while Redis is full closes what it has begun."""
    reported = reports(broker)
    await reported.start()
    for node in broker.store.nodes:
        await node.control.call("CONFIG", "SET", "maxmemory", "1")
    try:
        await reported.close()
    finally:
        for node in broker.store.nodes:
            await node.control.call("CONFIG", "SET", "maxmemory", "0")
    gc.collect()

    assert "never retrieved" not in caplog.text


async def test_partitions_of_a_wide_topic_are_measured_some_at_a_time(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, 10,000 partitions stopped the event loop for a second."""
    await broker.create("wide", 2_000)
    read, in_flight, most = broker.store.read, 0, 0

    async def counted(*args: Any) -> Any:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        try:
            return await read(*args)
        finally:
            in_flight -= 1

    monkeypatch.setattr(broker.store, "read", counted)
    await reports(broker).report()

    assert 100 <= most <= 400
    [entry] = await entries(broker.store)
    assert entry["held"] == {"default/t": [0, 0], "default/wide": [0, 0]}


async def test_usage_entry_counts_no_bytes_of_a_faulty_partition(broker: LogBroker) -> None:
    await broker.create("a", 1)
    held = []
    for name in ("a", "t"):
        topic = broker.catalog.get("default", name)
        assert topic is not None
        held.append(broker.store.log_keys("default", name, 0, topic.topic_hex))
    await broker.store.command("DEL", held[0].meta)
    await broker.store.command("SET", held[0].meta, "foreign")
    await broker.store.command("HSET", held[1].meta, "bytes", 700)
    await reports(broker).report()

    [found] = await entries(broker.store)
    assert found["held"] == {"default/a": [0, 0], "default/t": [700, 0]}
