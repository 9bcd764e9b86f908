"""Every key of docs/redis-layout.md deleted, of another type, or emptied, under a producer and a group consumer.

The rows come from the page's kinds of keys, so a new key gets its rows, or a reason not to have one. For each: what was
acknowledged after the loss can be read, and either the traffic continues by itself, or the log names the key and the
command that repairs it, and after that command the traffic continues. An emptied hash or sorted set does not exist in
Redis, so only streams and strings have rows of their own for that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import pytest
import redis
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from bench.cluster import Cluster
from tidegate.cli.client.redis_keys import KINDS, Kind, classify
from tidegate.cli.main import command_line
from tidegate.store.keys import shard_of

HEALED_S: Final = 60.0
"""The longest session and refresh times of the clients, several times over, on a loaded machine."""
NAMED_S: Final = 12.0
"""A session of the members twice over: what does not heal by then may need the command that the log names."""
DELETED, WRONG_TYPE, EMPTIED = "deleted", "wrong type", "emptied"
ELSEWHERE: Final = frozenset(
    {
        "quotas", "quota-bucket", "org-connections", "org-groups", "lag", "usage", "audit", "audit-events", "acls",
        "resource-configs", "proof", "configured", "configs", "consumers", "targets", "consumer-sessions", "shares",
        "share", "share-available", "share-acquired", "share-locks", "transaction-shards", "transactions",
        "transaction-deadlines", "transaction", "staged", "ended-transactions", "producers", "records", "readers",
        "writers",
    }
)  # fmt: skip
"""Kinds of keys that this traffic has not; other tests here have rows for them."""
NO_ROW: Final = {
    "probe": "deleted at once by who writes it",
    "probe-at": "deleted at once by who writes it",
    "proof-at": "as proof, at another node of Redis Cluster",
    "pending": "a member id that its client has not used yet, for as long as one request takes",
    "revocations": "there while a member gives partitions up",
    "times": "sparse: one for many records",
    "users": "brokers without SASL read none",
    "compactions": "requests by a person, with an answer",
    "compacted": "a copy while a compaction runs; tests/chaos/test_compaction_killed.py",
    "dead-letters": "there while a dead-letter topic is written",
    "staged-records": "of an open transaction of format record: scripts/test_record_transactions.py deletes it",
    "segments": "of archived topics",
    "archive": "of archived topics",
    "replayed": "of a replay from an archive",
    "restored": "a copy while a restore runs",
    "translations": "of mirrored topics, until they are archived",
}
"""Kinds without a row, and why."""
ROWS: Final = [
    (kind.name, how)
    for kind in KINDS
    if kind.name not in ELSEWHERE and kind.name not in NO_ROW
    for how in ((DELETED, WRONG_TYPE, EMPTIED) if kind.type in ("stream", "string") else (DELETED, WRONG_TYPE))
    if (kind.name, how) != ("producer-ids", EMPTIED)  # written for a thousand producers; a row of transactions
]
KEYS_OF_CONSUMER_GROUPS: Final = (
    "groups", "deadlines", "events", "group", "offsets", "consumers", "targets", "consumer-sessions",
)  # fmt: skip
"""What a KIP-848 group with a member has."""
KEYS_OF_RECORD_TOPICS: Final = ("records", "meta", "producers", "readers", "writers", "owners")
"""What a partition of format record has."""
LOSES_RECORDS: Final = frozenset({"log", "records"})
"""Keys with which the records acknowledged before are lost."""
HEARTBEAT_LOST_S: Final = 10.0
"""Twenty intervals of heartbeats."""
UNKNOWN: Final = -1
"""The offset of a record that librdkafka calls acknowledged because the next one was."""
_numbers = count(1)


@dataclass
class Traffic:
    """A producer and a group consumer of one topic; `acked` are values with their offsets."""

    cluster: Cluster
    name: str
    protocol: str = "classic"
    """The group's: classic, or consumer (KIP-848)."""
    topic_format: str = "batch"
    acked: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    observed: set[str] = field(default_factory=set)
    sent: int = 0
    _unknown_since_s: float | None = None

    def __enter__(self) -> Traffic:
        common = {"bootstrap.servers": self.cluster.bootstrap, "topic.metadata.refresh.interval.ms": 1_000}
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        config = {"retention.ms": "86400000", "tidegate.format": self.topic_format}
        topic = NewTopic(self.name, 1, 1, config=config)
        admin.create_topics([topic], operation_timeout=30)[self.name].result(60)
        self.producer = Producer(common | {"enable.idempotence": True, "message.timeout.ms": 5_000, "linger.ms": 0})
        self._configuration = common | {
            "group.id": self.name,
            "group.instance.id": "static-1",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "group.protocol": self.protocol,
        }
        if self.protocol == "classic":
            self._configuration |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
        self._consume()
        return self

    def _consume(self) -> None:
        self.consumer = Consumer(self._configuration)
        self.consumer.subscribe([self.name])

    def __exit__(self, *_: object) -> None:
        self.producer.purge()
        self.consumer.close()
        del self.producer

    def step(self) -> None:
        """One record, and what the consumer finds; each found record is committed."""
        self.sent += 1
        self.producer.produce(self.name, f"{self.sent}", on_delivery=self._delivered)
        self.producer.poll(0.02)
        message = self.consumer.poll(0.05)
        if message is None:
            return
        if message.error() is not None:
            self.failures.append(str(message.error()))
            if message.error().fatal():  # librdkafka may mark its coordinator dead with each retry of a commit, until
                self.consumer.close()  # its session ends; the retry with the former member id is then refused
                self._consume()
            return
        self.observed.add(message.value().decode())
        try:
            self.consumer.commit(message, asynchronous=False)
        except KafkaException as error:
            self.failures.append(str(error))
            self._rejoin_after(error.args[0].code())
        else:
            self._unknown_since_s = None

    def _rejoin_after(self, code: int) -> None:
        """A member that is unknown learns it by its heartbeat, after which librdkafka joins again by itself.

        KIP-848: where commits marked its coordinator dead many times a second, the retry of a heartbeat is lost in
        librdkafka 2.16: it is never sent, nor is another one.
        """
        if code != KafkaError.UNKNOWN_MEMBER_ID:
            self._unknown_since_s = None
        elif self._unknown_since_s is None:
            self._unknown_since_s = time.monotonic()
        elif time.monotonic() - self._unknown_since_s > HEARTBEAT_LOST_S:
            self._unknown_since_s = None
            self.consumer.close()
            self._consume()

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acked[message.value().decode()] = UNKNOWN if message.offset() is None else message.offset()
        else:
            self.failures.append(str(error))

    def until(self, condition: Callable[[], bool], within_s: float = HEALED_S) -> bool:
        """Step until the condition holds."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.step()
        return True

    def is_alive(self) -> Callable[[], bool]:
        """Whether a record that was sent after this call was acknowledged, consumed and committed."""
        after = self.sent

        def healed() -> bool:
            newest = max((self.acked[one] for one in self.observed & self.acked.keys() if int(one) > after), default=-1)
            if newest < 0:
                return False
            try:
                [found] = self.consumer.committed([TopicPartition(self.name, 0)], timeout=2)
            except KafkaException as error:
                self.failures.append(str(error))
                return False
            return bool(found.offset > newest)

        return healed

    def works(self, within_s: float) -> bool:
        """Whether records pass, another topic can be made, and both brokers list both."""
        if not self.until(self.is_alive(), within_s):
            return False
        deadline, name = time.monotonic() + within_s, f"{self.name}-{next(_numbers)}"
        while not self.make(name, within_s):
            if time.monotonic() > deadline:
                return False
        for broker in self.cluster.brokers:
            one = AdminClient({"bootstrap.servers": broker.address})
            while not {self.name, name} <= one.list_topics(timeout=20).topics.keys():
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.1)
        return self.until(self.is_alive(), within_s)

    def make(self, name: str, within_s: float) -> bool:
        """Create a topic; librdkafka fails its request where brokers have just taken other node ids."""
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        made = admin.create_topics([NewTopic(name, 1, 1)], request_timeout=within_s)[name]
        try:
            made.result(within_s + 5)
        except KafkaException as error:
            self.failures.append(str(error))
            return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
        return True

    def readable(self) -> dict[str, int]:
        """Every value of the topic with its offset."""
        reader = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": f"{self.name}-reader",
                "enable.auto.commit": False,
            }
        )
        found: dict[str, int] = {}
        try:
            low, high = self._offset_range(reader)
            reader.assign([TopicPartition(self.name, 0, low)])
            deadline = time.monotonic() + HEALED_S
            while time.monotonic() < deadline and (not found or max(found.values()) < high - 1):
                message = reader.poll(0.5)
                if message is not None and message.error() is None:
                    found[message.value().decode()] = message.offset()
        finally:
            reader.close()
        return found

    def _offset_range(self, reader: Any) -> tuple[int, int]:
        """First and end offset; librdkafka fails its request where brokers have just taken other node ids."""
        deadline = time.monotonic() + HEALED_S
        while True:
            try:
                low, high = reader.get_watermark_offsets(TopicPartition(self.name, 0), timeout=20)
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            else:
                return low, high


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "TIDEGATE_AUTO_CREATE_TOPICS_ENABLE": "false",
        "TIDEGATE_LOG_FORMAT": "json",
        "TIDEGATE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "6000",
        "TIDEGATE_GROUP_CONSUMER_HEARTBEAT_INTERVAL_MS": "500",
    }
    with Cluster(brokers=2, settings=settings) as running:
        yield running


def keys_of(client: redis.Redis, traffic: Traffic, kind: Kind) -> list[str]:
    """The present keys of this kind that concern the traffic."""
    found = []
    shard = shard_of(traffic.name, 50)
    for name in client.scan_iter(count=1_000):
        key = classify(name.decode(), "tidegate")
        if key is None or key.kind is not kind or key.shard not in (None, shard):
            continue
        if (key.topic or traffic.name) == traffic.name and (key.group or traffic.name) == traffic.name:
            found.append(name.decode())
    return found


def damage(client: redis.Redis, key: str, kind: Kind, how: str) -> None:
    """Do to the key what the row says."""
    if how == EMPTIED and kind.type == "stream":
        client.xtrim(key, maxlen=0, approximate=False)
    elif how == EMPTIED:
        client.set(key, b"")
    else:
        client.delete(key)
        if how == WRONG_TYPE:
            client.rpush(key, b"foreign")


class BrokerLogs:
    """What the brokers log from now on."""

    def __init__(self, cluster: Cluster) -> None:
        self._paths = [broker.log_path for broker in cluster.brokers]
        self._sizes = [path.stat().st_size for path in self._paths]

    def events(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for path, size in zip(self._paths, self._sizes, strict=True)
            for line in path.read_bytes()[size:].splitlines()
            if line.startswith(b"{")
        ]


def repair(client: redis.Redis, cluster: Cluster, traffic: Traffic, logs: BrokerLogs) -> bool:
    """Run the commands that the brokers' logs name; False if they name none."""
    deadline = time.monotonic() + NAMED_S
    commands: set[str] = set()
    while not commands and time.monotonic() < deadline:
        traffic.step()
        commands = {event["command"] for event in logs.events() if "command" in event}
    for command in sorted(commands):
        if command.startswith("RENAME "):
            with suppress(redis.ResponseError):  # nobody wrote it again
                client.execute_command(*command.split())
        else:
            url = ["--redis-url", cluster.redis_url]
            done = CliRunner().invoke(command_line, [*command.split(), *url, "--yes"])
            assert not done.exit_code, done.output
    return bool(commands)


