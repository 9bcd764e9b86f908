"""What each durability level lost: the rows of docs/durability.md, with real servers that crash and come back.

A crash of the machine loses what was not on the disk: the append-only file is cut back to what it was then. After each,
what is left is what was acknowledged first, without a gap; new records follow it, under a higher leader epoch where
something is missing; and nothing is missing that the level promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import redis
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.cluster import Cluster
from tests.support.valkey import ValkeyServer

HEALED_S: Final = 90.0
TOPIC: Final = "t"
AOF: Final = ("--appendonly", "yes", "--aof-use-rdb-preamble", "no", "--appendfsync")
_numbers = count(1)


class Broker:
    """A broker process on some server, and clients that are new for each question."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.bootstrap = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
        self.acknowledged: list[str] = []
        self.admin = AdminClient(self.bootstrap)
        made = self.admin.create_topics([NewTopic(TOPIC, 1, 1)], operation_timeout=30)
        made[TOPIC].result(60)

    def produce(self, number: int, timeout_ms: int = 60_000) -> int:
        """Send records one after the other; how many were acknowledged."""
        before = len(self.acknowledged)
        producer = Producer(self.bootstrap | {"acks": "all", "message.timeout.ms": timeout_ms, "linger.ms": 0})

        def on_delivery(error: object, message: object) -> None:
            if error is None:
                self.acknowledged.append(message.value().decode())  # type: ignore[attr-defined]

        for _ in range(number):
            producer.produce(TOPIC, f"{next(_numbers)}", on_delivery=on_delivery)
            producer.flush(timeout_ms / 1000 + 5)
        return len(self.acknowledged) - before

    def records(self, number: int) -> list[str]:
        """The records of the log, once it can be read and has so many."""
        reader = Consumer(self.bootstrap | {"group.id": "reader", "enable.auto.commit": False})
        reader.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[str] = []
        ends = time.monotonic() + HEALED_S
        while len(found) < number and time.monotonic() < ends:
            message = reader.poll(0.5)
            if message is not None and message.error() is None:
                assert message.offset() == len(found)
                found.append(message.value().decode())
        reader.close()
        return found

    def end(self) -> int:
        """The log end, once Redis is back."""
        ends = time.monotonic() + HEALED_S
        while True:
            admin, partition = AdminClient(self.bootstrap), TopicPartition(TOPIC, 0)  # without an epoch of before
            try:
                asked = admin.list_offsets({partition: OffsetSpec.latest()}, request_timeout=30)
                found = asked[partition].result(60)
            except KafkaException:
                assert time.monotonic() < ends
                time.sleep(0.2)
            else:
                return int(found.offset)

    def leader_epoch(self) -> int:
        """Of the last record."""
        reader = Consumer(self.bootstrap | {"group.id": "reader", "enable.auto.commit": False})
        reader.assign([TopicPartition(TOPIC, 0, self.end() - 1)])
        ends = time.monotonic() + HEALED_S
        while (message := reader.poll(0.5)) is None or message.error() is not None:
            assert time.monotonic() < ends
        reader.close()
        return int(message.leader_epoch())

    def check(self, kept: int) -> None:
        """The first `kept` records are there, no others; new ones follow, under a higher epoch if some were lost."""
        assert self.end() == kept
        epoch, lost = self.leader_epoch(), self.acknowledged[kept:]
        assert self.produce(5) == 5
        assert self.records(kept + 5) == [*self.acknowledged[:kept], *self.acknowledged[-5:]]
        assert (self.leader_epoch() > epoch) or not lost


@contextmanager
def broker_on(server: ValkeyServer, durability: str = "memory", **settings: str) -> Iterator[Broker]:
    values = {"TIDEGATE_DURABILITY": durability, "TIDEGATE_DURABILITY_TIMEOUT_MS": "10000"} | settings
    with Cluster(brokers=1, settings=values, redis_url=server.url) as cluster:
        yield Broker(cluster)


@contextmanager
def server_with(*options: str) -> Iterator[ValkeyServer]:
    server = ValkeyServer(options)
    try:
        yield server
    finally:
        server.stop()


def append_only_file(server: ValkeyServer) -> Path:
    [found] = Path(server.directory).glob("appendonlydir/*.incr.aof")
    return found


def until_written(server: ValkeyServer) -> None:
    """While an fsync runs, Redis holds back writes to the file for up to 2 s: a process that dies then loses them."""
    with redis.Redis(port=server.port) as client:
        until(lambda: client.info("persistence")["aof_buffer_length"] == 0, time.monotonic() + HEALED_S)


def test_durability_snapshots_only_loses_what_follows_the_last_one() -> None:
    with server_with() as server, broker_on(server) as broker:
        assert broker.produce(30) == 30
        redis.Redis(port=server.port).save()
        assert broker.produce(20) == 20
        server.kill()
        server.start()  # a primary that comes back with older data
        broker.check(kept=30)


