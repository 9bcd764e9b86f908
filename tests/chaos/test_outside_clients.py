"""aiokafka, kafka-python and librdkafka by hand, while one of three brokers is killed every five seconds.

Each library has a group of its own (sticky or cooperative-sticky; static and dynamic members; commits waited for
and not; pauses, seeks, listeners) and an idempotent writer, each client in a process with a journal of what it saw.
The verdict is read from the journals (`tests/outside/history.py`, `tests/kit/checker.py`). That brokers die costs no
group a rebalance.

TIDEGATE_OUTSIDE_S is how long brokers are killed for: `make test SUITE=outside` takes three minutes. The journals are
kept in TIDEGATE_OUTSIDE_DIRECTORY where that is set.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.cluster import Cluster
from tests.outside.client_group import LIBRARIES, PARTITIONS, TOPIC, ClientGroup, Process, writer
from tests.outside.history import GroupHistory
from tests.outside.journal import journals_directory
from tests.support.broker_logs import complaints, tracebacks

LENGTH_S = float(os.environ.get("TIDEGATE_OUTSIDE_S", "30"))
KILL_EVERY_S, DEAD_S = 5.0, 1.0
CATCH_UP_S = 120.0


def kill_one_by_one(cluster: Cluster, rng: random.Random, seconds: float) -> int:
    """One broker after another is killed, and started again a second later; how many were."""
    kills, ends = 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        broker = rng.choice(cluster.brokers)
        broker.kill()
        kills += 1
        time.sleep(DEAD_S)
        broker.start()
        broker.wait_ready()
        time.sleep(max(0.0, KILL_EVERY_S - (time.monotonic() - began)))
    return kills


def run_with_kills(cluster: Cluster, groups: list[ClientGroup], rng: random.Random) -> int:
    """Form the groups, and change them while brokers are killed; returns the number of kills."""
    for group in groups:
        for role in ("static-1", "static-2", "dynamic"):
            group.start(role)
    for group in groups:
        group.stabilize()
        group.begin_stable()
    over = threading.Event()
    changing = [threading.Thread(target=group.change_until, args=(over,)) for group in groups]
    for thread in changing:
        thread.start()
    try:
        return kill_one_by_one(cluster, rng, LENGTH_S)
    finally:
        over.set()
        for thread in changing:
            thread.join()


@contextmanager
def running(groups: list[ClientGroup], writers: list[Process]) -> Iterator[None]:
    """Whatever happens, no process runs on."""
    try:
        yield
    finally:
        for process in [*writers, *(one for group in groups for one in group.running.values())]:
            process.kill()


def acknowledged_of(writers: list[Process]) -> dict[tuple[int, int], str]:
    """(partition, offset) -> value of every acknowledged record; none may have failed."""
    found: dict[tuple[int, int], str] = {}
    for process in writers:
        for entry in process.reader.more():
            assert entry["kind"] != "failed", entry
            assert entry.get("left", 0) == 0, entry
            if entry["kind"] == "acknowledged":
                place = entry["partition"], entry["offset"]
                assert place not in found, f"two records acknowledged at {place}: {found[place]}, {entry}"
                found[place] = entry["value"]
    return found


def caught_up(groups: list[ClientGroup], acknowledged: dict[tuple[int, int], str]) -> bool:
    """Whether every group has read every acknowledged record."""
    for group in groups:
        read = set()
        for process in group.processes():
            list(process.reader.more())
            for entry in process.reader.entries:
                if entry["kind"] == "read":
                    read.update((entry["partition"], offset) for offset, _ in entry["records"])
        if acknowledged.keys() - read:
            return False
    return True


def reported(group: ClientGroup, history: GroupHistory) -> str:
    """A group's figures."""
    kinds = Counter(event["kind"] for event in group.events())
    return (
        f"{group.group_id}: {len(group.processes())} processes, {kinds['barrier_joined']} generations, "
        f"{kinds['member_replaced']} static returns, {kinds['member_expired']} expired; changes {group.changes}; "
        f"stable after {max(group.idle_wait_s):.1f} s at most; "
        f"{len(history.values)} records, {history.read_again} read again after {history.counts['seek']} seeks and the "
        "rebalances; "
        f"{history.counts['commits acknowledged']} commits, {history.refused_commits or 'none'} refused; "
        f"{history.counts['committed']} looks at commits, {history.counts['paused']} pauses, "
        f"{history.counts['lost']} lost, {history.counts['error']} errors shown"
    )


@pytest.mark.timeout(int(LENGTH_S) + 300)
def test_clients_lose_nothing_and_share_nothing_while_brokers_die(rng: random.Random, tmp_path: Path) -> None:
    directory = journals_directory("clients", tmp_path)
    with Cluster(brokers=3) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        groups = [
            ClientGroup(directory, library, cluster.bootstrap, cluster.redis_url, random.Random(rng.random()))
            for library in LIBRARIES
        ]
        writers = [writer(directory, library, cluster.bootstrap) for library in LIBRARIES]
        with running(groups, writers):
            kills = run_with_kills(cluster, groups, rng)
            for process in writers:
                process.stop()
            acknowledged = acknowledged_of(writers)
            ends = time.monotonic() + CATCH_UP_S
            while not caught_up(groups, acknowledged) and time.monotonic() < ends:
                time.sleep(0.5)
            for group in groups:
                group.end_stable()
                for role in list(group.running):
                    group.stop(role)

        histories = [group.history() for group in groups]
        print(f"{kills} brokers killed in {LENGTH_S:.0f} s; {len(acknowledged)} records acknowledged")
        for group, history in zip(groups, histories, strict=True):
            print(reported(group, history))
        wrong = [failure for group in groups for failure in group.failures]
        wrong += [violation for history in histories for violation in history.violations(acknowledged)]
        wrong += [
            f"a rebalance without a cause: {event}" for group in groups for event in group.unexpected_rebalances()
        ]
        assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])
        assert len(acknowledged) > 50 * LENGTH_S, "hardly any load"
        assert not tracebacks(cluster)
        assert complaints(cluster) == []
