"""KEDA's and Burrow's reading of lag over the Kafka protocol, beside the metrics, in the hard cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import redis
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import Cluster
from tests.support.lag_readers import Asked, Burrow, Commit, Keda, Status, status_of
from tests.support.markers import build_marker
from tests.support.scraping import Scrape

REPORTED_S = 60.0


@dataclass
class Cases:
    """Topics, and groups of the same names with `-group` behind."""

    cluster: Cluster
    admin: AdminClient
    asked: Asked

    def create(self, topic: str, records: int = 0, partitions: int = 1, retention_ms: int = -1) -> None:
        """Make a topic, and fill its first partition."""
        asked = NewTopic(topic, partitions, config={"retention.ms": str(retention_ms)})
        self.admin.create_topics([asked])[topic].result(30)
        self.produce(topic, records)

    def produce(self, topic: str, records: int, age_s: int = 0) -> None:
        """Records into the first partition, with a time so long ago."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap})
        for _ in range(records):
            producer.produce(topic, b"v", partition=0, timestamp=int((time.time() - age_s) * 1000))
        assert producer.flush(30) == 0

    def commit(self, topic: str, offset: int, group: str = "") -> None:
        """As nobody's member."""
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": group or f"{topic}-group"})
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        consumer.close()

    def reported(self, wanted: Callable[[Scrape], bool]) -> Scrape:
        """The scrape of the exporting broker, as soon as there is one."""
        ends_s, found = time.monotonic() + REPORTED_S, None
        while time.monotonic() < ends_s:
            for broker in self.cluster.brokers:
                found = Scrape.from_url(f"http://127.0.0.1:{broker.admin_port}/metrics")
                if found.one("tidegate_cluster_exported") and wanted(found):
                    return found
            time.sleep(0.1)
        raise AssertionError(f"not exported: {found and sorted(found.samples.items())[-200:]}")

    def lag(self, topic: str, lag: int) -> Scrape:
        """Wait until this is exported under all three names."""
        group = f"{topic}-group"
        scrape = self.reported(lambda found: list(found.all("kafka_consumergroup_lag", topic=topic).values()) == [lag])
        assert scrape.one("tidegate_group_lag_records", group=group, topic=topic) == lag
        assert scrape.one("kminion_kafka_consumer_group_topic_lag", group_id=group, topic_name=topic) == lag
        return scrape


@pytest.fixture(scope="module")
def cases(cluster: Cluster) -> Iterator[Cases]:
    yield Cases(cluster, AdminClient({"bootstrap.servers": cluster.bootstrap}), Asked(cluster.bootstrap))


def test_marker_of_a_transaction_is_lag_until_it_is_committed_past(cases: Cases) -> None:
    cases.create("lag-tx", 5)
    cases.commit("lag-tx", 5)
    server = redis.Redis.from_url(cases.cluster.redis_url)
    [log] = server.scan_iter("tidegate:{default/lag-tx:0}:*:log")
    marker = build_marker(producer_id=9, producer_epoch=0, coordinator_epoch=0, committed=True, timestamp_ms=1)
    server.xadd(log, {"w": "other:1", "b": marker}, id="5-1")
    server.publish(log.decode().removesuffix(":log") + ":wake", "6:other:1")
    keda = Keda(cases.asked, "lag-tx-group", "lag-tx")

    cases.lag("lag-tx", 1)
    assert wait_for(keda.lag, (1, 1)) and keda.scale() == 1
    cases.commit("lag-tx", 6)  # as a consumer does that has read past the marker
    cases.lag("lag-tx", 0)
    assert keda.lag() == (0, 0) and keda.scale() == 0
    assert Burrow(cases.asked, "lag-tx-group", "lag-tx").poll(0) == {0: "OK"}
    server.close()


def test_lag_removed_by_retention_counts_for_kafkas_readers_alone(cases: Cases) -> None:
    cases.create("lag-old", retention_ms=600_000)
    cases.commit("lag-old", 2)
    cases.produce("lag-old", 25, age_s=3_600)
    cases.produce("lag-old", 5)
    scrape = cases.lag("lag-old", 5)

    assert scrape.one("kafka_topic_partition_oldest_offset", topic="lag-old") == 25
    assert Keda(cases.asked, "lag-old-group", "lag-old").lag()[1] == 28  # KEDA asks for no log start, of Kafka neither
    assert Keda(cases.asked, "lag-old-group", "lag-old").scale() == 1  # one partition, one consumer
    assert Keda(cases.asked, "lag-old-group", "lag-old", allow_idle_consumers=True).scale() == 3
    cases.commit("lag-old", 25)  # a consumer got OFFSET_OUT_OF_RANGE, and began where the log does
    cases.lag("lag-old", 5)
    assert Keda(cases.asked, "lag-old-group", "lag-old").lag() == (5, 5)