def test_durability_append_only_file_every_second_loses_what_was_not_on_the_disk() -> None:
    with server_with(*AOF, "everysec") as server, broker_on(server) as broker:
        assert broker.produce(30) == 30
        until_written(server)
        on_disk = append_only_file(server).stat().st_size
        assert broker.produce(20) == 20
        until_written(server)
        server.kill()
        with append_only_file(server).open("rb+") as file:
            file.truncate(on_disk)  # the machine crashed before the next fsync
        server.start()
        broker.check(kept=30)


def test_durability_append_only_file_always_loses_nothing() -> None:
    with server_with(*AOF, "always") as server, broker_on(server) as broker:
        assert broker.produce(30) == 30
        server.kill()
        server.start()
        broker.check(kept=30)


def test_durability_append_only_file_every_second_keeps_what_was_written_if_only_the_process_dies() -> None:
    with server_with(*AOF, "everysec") as server, broker_on(server) as broker:
        assert broker.produce(30) == 30
        until_written(server)
        server.kill()
        server.start()
        broker.check(kept=30)


def test_durability_fsynced_acknowledges_only_what_is_on_the_disk() -> None:
    """The disk stands still: writes reach the server, and nothing is acknowledged until they are on it."""
    with server_with(*AOF, "always") as server, broker_on(server, "fsynced") as broker:
        client = redis.Redis(port=server.port)
        assert broker.produce(10) == 10
        client.config_set("appendfsync", "no")  # from now on nobody asks the disk to write
        on_disk = append_only_file(server).stat().st_size
        assert broker.produce(3, timeout_ms=3_000) == 0
        server.kill()
        with append_only_file(server).open("rb+") as file:
            file.truncate(on_disk)
        server.start()
        client.config_set("appendfsync", "everysec")
        broker.check(kept=10)


def in_step(primary: ValkeyServer, replica: ValkeyServer) -> None:
    ends = time.monotonic() + HEALED_S
    until(lambda: redis.Redis(port=replica.port).info("replication").get("master_link_status") == "up", ends)
    offset = redis.Redis(port=primary.port).info("replication")["master_repl_offset"]
    until(lambda: redis.Redis(port=replica.port).info("replication")["slave_repl_offset"] >= offset, ends)


def until(holds: Callable[[], bool], ends: float) -> None:
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.05)


@contextmanager
def pair(*options: str) -> Iterator[tuple[ValkeyServer, ValkeyServer]]:
    with server_with(*options) as primary, server_with("--replicaof", "127.0.0.1", str(primary.port)) as replica:
        in_step(primary, replica)
        yield primary, replica


def test_durability_replicated_acknowledges_nothing_while_the_replica_lags() -> None:
    """What a replica that lags lacks is not acknowledged; it is promoted, and all that was acknowledged is there."""
    with pair() as (primary, replica), broker_on(primary, "replicated:1") as broker:
        assert broker.produce(20) == 20
        redis.Redis(port=replica.port).replicaof("NO", "ONE")  # it receives nothing more
        assert broker.produce(3, timeout_ms=3_000) == 0
        primary.kill()
        _take_over(primary, replica)
        redis.Redis(port=replica.port).replicaof("127.0.0.1", primary.port)  # without one nothing is confirmed
        in_step(primary, replica)
        broker.check(kept=20)


def test_durability_memory_loses_what_a_promoted_replica_has_not_got() -> None:
    with pair() as (primary, replica), broker_on(primary) as broker:
        assert broker.produce(20) == 20
        in_step(primary, replica)
        redis.Redis(port=replica.port).replicaof("NO", "ONE")
        assert broker.produce(15) == 15
        primary.kill()
        _take_over(primary, replica)
        broker.check(kept=20)


def _take_over(primary: ValkeyServer, replica: ValkeyServer) -> None:
    """The replica's data at the primary's address, as behind a service name."""
    client = redis.Redis(port=replica.port)
    client.save()
    dump = Path(replica.directory) / "dump.rdb"
    (Path(primary.directory) / "dump.rdb").write_bytes(dump.read_bytes())
    primary.start()


def test_min_replicas_refuses_producers_until_a_replica_is_back() -> None:
    options = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "2")
    with pair() as (primary, replica), broker_on(primary) as broker:
        assert broker.produce(10) == 10
        client = redis.Redis(port=primary.port)
        for name, value in zip(options[::2], options[1::2], strict=True):
            client.config_set(name.removeprefix("--"), value)
        redis.Redis(port=replica.port).replicaof("NO", "ONE")
        until(lambda: client.info("replication")["connected_slaves"] == 0, time.monotonic() + HEALED_S)
        assert broker.produce(2, timeout_ms=3_000) == 0
        redis.Redis(port=replica.port).replicaof("127.0.0.1", primary.port)
        in_step(primary, replica)
        broker.check(kept=10)