@pytest.mark.parametrize(
    ("name", "how"),
    [pytest.param(*row, marks=() if row[1] == DELETED else pytest.mark.slow) for row in ROWS],
    ids=[f"{name}-{how.replace(' ', '_')}" for name, how in ROWS],
)
def test_key_lost_is_noticed_and_healed(cluster: Cluster, name: str, how: str) -> None:
    lose_key(cluster, name, how, "classic")


@pytest.mark.parametrize("how", [DELETED, pytest.param(WRONG_TYPE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KEYS_OF_CONSUMER_GROUPS)
def test_key_lost_of_a_consumer_group_is_noticed_and_healed(cluster: Cluster, name: str, how: str) -> None:
    lose_key(cluster, name, how, "consumer")


@pytest.mark.parametrize("how", [DELETED, pytest.param(WRONG_TYPE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KEYS_OF_RECORD_TOPICS)
def test_key_lost_of_a_record_topic_is_noticed_and_healed(cluster: Cluster, name: str, how: str) -> None:
    lose_key(cluster, name, how, "classic", "record")


def lose_key(
    cluster: Cluster,
    name: str,
    how: str,
    protocol: str,
    topic_format: str = "batch",
    administer: Callable[[Traffic], None] = lambda _: None,
) -> None:
    """Damage the traffic's keys of a kind, and see it heal. `administer` is done before and after that."""
    kind = next(one for one in KINDS if one.name == name)
    client = redis.Redis.from_url(cluster.redis_url)
    with Traffic(cluster, f"lost.{next(_numbers)}", protocol, topic_format) as traffic:
        administer(traffic)
        assert traffic.until(traffic.is_alive())
        time.sleep(1.2)  # what is written about once a second is there
        assert traffic.until(lambda: bool(keys_of(client, traffic, kind))), "nothing to lose"
        traffic.producer.flush(HEALED_S)
        before = set(traffic.acked)
        logs = BrokerLogs(cluster)
        damaged = keys_of(client, traffic, kind)
        for key in damaged:
            damage(client, key, kind, how)
        for _ in range(5):
            traffic.step()  # the brokers' caches are warm
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # and now cold
        start_s = time.monotonic()
        healed = traffic.works(NAMED_S)
        repaired = False
        while not healed and time.monotonic() - start_s < HEALED_S:  # one command may show that another is needed
            repaired |= repair(client, cluster, traffic, logs)
            healed = traffic.works(NAMED_S)
        took_s = time.monotonic() - start_s
        news = sorted({event["event"] for event in logs.events() if event["level"] != "info"})
        print(f"| {name} | {how} | {'repaired' if repaired else 'by itself'} | {took_s:.1f} s | {', '.join(news)} |")
        assert healed, f"{'' if repaired else 'and no command is named: '}{logs.events()}, {traffic.failures}"
        if how == WRONG_TYPE and any(client.type(key) == b"list" for key in damaged):
            repair(client, cluster, traffic, logs)  # a key that is rarely used
            for key in damaged:
                if client.type(key) == b"list":
                    client.delete(key)
            assert traffic.works(HEALED_S)
        administer(traffic)
        found = traffic.readable()
        expected = set(traffic.acked) - (before if name in LOSES_RECORDS else set())
        assert not expected - found.keys()
        offsets = {one: traffic.acked[one] for one in expected if traffic.acked[one] != UNKNOWN}
        assert {one: found[one] for one in offsets} == offsets


def test_redis_flushed_under_traffic_acknowledges_only_what_can_be_read(cluster: Cluster) -> None:
    """The cluster starts empty: the topic is gone, and the clients continue once it is made again."""
    client = redis.Redis.from_url(cluster.redis_url)
    with Traffic(cluster, f"lost.{next(_numbers)}") as traffic:
        assert traffic.until(traffic.is_alive())
        before, logs = traffic.sent, BrokerLogs(cluster)
        client.flushall()
        start_s, healed = time.monotonic(), False
        while not healed and time.monotonic() - start_s < 2 * HEALED_S:
            with suppress(KafkaException):  # the producer knows by now that the topic is gone
                healed = traffic.until(traffic.is_alive(), 5.0)
            if not healed:
                traffic.make(traffic.name, NAMED_S)
        assert healed, (logs.events(), traffic.failures)
        assert traffic.until(lambda: "lease_lost" in {event["event"] for event in logs.events()})
        traffic.producer.flush(HEALED_S)
        acked = {one: offset for one, offset in traffic.acked.items() if int(one) > before}
        found = traffic.readable()
        assert acked.keys() <= found.keys()
        offsets = {one: offset for one, offset in acked.items() if offset != UNKNOWN}
        assert {one: found[one] for one in offsets} == offsets
