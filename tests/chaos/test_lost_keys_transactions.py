"""The keys of transactions deleted, of another type, or emptied, while a producer has a transaction open.

After each: records of committed transactions can be read, and the producer's next transactions, or those of a new
producer of its transactional id, are read by consumers of committed records, which nothing holds up forever.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pytest
import redis
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from bench.cluster import Cluster
from tests.chaos.test_lost_keys import DELETED, EMPTIED, WRONG_TYPE, BrokerLogs, damage
from tidegate.cli.client.redis_keys import KINDS, Kind, classify
from tidegate.cli.main import command_line

HEALED_S: Final = 60.0
NAMED_S: Final = 15.0
"""What has not healed by then may need the command that the log names."""
KEYS: Final = (
    "producer-ids", "transaction-shards", "transactions", "transaction-deadlines", "transaction", "producers", "staged",
    "ended-transactions",
)  # fmt: skip
_numbers = count(1)


@dataclass
class Transactions:
    """One producer, with offsets of a group in its transactions, and what it knows to be committed."""

    cluster: Cluster
    name: str
    committed: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    sent: int = 0

    def __post_init__(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        admin.create_topics([NewTopic(self.name, 1, 1)], operation_timeout=30)[self.name].result(60)
        self.group = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": self.name})
        self.group.assign([TopicPartition(self.name, 0, 0)])
        self.reader = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": f"{self.name}-reader",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self.reader.assign([TopicPartition(self.name, 0, 0)])
        self.observed: set[str] = set()
        self.start()

    def start(self) -> None:
        """A new producer of the transactional id."""
        self.producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": 8_000,
                "message.timeout.ms": 5_000,
            }
        )
        self.retried(lambda: self.producer.init_transactions(10))

    def retried(self, action: Callable[[], object]) -> None:
        """Try again what the library calls retriable."""
        deadline = time.monotonic() + HEALED_S
        while True:
            try:
                action()
            except KafkaException as error:
                self.errors.append(str(error))
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def begin(self) -> str:
        """Open a transaction with one record and one offset; the record's value."""
        self.sent += 1
        value = f"{self.sent}"
        self.producer.begin_transaction()
        self.producer.produce(self.name, value)
        self.producer.flush(5)
        offsets = [TopicPartition(self.name, 0, self.sent)]
        self.producer.send_offsets_to_transaction(offsets, self.group.consumer_group_metadata(), 10)
        return value

    def commit(self, value: str) -> bool:
        """Whether the open transaction was committed; else it is aborted, or left to a new producer."""
        try:
            self.retried(lambda: self.producer.commit_transaction(10))
        except KafkaException as error:
            self.errors.append(str(error))
            return False
        self.committed.add(value)
        return True

    def once(self) -> bool:
        """Whether one whole transaction was committed."""
        try:
            return self.commit(self.begin())
        except KafkaException as error:
            self.errors.append(str(error))
            return False

    def until_read(self, within_s: float = HEALED_S) -> bool:
        """Whether another transaction is committed and read; what fails is begun again by a new producer."""
        deadline = time.monotonic() + within_s
        while not self.once():
            if time.monotonic() > deadline:
                return False
            self.producer.purge()
            try:
                self.start()
            except KafkaException as error:
                self.errors.append(str(error))
        while not self.committed <= self.observed and time.monotonic() < deadline:
            message = self.reader.poll(0.2)
            if message is not None and message.error() is None:
                self.observed.add(message.value().decode())
        return self.committed <= self.observed

    def close(self) -> None:
        self.producer.purge()
        self.reader.close()
        self.group.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, settings={"TIDEGATE_LOG_FORMAT": "json"}) as running:
        yield running


def keys_of(client: redis.Redis, name: str, kind: Kind) -> list[str]:
    """The present keys of this kind that concern the producer, or all."""
    found = []
    for key in client.scan_iter(count=1_000):
        one = classify(key.decode(), "tidegate")
        if kind.name == "transaction" and not key.endswith(f":{name}".encode()):
            continue
        if one is not None and one.kind is kind and (one.topic or name) == name and (one.group or name) == name:
            found.append(key.decode())
    return found


def end_hanging(cluster: Cluster) -> None:
    """End what `tidegate txn find-hanging` finds."""
    where = ("--bootstrap", cluster.bootstrap)
    find = ("txn", "find-hanging", "--older-than-ms", "0", "--output", "json", *where)
    found = json.loads(CliRunner().invoke(command_line, find).stdout)
    assert found
    for one in found:
        place = (one["topic"], str(one["partition"]), str(one["start_offset"]))
        done = CliRunner().invoke(command_line, ("txn", "abort-hanging", *place, "--yes", *where))
        assert not done.exit_code, done.output


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, DELETED) for name in KEYS),
        *(pytest.param(name, WRONG_TYPE, marks=pytest.mark.slow) for name in KEYS),
        ("producer-ids", EMPTIED),  # an empty hash or sorted set does not exist
    ],
)
def test_key_lost_within_a_transaction_is_healed(cluster: Cluster, name: str, how: str) -> None:
    kind = next(one for one in KINDS if one.name == name)
    client, logs = redis.Redis.from_url(cluster.redis_url), BrokerLogs(cluster)
    traffic = Transactions(cluster, f"tx{next(_numbers)}")
    try:
        assert traffic.until_read()
        value = traffic.begin()
        if name == "producers":  # it is a snapshot, which a broker loads when it has no state of the log
            time.sleep(1.2)
        damaged = keys_of(client, traffic.name, kind)
        for key in damaged:
            damage(client, key, kind, how)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        start_s = time.monotonic()
        traffic.commit(value)
        if how == WRONG_TYPE:
            named = {event.get("key") for event in logs.events()}
            for key in damaged:
                if client.type(key) == b"list":
                    assert key in named or traffic.until_read(), f"{key} is not named"
                    client.rename(key, f"{key}:foreign")
        healed = traffic.until_read(NAMED_S if name == "transaction" else HEALED_S)
        if not healed and "txn find-hanging" in {event.get("command") for event in logs.events()}:
            end_hanging(cluster)
        healed = healed or traffic.until_read()
        news = sorted({event["event"] for event in logs.events() if event["level"] != "info"})
        print(f"| {name} | {how} | {len(damaged)} keys | {time.monotonic() - start_s:.1f} s | {', '.join(news)} |")
        assert healed, traffic.errors[-5:]
    finally:
        traffic.close()
