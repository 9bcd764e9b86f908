"""promtool on the rules; then a live cluster with traffic, scraped by a real Prometheus: every query brings data."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import TopicPartition
from prometheus_client.metrics_core import Metric

from bench.cluster import Cluster, free_port
from observability import dashboard
from tests.observability.prometheus import Prometheus, running, tools
from tests.observability.queries import OWN, RULES, all_queries, panels, recorded
from tests.support.scraping import Scrape
from tidegate.telemetry.declared import BROKER
from tidegate.telemetry.declared_cluster import CLUSTER
from tidegate.telemetry.declared_foreign import KAFKA_EXPORTER, KMINION
from tidegate_pipeline.jobs.progress import Figures
from tidegate_pipeline.query_metrics import DECLARED as PIPELINE
from tidegate_pipeline.query_metrics import QueryMetrics, serving

SCRAPED_S = 30.0
"""Prometheus' rates and rules need some scrapes."""
READY_S = 90.0

EVENTS = {
    "tidegate_cold_read_seconds", "tidegate_heartbeat_delayed_seconds", "tidegate_throttle_seconds",
    "tidegate_share_group_dead_lettered_records", "tidegate_share_group_dropped_records",
    "tidegate_share_group_failed_records", "tidegate_share_group_records_in_flight",
    "tidegate_share_group_redelivered_records", "tidegate_share_group_records_returned",
}  # fmt: skip
"""What begins with the first event of its kind, which this traffic does not bring about."""

DASHBOARDS_OF_OTHERS = (
    # Grafana 7589
    'sum(rate(kafka_topic_partition_current_offset{instance=~".*",topic=~"orders"}[1m])) by (topic)',
    'sum(kafka_consumergroup_lag{instance=~".*",topic=~"orders"}) by (consumergroup, topic)',
    'sum(delta(kafka_topic_partition_current_offset{instance=~".*",topic=~"orders"}[5m])/5) by (topic)',
    'sum(delta(kafka_consumergroup_current_offset{instance=~".*",topic=~"orders"}[5m])/5) by (consumergroup, topic)',
    'sum by(topic) (kafka_topic_partitions{instance=~".*",topic=~"orders"})',
    # Grafana 14012 (cluster), 14013 (topics), 14014 (groups)
    "kminion_kafka_cluster_info",
    "sum(kminion_kafka_broker_log_dir_size_total_bytes) by (broker_id)",
    "count(kminion_kafka_topic_info)",
    "sum(kminion_kafka_topic_log_dir_size_total_bytes) by (topic_name)",
    "sum(rate(kminion_kafka_topic_high_water_mark_sum[1m])) by (topic_name)",
    "kminion_kafka_topic_high_water_mark_sum - kminion_kafka_topic_low_water_mark_sum",
    'sum(kminion_kafka_consumer_group_topic_lag{group_id="billing"}) by (topic_name)',
    'sum(rate(kminion_kafka_consumer_group_topic_offset_sum{group_id="billing"}[1m])) by (topic_name)',
    'kminion_kafka_consumer_group_info{state="Stable"}',
    "kminion_kafka_consumer_group_topic_partition_lag",
    "kminion_kafka_consumer_group_members",
    # a trigger of KEDA's Prometheus scaler
    'sum(kafka_consumergroup_lag{consumergroup="billing",topic="orders"})',
)


@dataclass
class Live:
    """A cluster with traffic, and the Prometheus that scrapes it."""

    cluster: Cluster
    prometheus: Prometheus
    enough: threading.Event
    traffic: Future[None]
    pipeline_url: str

    def end_traffic(self) -> None:
        """Have the clients leave. Raises what one of them failed with."""
        self.enough.set()
        self.traffic.result()


class QueriesAtWork(QueryMetrics):
    """A query with a micro-batch at every scrape."""

    def collect(self) -> Iterator[Metric]:
        done = self.status("decode-orders-delta").micro_batches + 1
        behind = dict.fromkeys(("maxOffsetsBehindLatest", "avgOffsetsBehindLatest", "minOffsetsBehindLatest"), 3.0)
        faults = dict.fromkeys(("pipeline_lost_offsets_total", "pipeline_corrupt_batches_total"), 1.0)
        self.take("decode-orders-delta", Figures(done * 100, done, done * 250, metrics=behind | faults))
        return super().collect()


