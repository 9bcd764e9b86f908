"""Cluster metrics as a scraper reads them: the hard cases of lag, bounds, which broker exports and when."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.clock import SteppedClock
from tests.support.markers import build_marker
from tests.support.scraping import OPENMETRICS, Scrape
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.errors import StoreUnavailable
from tidegate.log.retention import delete_records
from tidegate.monitoring import cluster_metrics
from tidegate.monitoring.cluster_metrics import ClusterPage
from tidegate.monitoring.exporters import Brokers, ForeignNames
from tidegate.monitoring.lag_sampler import LagSampler
from tidegate.protocol.consumer_blobs import assigned_partitions
from tidegate.settings import Settings
from tidegate.telemetry.meters import BARRIER_BOUNDS_S, Meter
from tidegate.telemetry.metrics import exposition, metrics

LIVE = [BrokerInfo(7, {"PLAINTEXT": ("kafka.example", 9092)}, "zone-a", "1.0", "serving")]
LEASE_MS = 60_000
"""Of the samples; no test takes as long."""


@pytest.fixture(autouse=True)
def is_unexported() -> Iterator[None]:
    """The process's metrics are one object: what a test set up is undone."""
    yield
    metrics.cluster_page = list
    metrics.rebalances.clear()
    metrics.barriers = {phase: Meter(BARRIER_BOUNDS_S) for phase in metrics.barriers}


@pytest.fixture
async def broker(clock: SteppedClock, settings: Settings) -> AsyncIterator[WholeBroker]:
    opened = await WholeBroker(settings.model_copy(update={"group_initial_rebalance_delay_ms": 0})).start()
    yield opened
    await opened.close()


class ExportingBroker:
    """A broker that samples and exports. `scrape` samples first, then reads what a scraper would."""

    def __init__(self, broker: WholeBroker, name: str = "1", handover_ms: int = 0, **changes: Any) -> None:
        changes = {"lag_sample_interval_ms": LEASE_MS, **changes}
        settings = broker.settings.model_copy(update=changes)
        catalog = broker.context.catalog
        brokers = Brokers(lambda: LIVE, lambda: LIVE, lambda: "cluster-id")
        foreign = ForeignNames(brokers, catalog.get)
        self._broker = broker
        self.page = ClusterPage(broker.store, settings, catalog.all_topics, foreign)
        self.sampler = LagSampler(
            broker.store, settings, catalog.get, assigned_partitions, lambda: name, self.page, handover_ms=handover_ms
        )

    def reported(self, accept: str = "") -> Scrape:
        metrics.cluster_page = lambda: self.page.text if self.sampler.singleton_lease.is_past_handover else ()
        return Scrape.of(b"".join(exposition(accept)[0]).decode(), openmetrics=accept == OPENMETRICS)

    async def scrape(self) -> Scrape:
        await self._broker.noted()
        assert await self.sampler.sample()
        return self.reported()


def of_group(broker: WholeBroker, group_id: str) -> ClientOf:
    member = broker.client(f"app of {group_id}")
    member.group_id = group_id
    return member