def test_group_without_commits(cases: Cases) -> None:
    cases.create("lag-none", 8, partitions=2)
    member = Consumer({"bootstrap.servers": cases.cluster.bootstrap, "group.id": "lag-none-group",
                       "enable.auto.commit": False})  # fmt: skip
    member.subscribe(["lag-none"])
    wait_for(lambda: bool(member.poll(0.1) or member.assignment()), True)
    own = {"group": "lag-none-group"}
    scrape = cases.reported(lambda found: 2 in found.all("tidegate_group_uncommitted_partitions", **own).values())

    assert scrape.one("kafka_consumergroup_members", consumergroup="lag-none-group") == 1
    assert scrape.all("kafka_consumergroup_lag", consumergroup="lag-none-group") == {}
    assert scrape.all("tidegate_group_lag_records", group="lag-none-group") == {}
    latest = Keda(cases.asked, "lag-none-group", "lag-none")
    earliest = Keda(cases.asked, "lag-none-group", "lag-none", offset_reset_policy="earliest")
    zero = Keda(cases.asked, "lag-none-group", "lag-none", scale_to_zero_on_invalid_offset=True)
    assert (latest.lag(), earliest.lag(), zero.scale()) == ((2, 2), (8, 8), 0)
    assert Burrow(cases.asked, "lag-none-group", "lag-none").poll(0) == {}
    member.close()


def test_deleted_topic_and_one_made_again(cases: Cases) -> None:
    cases.create("lag-gone", 5)
    cases.commit("lag-gone", 1)
    cases.lag("lag-gone", 4)
    burrow = Burrow(cases.asked, "lag-gone-group", "lag-gone")
    assert burrow.poll(0) == {0: "OK"}
    cases.admin.delete_topics(["lag-gone"])["lag-gone"].result(30)

    cases.reported(lambda found: not found.all("kafka_consumergroup_lag", topic="lag-gone")
               and not found.all("tidegate_topic_partitions", topic="lag-gone"))  # fmt: skip
    keda = Keda(cases.asked, "lag-gone-group", "lag-gone")
    assert keda.lag() == (0, 0) and keda.scale() == 0 and burrow.poll(1) == {}
    assert cases.asked.partitions("lag-gone") == []  # nobody's asking made it again

    cases.create("lag-gone", 3)
    scrape = cases.reported(lambda found: bool(found.all("tidegate_partition_log_end_offset", topic="lag-gone")))
    assert scrape.all("kafka_consumergroup_lag", topic="lag-gone") == {}
    assert keda.lag() == (1, 1) and burrow.poll(2) == {}
    cases.commit("lag-gone", 2)
    cases.lag("lag-gone", 1)
    assert keda.lag() == (1, 1) and burrow.poll(3) == {0: "OK"}


def test_deleted_group(cases: Cases) -> None:
    cases.create("lag-left", 5)
    cases.commit("lag-left", 1)
    cases.lag("lag-left", 4)
    cases.admin.delete_consumer_groups(["lag-left-group"])["lag-left-group"].result(30)

    cases.reported(lambda found: not found.all("kafka_consumergroup_lag", consumergroup="lag-left-group")
               and not found.all("kminion_kafka_consumer_group_info", group_id="lag-left-group"))  # fmt: skip
    assert Keda(cases.asked, "lag-left-group", "lag-left", offset_reset_policy="earliest").lag() == (5, 5)
    assert Burrow(cases.asked, "lag-left-group", "lag-left").poll(0) == {}


def test_persistent_lag_does_not_scale_and_a_group_that_stopped_is_found(cases: Cases) -> None:
    cases.create("lag-stuck", 60)
    cases.commit("lag-stuck", 10)
    keda = Keda(cases.asked, "lag-stuck-group", "lag-stuck", exclude_persistent_lag=True, allow_idle_consumers=True)
    burrow = Burrow(cases.asked, "lag-stuck-group", "lag-stuck")

    assert (keda.lag(), keda.lag()) == ((50, 50), (0, 50))  # the second time the same record is where it was
    assert burrow.poll(0) == {0: "OK"}
    cases.commit("lag-stuck", 20)
    assert keda.lag() == (40, 40)
    assert burrow.poll(10) == {0: "OK"}
    assert burrow.poll(100) == {0: "STOP"}  # nobody is there, and nothing was committed for longer than before
    cases.commit("lag-stuck", 60)
    assert burrow.poll(101) == {0: "OK"}


@pytest.mark.parametrize(
    ("offsets", "lags", "ends", "now_s", "status"),
    [
        ((1, 2, 3), (0, 5, 9), (12,), 3, "OK"),  # it had none within the window
        ((1, 2, 3), (9, 8, 7), (12,), 3, "OK"),  # it shrinks
        ((1, 2, 3), (5, 6, 7), (12,), 3, "WARN"),
        ((4, 4, 4), (5, 6, 7), (12,), 3, "STALL"),
        ((1, 2, 3), (5, 6, 7), (12,), 9, "STOP"),
        ((1, 2, 3), (5, 6, 7), (3, 12), 9, "WARN"),  # a moment ago it had read all
        ((9, 2, 3), (1, 8, 9), (12,), 3, "REWIND"),
        ((9, 2, 9), (1, 8, 2), (12,), 3, "OK"),  # it went back and is there again
    ],
)
def test_burrows_rules(
    offsets: tuple[int, ...], lags: tuple[int, ...], ends: tuple[int, ...], now_s: float, status: Status
) -> None:
    commits = [Commit(at_s, *observed) for at_s, observed in enumerate(zip(offsets, lags, strict=True))]

    assert status_of(commits, ends, lags[-1], now_s) == status
    assert status_of(commits, ends, 0, now_s) == "OK"


def wait_for(asked: Callable[[], object], wanted: object) -> bool:
    """Whether it becomes so in time."""
    ends_s = time.monotonic() + REPORTED_S
    while time.monotonic() < ends_s:
        if asked() == wanted:
            return True
        time.sleep(0.1)
    return False
