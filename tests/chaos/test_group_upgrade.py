"""A running group of 20 members changes from the classic protocol to KIP-848 and back, one member after the other.

Ten members are Java's and ten librdkafka's. While records are produced, each member is replaced by one with the other
protocol, as a rolling deployment does. No record is lost or read twice, no partition has two owners, and commits never
go back. At Kafka, classic members whose generation is not the group's lose their partitions at the last step back, and
read again what they had not committed. The classic members' assignor is `range`: brokers convert no group whose
assignments carry user data, nor do Kafka's.

The journals are kept in TIDEGATE_OUTSIDE_DIRECTORY where that is set.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import Cluster
from bench.jars import NEWEST_KAFKA_VERSION, PeerUnavailable
from bench.kafka_peer import KafkaPeer
from tests.chaos.test_outside_clients import acknowledged_of
from tests.kit.wire import RawClient, request_type
from tests.outside.client_group import TOPIC, Process
from tests.outside.group_journals import Observer, Programs, StoredGroups, programs, read_by, wait_until
from tests.outside.history import GroupHistory
from tests.outside.journal import journals_directory
from tests.support.broker_logs import complaints, tracebacks

GROUP: Final = "upgraded"
MEMBERS: Final = 20
PARTITIONS: Final = 40
LIBRARIES: Final = ("java", "librdkafka")
PACE_S: Final = 2.0
WAIT_S: Final = 240.0
LIST_GROUPS: Final = 16


def owns_everything(members: Programs) -> bool:
    """Whether each partition has one owner, and each member has partitions, by their own journals."""
    owned = members.owned(GROUP)
    return all(owned.values()) and sorted(one for mine in owned.values() for one in mine) == list(range(PARTITIONS))


def read_twice(members: Programs) -> set[tuple[int, int]]:
    """Partition and offset of records that were read more than once."""
    counts: Counter[tuple[int, int]] = Counter()
    for entries in members.journals().values():
        for entry in entries:
            if entry["kind"] == "read":
                counts.update((entry["partition"], offset) for offset, _ in entry["records"])
    return {place for place, count in counts.items() if count > 1}


def lost_partitions(members: Programs) -> set[int]:
    """Partitions that a member lost without being asked to give them up."""
    entries = (entry for journal in members.journals().values() for entry in journal)
    return {index for entry in entries if entry["kind"] == "lost" for index in entry["partitions"]}


def replace_all(members: Programs, protocol: str, rng: random.Random) -> None:
    """One member after the other is closed, and a new one joins with the other protocol."""
    before = members.members(GROUP)
    rng.shuffle(before)
    for name in before:
        members.close(name)
        members.join(name.partition("-")[0], protocol, GROUP)
        time.sleep(PACE_S)
        assert not members.died()
    wait_until(lambda: owns_everything(members), WAIT_S, lambda: (members.died(), members.owned(GROUP)))


@dataclass(slots=True)
class Change:
    """What a running group that changed its protocol and changed it back saw."""

    members: Programs
    took_s: list[float]
    acknowledged: dict[tuple[int, int], str]


def change_and_return(
    stack: ExitStack, directory: Path, bootstrap: str, type_of: Callable[[str], str], rng: random.Random
) -> Change:
    """Run a group that changes to KIP-848 and back while records are produced; all members have left afterwards."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    try:
        members = stack.enter_context(programs(directory, bootstrap, TOPIC, LIBRARIES))
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    arguments = ["librdkafka", TOPIC, str(PARTITIONS), bootstrap, str(directory / "writer.jsonl")]
    writing = Process(directory, "writer", [sys.executable, "-m", "tests.outside.writer", *arguments])
    stack.callback(writing.kill)
    for number in range(MEMBERS):
        members.join(LIBRARIES[number % 2], "classic", GROUP)
    wait_until(lambda: owns_everything(members), WAIT_S, lambda: (members.died(), members.owned(GROUP)))
    assert type_of(GROUP) == "classic"

    took_s = []
    for protocol in ("consumer", "classic"):
        began_s = time.monotonic()
        replace_all(members, protocol, rng)
        took_s.append(time.monotonic() - began_s)
        assert type_of(GROUP) == protocol
        if protocol == "consumer":
            assert not read_twice(members)
            assert not lost_partitions(members)

    writing.stop()
    acknowledged = acknowledged_of([writing])
    wait_until(
        lambda: not acknowledged.keys() - read_by(members, GROUP), WAIT_S,
        lambda: (members.died(), sorted(acknowledged.keys() - read_by(members, GROUP))[:10]),
    )  # fmt: skip
    members.end()
    return Change(members, took_s, acknowledged)


def reported(change: Change, history: GroupHistory) -> str:
    """The figures of a run."""
    return (
        f"{MEMBERS} members to KIP-848 in {change.took_s[0]:.0f} s, back in {change.took_s[1]:.0f} s; "
        f"{len(change.acknowledged)} records acknowledged, {len(history.values)} read, {history.read_again} twice; "
        f"{history.counts['commits acknowledged']} commits, {history.refused_commits or 'none'} refused; "
        f"{history.counts['lost']} assignments lost"
    )


async def listed_type(address: str, group: str) -> str:
    """The type of a group in ListGroups."""
    async with await RawClient.connect(address) as client:
        listed = await client.ask(request_type(LIST_GROUPS, 5)(states_filter=(), types_filter=()))
    (found,) = [one.group_type for one in listed.groups if one.group_id == group]
    return str(found).lower()


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_running_group_changes_its_protocol_and_back(rng: random.Random, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(brokers=3))
        stored, observer = StoredGroups(cluster.redis_url), Observer(cluster.bootstrap, GROUP, PARTITIONS)
        with observer.observing():
            directory = journals_directory("upgrade", tmp_path)
            change = change_and_return(stack, directory, cluster.bootstrap, stored.type_of, rng)
        history = change.members.consumer_history(GROUP, stored.removed(GROUP))
        history.observe(observer.fetched)
        events = Counter(event["kind"] for event in stored.events(GROUP))
        print(f"{reported(change, history)}; events {dict(events)}")
        wrong = [*map(str, change.members.died()), *history.violations(change.acknowledged)]
        assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])
        assert not lost_partitions(change.members)
        assert not read_twice(change.members)
        assert events["member_expired"] == 0
        assert not tracebacks(cluster)
        assert complaints(cluster) == []


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_kafka_group_changes_its_protocol_and_back(rng: random.Random, tmp_path: Path) -> None:
    """No record is lost there either; how many are read twice is reported.

    Nobody observes commits: the admin client of librdkafka 2.16 crashes when it asks
    for a group's offsets while Kafka makes their topic.
    """
    with ExitStack() as stack:
        try:
            kafka = stack.enter_context(KafkaPeer(version=NEWEST_KAFKA_VERSION))
        except PeerUnavailable as reason:
            pytest.skip(str(reason))

        def type_of(group: str) -> str:
            return asyncio.run(listed_type(kafka.bootstrap, group))

        directory = journals_directory("upgrade-kafka", tmp_path)
        change = change_and_return(stack, directory, kafka.bootstrap, type_of, rng)
        history = change.members.consumer_history(GROUP, {})
        print(f"Kafka {NEWEST_KAFKA_VERSION}: {reported(change, history)}")
        assert {partition for partition, _ in read_twice(change.members)} <= lost_partitions(change.members)