async def test_lag_is_exported_under_three_sets_of_names(broker: WholeBroker, clock: SteppedClock) -> None:
    topic = await broker.create("orders", 3)
    await broker.client().produce("orders", 4, 3, index=0)
    await broker.client().produce("orders", 5, index=1)
    member = of_group(broker, "billing")
    await member.own("orders", 0, 1, 2)
    await member.commit("orders", 2, index=0)
    await member.commit("orders", 5, index=1)
    found = await ExportingBroker(broker).scrape()

    group = {"org": "default", "group": "billing"}
    assert found.all("tidegate_group_lag_records", **group) == {
        (("partition", "0"), ("topic", "orders")): 5,
        (("partition", "1"), ("topic", "orders")): 0,
    }
    assert found.one("tidegate_group_topic_lag_records", topic="orders", **group) == 5
    assert found.one("tidegate_group_uncommitted_partitions", **group) == 1
    assert found.one("tidegate_group_members", **group) == 1
    assert found.one("tidegate_group_members_missing", **group) == 0
    assert found.one("tidegate_group_generation", **group) == member.generation
    assert found.all("tidegate_group_state_seconds", **group) == {(("state", "Stable"),): 0}
    assert found.one("tidegate_groups", org="default", state="Stable") == 1
    assert found.one("tidegate_partition_log_end_offset", topic="orders", partition="0") == 7

    ke = {"consumergroup": "billing", "topic": "orders"}
    assert found.all("kafka_consumergroup_lag", **ke) == {
        (("partition", "0"),): 5, (("partition", "1"),): 0, (("partition", "2"),): -1,
    }  # fmt: skip
    assert found.all("kafka_consumergroup_current_offset", **ke) == {
        (("partition", "0"),): 2, (("partition", "1"),): 5, (("partition", "2"),): -1,
    }  # fmt: skip
    assert (
        found.one("kafka_consumergroup_lag_sum", **ke),
        found.one("kafka_consumergroup_current_offset_sum", **ke),
    ) == (5, 6)
    assert found.one("kafka_consumergroup_members", consumergroup="billing") == 1
    assert found.one("kafka_topic_partitions", topic="orders") == 3
    assert found.one("kafka_topic_partition_current_offset", topic="orders", partition="1") == 5
    assert found.one("kafka_topic_partition_leader", topic="orders", partition="1") == 7
    assert found.all("kafka_broker_info") == {(("address", "kafka.example:9092"), ("id", "7")): 1}

    km = {"group_id": "billing", "topic_name": "orders"}
    assert found.all("kminion_kafka_consumer_group_topic_partition_lag", **km) == {
        (("partition_id", "0"),): 5, (("partition_id", "1"),): 0,
    }  # fmt: skip
    assert found.one("kminion_kafka_consumer_group_topic_lag", **km) == 5
    assert found.one("kminion_kafka_consumer_group_topic_offset_sum", **km) == 7
    assert found.one("kminion_kafka_consumer_group_topic_assigned_partitions", **km) == 3
    assert found.one("kminion_kafka_consumer_group_topic_members", **km) == 1
    assert found.one("kminion_kafka_topic_high_water_mark_sum", topic_name="orders") == 12
    size = found.one("kminion_kafka_topic_log_dir_size_total_bytes", topic_name="orders")
    assert found.one("tidegate_org_redis_bytes", org="default") == size
    assert topic.partition_count == 3


async def test_page_faulty_keys_leave_out_no_other_group_or_topic(broker: WholeBroker) -> None:
    topics = [await broker.create(name, remote_storage_enable="true") for name in ("a", "b")]
    for name in ("a-broken", "whole"):
        await of_group(broker, name).commit("b", 0)
    store = broker.store
    shard = store.group_keys("default", "whole").shard_keys.shard
    for key in (
        store.group_keys("default", "a-broken").offsets,
        store.log_keys("default", "a", 0, topics[0].topic_hex).log,
        store.shard_keys((shard + 1) % 50).events,
    ):
        await store.command("DEL", key)
        await store.command("SET", key, "foreign")
    found = await ExportingBroker(broker).scrape()

    assert found.one("tidegate_group_topic_lag_records", group="whole", topic="b") == 0
    assert found.one("tidegate_partition_log_end_offset", topic="b", partition="0") == 0
    assert {what: found.one("tidegate_series_left_out", what=what) for what in cluster_metrics.LEFT_OUT_KINDS} == {
        "groups": 0, "group_partitions": 0, "partitions": 0,
        "unreadable_groups": 1, "unreadable_partitions": 1, "unreadable_shards": 1,
    }  # fmt: skip