async def traffic(bootstrap: str, enough: threading.Event) -> None:
    """A producer, and a group that reads half as much; a second member comes."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    tiered = {"remote.storage.enable": "true", "retention.ms": "600000", "local.retention.ms": "60000"}
    await admin.create_topics([NewTopic("orders", 3, 1), NewTopic("old", 1, 1, topic_configs=tiered)])
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    consumer = AIOKafkaConsumer("orders", group_id="billing", bootstrap_servers=bootstrap, enable_auto_commit=False,
                                auto_offset_reset="earliest")  # fmt: skip
    await producer.start()
    await consumer.start()
    second, second_s = None, time.monotonic() + SCRAPED_S / 2
    while not enough.is_set():
        for number in range(20):
            await producer.send("orders", b"v" * 100, partition=number % 3)
        await producer.send_and_wait("old", b"v")
        for partition, records in (await consumer.getmany(timeout_ms=200, max_records=10)).items():
            await consumer.commit({partition: records[-1].offset + 1})
        if second is None and time.monotonic() > second_s:
            second = AIOKafkaConsumer("orders", group_id="billing", bootstrap_servers=bootstrap)
            await second.start()
    for client in (second, consumer, producer):
        assert client is not None
        await client.stop()
    await admin.close()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Two brokers, scraped for half a minute of traffic, which continues."""
    tools()
    archive = tmp_path_factory.mktemp("archive")
    settings = {
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100",
        "TIDEGATE_LAG_SAMPLE_INTERVAL_MS": "1000",
        "TIDEGATE_ARCHIVE_PATH": str(archive),
    }
    constants = {"tidegate.monitoring.lag_sampler.HANDOVER_MS": 1_000}
    with Cluster(brokers=2, settings=settings, constants=constants) as cluster:
        targets = [f"127.0.0.1:{broker.admin_port}" for broker in cluster.brokers]
        place = tmp_path_factory.mktemp("prometheus")
        pipeline = f"127.0.0.1:{free_port()}"
        with (
            serving(QueriesAtWork(), pipeline),
            running(place, RULES, [*targets, pipeline]) as prometheus,
            ThreadPoolExecutor(1) as beside,
        ):
            enough = threading.Event()
            clients = beside.submit(lambda: asyncio.run(traffic(cluster.bootstrap, enough)))
            wait([clients], SCRAPED_S)
            live = Live(cluster, prometheus, enough, clients, f"http://{pipeline}/metrics")
            try:
                yield live
            finally:
                live.end_traffic()


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run([tools() / "promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_rules_and_configuration() -> None:
    assert "rules found" in promtool("check", "rules", *sorted(RULES.glob("*.yml")))
    assert "SUCCESS" in promtool("check", "config", RULES.parent / "prometheus.yml")


@pytest.mark.parametrize("name", ["alerts_test.yml", "alerts_after_days_test.yml"])
def test_alerts_fire_when_they_should(name: str) -> None:
    assert "SUCCESS" in promtool("test", "rules", RULES.parent / "tests" / name)


def test_promtool_has_nothing_against_the_metrics(live: Live) -> None:
    url = f"http://127.0.0.1:{live.cluster.brokers[0].admin_port}/metrics"
    text = subprocess.run(["curl", "-sf", url], capture_output=True, check=True).stdout
    done = subprocess.run([tools() / "promtool", "check", "metrics"], input=text, capture_output=True, check=False)

    reported = [line for line in done.stderr.decode().splitlines() if " tidegate_" in f" {line}"]
    assert reported == [], "\n".join(reported)


def test_declared_metrics_are_all_exported(live: Live) -> None:
    scrapes = [Scrape.from_url(f"http://127.0.0.1:{one.admin_port}/metrics") for one in live.cluster.brokers]
    names = scrapes[0].names | scrapes[1].names | Scrape.from_url(live.pipeline_url).names
    declared = {one.exposed + ("_count" if one.kind == "histogram" else "") for one in (*BROKER, *CLUSTER, *PIPELINE)
                if one.name not in EVENTS}  # fmt: skip
    foreign = {one.name for one in (*KAFKA_EXPORTER, *KMINION)} - {"kminion_kafka_consumer_group_empty_members"}

    assert (declared | foreign) - names == set()
    assert {name for query in all_queries() for name in OWN.findall(query)} - recorded() <= names
    assert sum(scrape.one("tidegate_cluster_exported") for scrape in scrapes) == 1
    cluster = {one.name for one in CLUSTER}
    assert not (scrapes[0].names & cluster and scrapes[1].names & cluster)


def test_every_panel_brings_data(live: Live) -> None:
    def empty() -> list[tuple[str, str]]:
        found = []
        for title, query in panels():
            for name in dashboard.VARIABLES:
                query = query.replace(f"${name}", ".*")
            if not live.prometheus.query(query):
                found.append((title, query))
        return found

    assert last(empty) == []


def last(lacking: Callable[[], list[Any]]) -> list[Any]:
    """What is lacking once nothing is, or in the end: the traffic continues, and a busy machine scrapes late."""
    ends_s = time.monotonic() + READY_S
    while (found := lacking()) and time.monotonic() < ends_s:
        time.sleep(0.5)
    return found


def test_every_rule_is_evaluated_and_variables_have_values(live: Live) -> None:
    assert last(lambda: [name for name in sorted(recorded()) if not live.prometheus.query(name)]) == []
    assert live.prometheus.label_values("tidegate_groups", "org") == ["default"]
    assert live.prometheus.label_values("tidegate_group_members", "group") == ["billing"]
    assert live.prometheus.label_values("tidegate_topic_partitions", "topic") == ["old", "orders"]


@pytest.mark.parametrize("query", DASHBOARDS_OF_OTHERS)
def test_dashboards_of_other_exporters_bring_data(live: Live, query: str) -> None:
    assert last(lambda: [] if live.prometheus.query(query) else [query]) == []


async def test_hand_over_shows_no_series_twice(live: Live) -> None:
    """The exporting broker stops; the other one begins when Prometheus has let the old series go."""
    exporter = next(
        broker
        for broker in live.cluster.brokers
        if Scrape.from_url(f"http://127.0.0.1:{broker.admin_port}/metrics").one("tidegate_cluster_exported")
    )
    await asyncio.to_thread(live.end_traffic)
    await asyncio.to_thread(exporter.drain)
    most, exported_again = 0.0, False
    ends_s = time.monotonic() + READY_S
    while time.monotonic() < ends_s and not exported_again:
        found = live.prometheus.query('count by (group, topic) (tidegate_group_topic_lag_records{group="billing"})')
        most = max([most, *(float(one["value"][1]) for one in found)])
        by = live.prometheus.query("tidegate_group_topic_lag_records")
        exported_again = bool(by) and all(str(exporter.admin_port) not in one["metric"]["instance"] for one in by)
        await asyncio.sleep(0.3)

    assert exported_again and most == 1


def test_committed_offsets_agree_with_clients(live: Live) -> None:
    """KEDA reads the query above; a client asks the broker: both get one answer."""

    async def asked() -> int:
        consumer = AIOKafkaConsumer(group_id="billing", bootstrap_servers=live.cluster.bootstrap)
        await consumer.start()
        try:
            places = [TopicPartition("orders", index) for index in range(3)]
            ends = await consumer.end_offsets(places)
            committed = [await consumer.committed(place) or 0 for place in places]
            return sum(ends.values()) - sum(committed)
        finally:
            await consumer.stop()

    live.end_traffic()
    ends_s = time.monotonic() + READY_S
    wanted = asyncio.run(asked())
    found: list[dict[str, list[str]]] = []
    while time.monotonic() < ends_s:
        found = live.prometheus.query('sum(kafka_consumergroup_lag{consumergroup="billing",topic="orders"})')
        if found and int(found[0]["value"][1]) == wanted:
            return
        time.sleep(0.5)
    raise AssertionError(f"wanted: {wanted}, found: {found}")
