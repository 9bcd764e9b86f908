"""Groups of KIP-848, KIP-932 and KIP-1071 by Java, librdkafka and franz-go while a broker is killed every five seconds.

One consumer group and one share group have members of all three libraries, which leave and join; a Kafka Streams
application counts words exactly once. What the members saw is judged by `tests.kit.checker`: no partition has two
owners, commits never go back, no acknowledged record is lost, each delivery of a share group is accounted for.

TIDEGATE_OUTSIDE_S is how long brokers are killed for: `make test SUITE=outside` takes three minutes. The journals are
kept in TIDEGATE_OUTSIDE_DIRECTORY where that is set.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from bench.cluster import Cluster
from bench.jars import PeerUnavailable, streams_jars
from tests.chaos.test_outside_clients import acknowledged_of, kill_one_by_one
from tests.conformance.test_java_streams import COUNTS, LINES, TASKS, Words, running
from tests.conformance.test_java_streams import GROUP as STREAMS
from tests.kit.checker import check, summary
from tests.kit.history import Acknowledgement, Delivery, History, Outcome, Send, ShareBounds, now_ns
from tests.kit.wire import RawClient, request
from tests.outside.client_group import PARTITIONS, TOPIC, writer
from tests.outside.group_journals import (
    PROGRAMS,
    Observer,
    Programs,
    StoredGroups,
    committed_offsets,
    programs,
    read_by,
    wait_until,
)
from tests.outside.journal import journals_directory
from tests.support.broker_logs import complaints, tracebacks

LENGTH_S = float(os.environ.get("TIDEGATE_OUTSIDE_S", "30"))
CONSUMERS, WORKERS = "consumers", "workers"
CHANGE_EVERY_S: Final = (4.0, 8.0)
CATCH_UP_S: Final = 180.0
SHARE_CONFIGS: Final = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "10",
    "share.record.lock.duration.ms": "15000",
}
DESCRIBE_SHARE_GROUP_OFFSETS = 90


def configure(admin: AdminClient, group: str, configs: dict[str, str]) -> None:
    """Set configs of a group."""
    entries = [ConfigEntry(name, one, incremental_operation=AlterConfigOpType.SET) for name, one in configs.items()]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for changed in admin.incremental_alter_configs([resource]).values():
        changed.result(30)


async def start_offsets(address: str, group: str) -> dict[str, int]:
    """Partition -> start offset of the share-partition, by DescribeShareGroupOffsets."""
    topics = [{"topic_name": TOPIC, "partitions": tuple(range(PARTITIONS))}]
    asked = request(DESCRIBE_SHARE_GROUP_OFFSETS, 0, groups=[{"group_id": group, "topics": topics}])
    async with await RawClient.connect(address) as client:
        (found,) = (await client.ask(asked)).groups
    assert found.error_code is ErrorCode.none, found
    return {str(one.partition_index): one.start_offset for topic in found.topics for one in topic.partitions}


def change_members(group: str, kind: str, members: Programs, rng: random.Random, over: threading.Event) -> None:
    """Now and then one leaves, or joins: between one and three members of each library."""
    while not over.wait(rng.uniform(*CHANGE_EVERY_S)):
        library = rng.choice(sorted(PROGRAMS))
        mine = [name for name in members.members(group) if name.startswith(f"{library}-")]
        if len(mine) > 1 and (len(mine) == 3 or rng.random() < 0.5):
            members.close(rng.choice(mine))
        else:
            members.join(library, kind, group)


def consumer_violations(
    members: Programs, observer: Observer, stored: StoredGroups, acknowledged: dict[tuple[int, int], str]
) -> Iterator[str]:
    """What is wrong about the consumer group, and its figures."""
    history = members.consumer_history(observer.group, stored.removed(observer.group))
    history.observe(observer.fetched)
    yield from (f"{observer.group}: {one}" for one in history.violations(acknowledged))
    events = Counter(event["kind"] for event in stored.events(observer.group))
    print(
        f"{observer.group}: {len(history.values)} records, {history.read_again} read again; "
        f"{history.counts['commits acknowledged']} commits, {history.refused_commits or 'none'} refused; "
        f"{len(observer.fetched)} times asked for committed offsets; {history.counts['assigned']} assignments, "
        f"{history.counts['lost']} lost; members: {events['member_joined']} joined, {events['member_left']} left, "
        f"{events['member_expired']} expired"
    )


def share_violations(
    members: Programs, starts: dict[str, int], acknowledged: dict[tuple[int, int], str]
) -> Iterator[str]:
    """What is wrong about the share group, and its figures."""
    operations = list(members.share_operations(WORKERS))
    bounds = [ShareBounds(now_ns(), WORKERS, partition, start) for partition, start in starts.items()]
    yield from summary(check(History([*sends_of(acknowledged), *operations, *bounds])))
    counts: Counter[str] = Counter()
    for operation in operations:
        if isinstance(operation, Delivery):
            counts["deliveries"] += len(operation.records)
            counts["again"] += sum(count > 1 for _, _, count in operation.records)
        elif isinstance(operation, Acknowledgement):
            counts[f"accepted {operation.outcome}"] += len(operation.accepted)
            counts[f"released {operation.outcome}"] += len(operation.released)
    print(f"{WORKERS}: {dict(counts)}")


def sends_of(acknowledged: dict[tuple[int, int], str]) -> Iterator[Send]:
    """The records of the topic."""
    for (partition, offset), value in acknowledged.items():
        yield Send("writer", offset, offset, str(partition), value, Outcome.OK, offset, idempotent=False)


@contextmanager
def word_count(cluster: Cluster, directory: Path) -> Iterator[Words]:
    """A Kafka Streams application of two threads with `group.protocol=streams`, exactly once."""
    jars = streams_jars()
    words = Words(cluster)
    try:
        with running(jars, cluster, directory, "exactly_once_v2") as application:
            wait_until(lambda: application.tasks() == (TASKS, set()), CATCH_UP_S, application.tasks)
            yield words
            words.wait_counted()
            application.close()
    finally:
        words.close()


def produce_until(words: Words, over: threading.Event) -> None:
    """Lines for the Streams application, all the time."""
    while not over.wait(0.5):
        words.produce(10)


@pytest.mark.slow
@pytest.mark.timeout(int(LENGTH_S) + 900)
def test_next_generation_groups_keep_their_promises_while_brokers_die(rng: random.Random, tmp_path: Path) -> None:
    directory = journals_directory("next-generation", tmp_path)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(brokers=3))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        topics = [NewTopic(TOPIC, PARTITIONS, 1), NewTopic(LINES, 4, 1), NewTopic(COUNTS, 2, 1)]
        for made in admin.create_topics(topics).values():
            made.result(30)
        configure(admin, WORKERS, SHARE_CONFIGS)
        configure(admin, STREAMS, {"streams.heartbeat.interval.ms": "1000"})
        try:
            members = stack.enter_context(programs(directory, cluster.bootstrap, TOPIC, sorted(PROGRAMS)))
            words = stack.enter_context(word_count(cluster, tmp_path / "streams"))
        except PeerUnavailable as reason:
            pytest.skip(str(reason))
        writing = writer(directory, "librdkafka", cluster.bootstrap)
        stack.callback(writing.kill)
        observer = Observer(cluster.bootstrap, CONSUMERS, PARTITIONS)
        stack.enter_context(observer.observing())
        for library, _ in itertools.product(PROGRAMS, range(2)):
            members.join(library, "consumer", CONSUMERS)
            members.join(library, "share", WORKERS)
        wait_until(
            lambda: all(members.owned(CONSUMERS).values()),
            CATCH_UP_S,
            lambda: (members.died(), members.owned(CONSUMERS)),
        )
        wait_until(lambda: bool(read_by(members, WORKERS)), CATCH_UP_S, members.died)

        over = threading.Event()
        changing = [
            threading.Thread(
                target=change_members, args=(CONSUMERS, "consumer", members, random.Random(rng.random()), over)
            ),
            threading.Thread(
                target=change_members, args=(WORKERS, "share", members, random.Random(rng.random()), over)
            ),
            threading.Thread(target=produce_until, args=(words, over)),
        ]
        for thread in changing:
            thread.start()
        try:
            kills = kill_one_by_one(cluster, rng, LENGTH_S)
        finally:
            over.set()
            for thread in changing:
                thread.join()
        writing.stop()
        acknowledged = acknowledged_of([writing])
        wait_until(
            lambda: not acknowledged.keys() - read_by(members, CONSUMERS), CATCH_UP_S,
            lambda: (members.died(), sorted(acknowledged.keys() - read_by(members, CONSUMERS))[:10]),
        )  # fmt: skip
        ends = {
            str(index): 1 + max(offset for one, offset in acknowledged if one == index) for index in range(PARTITIONS)
        }
        address = cluster.brokers[0].address
        wait_until(
            lambda: asyncio.run(start_offsets(address, WORKERS)) == ends, CATCH_UP_S,
            lambda: (members.died(), asyncio.run(start_offsets(address, WORKERS)), ends),
        )  # fmt: skip
        members.end()
        stored = StoredGroups(cluster.redis_url)
        print(f"{kills} brokers killed in {LENGTH_S:.0f} s; {len(acknowledged)} records acknowledged")
        wrong = [*members.died(), *consumer_violations(members, observer, stored, acknowledged)]
        wrong += share_violations(members, ends, acknowledged)
        assert not wrong, f"{len(wrong)}:\n" + "\n".join(map(str, wrong[:20]))
        for broker in cluster.brokers:
            assert asyncio.run(committed_offsets(broker.address, CONSUMERS, PARTITIONS)) == ends
        words.wait_counted()
        print(f"{STREAMS}: {sum(words.sent.values())} words counted, exactly once")
        assert not tracebacks(cluster)
        assert complaints(cluster) == []