async def test_page_is_exported_while_rounds_are_completed(
    broker: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of long ago looks like news: no values, and the metric that says so, are better."""
    await broker.create("t")
    await of_group(broker, "apps").commit("t", 0)
    exporting = ExportingBroker(broker)
    page, now_s = exporting.page, asyncio.get_running_loop().time()
    monkeypatch.setattr(page, "_clock", lambda: now_s)
    assert not page.is_current
    await exporting.scrape()
    assert page.is_current and page.text
    now_s += 3 * LEASE_MS / 1000 - 1
    assert page.is_current

    async def fails(_: object) -> None:
        raise StoreUnavailable("Redis is away")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(page, "_report_topics", fails)
        for _ in range(6):
            with pytest.raises(StoreUnavailable):
                await exporting.sampler.sample()
            now_s += LEASE_MS / 1000
        assert not page.is_current

    await exporting.scrape()
    assert page.is_current


async def test_markers_of_transactions_count_as_offsets(broker: WholeBroker) -> None:
    topic = await broker.create("tx")
    client = broker.client()
    await client.produce("tx", 5)
    log = broker.context.logs.partition(topic, 0)
    marker = build_marker(producer_id=9, producer_epoch=0, coordinator_epoch=0, committed=True, timestamp_ms=1)
    await broker.store.command("XADD", log.keys.log, "5-1", "w", "other:1", "b", marker)
    for group_id, offset in (("before", 5), ("behind", 6)):
        await of_group(broker, group_id).commit("tx", offset)
    found = await ExportingBroker(broker).scrape()

    assert found.one("tidegate_partition_log_end_offset", topic="tx") == 6
    for name, label in (("tidegate_group_lag_records", "group"), ("kafka_consumergroup_lag", "consumergroup"),
                        ("kminion_kafka_consumer_group_topic_partition_lag", "group_id")):  # fmt: skip
        assert found.one(name, **{label: "before"}) == 1
        assert found.one(name, **{label: "behind"}) == 0


async def test_lag_excludes_records_removed_by_retention(broker: WholeBroker) -> None:
    topic = await broker.create("t")
    await broker.client().produce("t", 10)
    await broker.client().commit("t", 2)
    await delete_records(broker.context.logs.partition(topic, 0), 6)
    found = await ExportingBroker(broker).scrape()

    assert found.one("tidegate_group_lag_records", group="orders") == 4
    assert found.one("tidegate_group_committed_offset", group="orders") == 2
    assert found.one("kafka_consumergroup_lag", consumergroup="orders") == 4
    assert found.one("kafka_topic_partition_oldest_offset", topic="t") == 6


async def test_group_without_commits_has_members_and_no_lag(broker: WholeBroker) -> None:
    await broker.create("t", 2)
    await of_group(broker, "idle").own("t", 0, 1)
    found = await ExportingBroker(broker).scrape()

    assert found.one("tidegate_group_members", group="idle") == 1
    assert found.one("tidegate_group_uncommitted_partitions", group="idle") == 2
    for name in ("tidegate_group_lag_records", "kafka_consumergroup_lag", "kafka_consumergroup_lag_sum",
                 "kminion_kafka_consumer_group_topic_lag"):  # fmt: skip
        assert found.all(name) == {}
    assert found.one("kafka_consumergroup_members", consumergroup="idle") == 1


async def test_deleted_topic_and_a_deleted_group_vanish(broker: WholeBroker) -> None:
    for name in ("gone", "stays"):
        await broker.create(name)
        await broker.client().produce(name, 3)
        for group_id in ("g-gone", "g-stays"):
            await of_group(broker, group_id).commit(name, 1)
    exporter = ExportingBroker(broker)
    before = await exporter.scrape()
    await broker.context.catalog.delete("default", "gone")
    assert await of_group(broker, "g-gone").delete() is ErrorCode.none
    after = await exporter.scrape()

    def naming(found: Scrape, word: str) -> list[Any]:
        return [key for key in found.samples if any(value == word for _, value in key[1])]

    assert naming(before, "gone") and naming(before, "g-gone")
    assert naming(after, "gone") == [] and naming(after, "g-gone") == []
    assert after.one("tidegate_group_topic_lag_records", group="g-stays", topic="stays") == 2


async def test_topic_made_again_starts_without_commits(broker: WholeBroker) -> None:
    old = await broker.create("t")
    await broker.client().produce("t", 8)
    await broker.client().commit("t", 8)
    kept = await broker.store.command("HGETALL", broker.store.group_keys("default", "orders").offsets)
    await broker.context.catalog.delete("default", "t")
    new = await broker.create("t")
    await broker.client().produce("t", 2)
    for field, value in kept.items():  # as it is until the deletion has come to every group
        await broker.store.command("HSET", broker.store.group_keys("default", "orders").offsets, field, value)
    found = await ExportingBroker(broker).scrape()

    assert new.topic_id != old.topic_id
    assert found.one("tidegate_partition_log_end_offset", topic="t") == 2
    assert found.all("tidegate_group_lag_records") == {} and found.all("kafka_consumergroup_lag") == {}


async def test_lag_in_seconds_is_the_age_of_the_next_record(broker: WholeBroker, clock: SteppedClock) -> None:
    await broker.create("t", message_timestamp_type="LogAppendTime")
    await broker.client().produce("t", 3)
    await broker.client().commit("t", 1)
    produced_ms = int(
        (await ExportingBroker(broker).sampler._reader.read_ends_of({("default", ("t", 0)): [1]}))[
            "default", ("t", 0)
        ].times[1]
    )
    clock.now_ms = produced_ms
    await clock.advance(90_000)
    exporter = ExportingBroker(broker)
    found = await exporter.scrape()
    await broker.client().commit("t", 3)
    drained = await exporter.scrape()

    assert found.one("tidegate_group_lag_seconds", group="orders") == pytest.approx(90, abs=1)
    assert found.one("tidegate_group_topic_lag_seconds", group="orders") == pytest.approx(90, abs=1)
    assert drained.one("tidegate_group_lag_seconds", group="orders") == 0


async def test_estimate_compares_with_a_minute_ago(broker: WholeBroker, clock: SteppedClock) -> None:
    await broker.create("t")
    await broker.client().produce("t", 100)
    await broker.client().commit("t", 10)
    exporter = ExportingBroker(broker)
    first = await exporter.scrape()
    await clock.advance(10_000)
    await broker.client().commit("t", 40)
    shrinking = await exporter.scrape()
    await clock.advance(10_000)
    await broker.client().produce("t", 60)
    growing = await exporter.scrape()

    assert first.all("tidegate_group_drain_seconds") == {}
    assert shrinking.one("tidegate_group_drain_seconds", group="orders") == pytest.approx(20)  # 60 at 3 a second
    assert growing.one("tidegate_group_drain_seconds", group="orders") == math.inf


async def test_barrier_shows_missing_members(broker: WholeBroker, clock: SteppedClock) -> None:
    await broker.create("t")
    first, second = of_group(broker, "g"), of_group(broker, "g")
    await first.own("t", 0)
    joining = asyncio.ensure_future(second.join("t"))
    keys = broker.store.group_keys("default", "g")
    while await broker.store.command("HGET", keys.group, "state") != b"PreparingRebalance":
        await asyncio.sleep(0.01)
    await clock.advance(20_000)  # sessions end after 30 s
    found = await ExportingBroker(broker).scrape()

    assert found.one("tidegate_group_members", group="g") == 2
    assert found.one("tidegate_group_members_missing", group="g") == 1
    assert found.one("tidegate_group_state_seconds", group="g", state="PreparingRebalance") == pytest.approx(20)
    assert found.one("kminion_kafka_consumer_group_info", group_id="g") == 0
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)


async def test_rebalances_are_counted_once_by_cause(broker: WholeBroker, clock: SteppedClock) -> None:
    exporter = ExportingBroker(broker)
    await broker.create("t")
    clock.now_ms = int((await broker.store.command("TIME"))[0]) * 1000  # events are numbered by Redis's clock
    await clock.set()
    await exporter.scrape()
    await of_group(broker, "g").own("t", 0)
    for _ in range(2):
        found = await exporter.scrape()

    assert found.one("tidegate_rebalances_total", cause="member_joined") == 1
    assert found.one("tidegate_barrier_seconds_count", phase="join") == 1
    assert found.one("tidegate_barrier_seconds_count", phase="sync") == 1


async def test_bounds_leave_out_and_count(broker: WholeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_metrics, "PARTITIONS_PER_GROUP", 1.5)
    for name in ("a", "b"):
        await broker.create(name, 2)
        for group_id in ("g1", "g2", "g3"):
            await of_group(broker, group_id).commit(name, 0)
    found = await ExportingBroker(broker, metrics_groups_max=2).scrape()

    assert {dict(key)["group"] for key in found.all("tidegate_group_members")} == {"g1", "g2"}
    assert len(found.all("tidegate_group_lag_records")) == 2  # of one group: the other's two are one too many
    assert len(found.all("tidegate_group_topic_lag_records")) == 4  # sums are exported all the same
    assert {dict(key)["topic"] for key in found.all("tidegate_topic_partitions")} == {"a"}
    assert {what: found.one("tidegate_series_left_out", what=what) for what in cluster_metrics.LEFT_OUT_KINDS} == {
        "groups": 1, "group_partitions": 2, "partitions": 2,
        "unreadable_groups": 0, "unreadable_partitions": 0, "unreadable_shards": 0,
    }  # fmt: skip
    assert len(found.all("tidegate_series_left_out")) == len(cluster_metrics.LEFT_OUT_KINDS)
    assert found.one("tidegate_groups", state="Empty") == 3


async def test_names_that_need_escaping_are_read_back(broker: WholeBroker) -> None:
    group_id = 'a "quoted" \\ group\nof two lines'
    await broker.create("t")
    await of_group(broker, group_id).commit("t", 0)
    exporter = ExportingBroker(broker)
    found = await exporter.scrape()

    assert found.one("tidegate_group_lag_records", group=group_id) == 0
    assert exporter.reported(OPENMETRICS).one("kafka_consumergroup_lag", consumergroup=group_id) == 0


async def test_lag_of_groups_of_other_orgs_has_their_label(broker: WholeBroker) -> None:
    for org, offset in (("default", 0), ("acme", 2)):
        await broker.create("t", org=org)
        client = broker.client(org=org)
        await client.produce("t", 5)
        await client.commit("t", offset)
    found = await ExportingBroker(broker).scrape()

    assert found.one("tidegate_group_lag_records", org="acme", group="orders") == 3
    assert found.one("tidegate_group_lag_records", org="default", group="orders") == 5
    assert found.all("kafka_consumergroup_lag", consumergroup="orders", topic="t", partition="0") == {
        (): 5, (("org", "acme"),): 3,
    }  # fmt: skip


async def test_series_are_exported_by_one_broker(broker: WholeBroker, clock: SteppedClock) -> None:
    await broker.create("t")
    first = ExportingBroker(broker, "1", handover_ms=500, lag_sample_interval_ms=400)
    second = ExportingBroker(broker, "2", handover_ms=500, lag_sample_interval_ms=400)
    now_s = 1_000.0
    for exporter in (first, second):
        exporter.sampler.singleton_lease._clock = lambda: now_s
    assert (await first.scrape()).names >= {"tidegate_topic_partitions"}
    assert not await second.sampler.sample()
    assert "tidegate_topic_partitions" not in second.reported().names

    await first.sampler.singleton_lease.release()
    assert "tidegate_topic_partitions" not in first.reported().names
    assert await second.sampler.sample()
    assert "tidegate_topic_partitions" not in second.reported().names  # a scraper may have the first one's still
    now_s += 0.6
    assert await second.sampler.singleton_lease.renew()
    assert "tidegate_topic_partitions" in second.reported().names
    assert not await first.sampler.sample()


async def test_export_stops_at_a_broker_that_was_suspended(broker: WholeBroker) -> None:
    await broker.create("t")
    exporter = ExportingBroker(broker)
    assert "tidegate_topic_partitions" in (await exporter.scrape()).names
    now_s = asyncio.get_running_loop().time()
    exporter.sampler.singleton_lease._clock = lambda: (
        now_s + LEASE_MS / 1000
    )  # as long as another broker may wait for it

    assert "tidegate_topic_partitions" not in exporter.reported().names


async def test_redis_memory_and_persistence_are_exported(broker: WholeBroker) -> None:
    found = await ExportingBroker(broker).scrape()

    assert found.one("tidegate_redis_memory_used_bytes") > 100_000
    assert found.one("tidegate_redis_persistence_ok") == 1
    assert found.one("tidegate_redis_may_evict") == 0
    assert found.one("tidegate_redis_memory_max_bytes") == 0


async def test_archive_end_is_that_of_the_archive_whatever_retention_removed(broker: WholeBroker) -> None:
    topic = await broker.create("old", remote_storage_enable="true")
    await broker.create("stopped", remote_storage_enable="true", remote_log_copy_disable="true")
    await broker.create("plain")
    await broker.client("p").produce("old", 5)
    await delete_records(broker.context.logs.partition(topic, 0), 3)
    exporter, place = ExportingBroker(broker), {"topic": "old", "partition": "0"}

    before = await exporter.scrape()
    keys = broker.store.log_keys("default", "old", 0, topic.topic_hex)
    await broker.store.command("HSET", keys.archive, "start", 0, "end", 2)
    after = await exporter.scrape()

    assert before.one("tidegate_partition_log_start_offset", **place) == 3
    assert before.one("tidegate_partition_archive_end_offset") == 0
    assert after.one("tidegate_partition_archive_end_offset") == 2
