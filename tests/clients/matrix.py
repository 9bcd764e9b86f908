"""The life of one group of one client library, and what is checked of it."""

from __future__ import annotations

import asyncio
import random
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

import redis
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from bench.client_groups import ClientGroup, Records, create_topic
from bench.clients import Client, Command, Program
from bench.cluster import Cluster
from bench.kafka_wire import MeasureFailed
from tidegate.store.keys import GroupKeys

BROKERS = 2
PARTITIONS = 7
SESSION_MS = 6_000
LEARN_S = 16.0
"""Two gaps and two probes at the default interval of 3 s, and a while with holds."""
CLOSE_MS_MAX = {"kafkajs": 8_000}
"""2.5 s but for those that, with Apache Kafka as well, wait for a long poll."""
LATE_MS_MAX = {"sarama": 30_000}
"""Of 19 records in 20: 1.5 s but for those that, with Apache Kafka as well, leave a partition alone for 10 s after
some rebalances."""
EXTRA_MAX = {"kafka-python": 1}
"""Its leader joins once more by itself after some rebalances, with holds and without."""
EXPIRED_S_MAX = 12.0
"""Session, plus a heartbeat interval until the others learn of it, plus what a busy machine takes."""
CATCH_UP_S = 30.0
FIRST, LATE, SYNC, ASYNC, STATIC, CRASHING = range(4), 4, 5, 6, 7, 8


@dataclass(slots=True)
class Outcome:
    """What one group lived through."""

    client: str
    holds: str
    joined_s: list[float] = field(default_factory=list)
    closed_ms: list[int] = field(default_factory=list)
    static_closed_ms: int | None = None
    expired_s: float = 0.0
    extra_rebalances: int = 0
    records: int = 0
    twice: int = 0
    late_ms: float = 0.0
    held: int = 0
    held_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def check(self, holds_true: bool, failure: str) -> None:
        """Note a failure."""
        if not holds_true:
            self.failures.append(failure)

    def line(self) -> str:
        """For who waits."""
        joins = " ".join(f"{took * 1e3:.0f}" for took in self.joined_s)
        return f"{self.client}, holds {self.holds}: joins {joins} ms; {self.held} held; {self.failures or 'good'}"


async def live(client: Client, command: Command, holds: str, settings: Mapping[str, str], tries: int) -> Outcome:
    """One client's group on a cluster of its own."""
    outcome = Outcome(client.name, holds)
    with Cluster(BROKERS, settings) as cluster:
        topic = group_id = client.name
        await asyncio.to_thread(create_topic, cluster.bootstrap, topic, PARTITIONS)
        group = ClientGroup(client, command, cluster.bootstrap, topic, group_id, PARTITIONS)
        life = Life(cluster, group, Records(cluster.bootstrap, topic, PARTITIONS), outcome)
        try:
            await life.live(tries)
        except MeasureFailed as error:
            outcome.failures.append(str(error))
        finally:
            await life.records.stop()
            await group.close()
        outcome.held, outcome.held_s = await asyncio.to_thread(_held, cluster)
    outcome.check((outcome.held > 0) == (client.held and holds == "on"), f"{outcome.held} heartbeats were held")
    return outcome


@dataclass(slots=True)
class Life:
    """One group, through all phases."""

    cluster: Cluster
    group: ClientGroup
    records: Records
    outcome: Outcome
    caused: int = 0
    """Rebalances that the phases caused."""
    quiet_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """When nothing happened but records, by what was before."""

    async def live(self, tries: int) -> None:
        """All phases, one after the other, and what is to be seen at the end. Raises MeasureFailed."""
        group, outcome = self.group, self.outcome
        others = await group.program()
        since_s = _now_s()
        for number in FIRST:
            group.join(others, number)
        await group.expired(since_s)
        await self.quiet("start")
        before = self.generation()
        await self.joins(others, tries)
        await self.commits(others)
        if group.client.static:
            await self.static()
        await self.crash()
        outcome.extra_rebalances = self.generation() - before - self.caused
        outcome.check(
            outcome.extra_rebalances <= EXTRA_MAX.get(outcome.client, 0),
            f"{outcome.extra_rebalances} rebalances that nobody caused; all: {self.causes()}",
        )
        await self.records.stop()
        await self.consumed()
        outcome.closed_ms += await asyncio.gather(*(group.leave(number) for number in list(group.members)))
        worst_ms = max(outcome.closed_ms)
        outcome.check(worst_ms <= CLOSE_MS_MAX.get(outcome.client, 2_500), f"a close took {worst_ms} ms")
        await asyncio.to_thread(self.committed)

    async def quiet(self, after: str) -> None:
        """Let time pass, long enough for holds to be learned and used."""
        began_s = _now_s()
        await asyncio.sleep(LEARN_S)
        self.quiet_s[after] = began_s + 2, _now_s() - 1

    async def left(self, number: int) -> int:
        """A member closes, and the others take its partitions."""
        since_s = _now_s()
        closed_ms = await self.group.leave(number)
        await self.group.expired(since_s)
        return closed_ms

    async def joins(self, others: Program, tries: int) -> None:
        """One more member joins, and leaves again."""
        for _ in range(tries):
            self.outcome.joined_s.append(await self.group.joined(others, LATE))
            await asyncio.sleep(1 + 3 * random.random())
            self.outcome.closed_ms.append(await self.left(LATE))
            await asyncio.sleep(2 + 3 * random.random())
        self.caused += 2 * tries

    async def commits(self, others: Program) -> None:
        """Members that commit after every poll, waiting for it or not, next to held heartbeats."""
        await self.group.joined(others, SYNC, "sync")
        await self.group.joined(others, ASYNC, "async")
        troubles = len(self.group.troubles)
        await self.quiet("commits")
        failed = self.group.troubles[troubles:]
        self.outcome.check(not failed, f"{len(failed)} commits failed: {failed[:3]}")
        self.outcome.closed_ms += [await self.left(SYNC), await self.left(ASYNC)]
        self.caused += 4

    async def static(self) -> None:
        """A static member crashes and comes back: no rebalance. Then it closes, which is no leave, and expires."""
        group, outcome = self.group, self.outcome
        program = await group.program()
        await group.joined(program, STATIC, "sync", "static-1")
        await self.quiet("static join")
        before = self.generation()
        await group.crash(program)
        owners = {number: observed.assigned_s for number, observed in group.members.items()}
        program = await group.program(SESSION_MS)
        group.join(program, STATIC, "sync", "static-1")
        await group.until(lambda: group.members[STATIC].assigned_s > 0, "the static member did not come back")
        await self.quiet("static restart")
        outcome.check(self.generation() == before, "a static restart was a rebalance")
        reported = {number: group.members[number].assigned_s for number in owners}
        outcome.check(owners == reported, "others noticed a static restart")
        outcome.static_closed_ms = await self.left(STATIC)
        outcome.check(
            outcome.static_closed_ms <= CLOSE_MS_MAX.get(outcome.client, 2_500),
            f"a static close took {outcome.static_closed_ms} ms",
        )
        self.caused += 2

    async def crash(self) -> None:
        """A member vanishes: it is removed when its session ends, and not much later."""
        program = await self.group.program(SESSION_MS)
        await self.group.joined(program, CRASHING, "sync")
        await self.quiet("crashing join")
        since_s = _now_s()
        await self.group.crash(program)
        self.outcome.expired_s = await self.group.expired(since_s) - since_s
        self.outcome.check(self.outcome.expired_s < EXPIRED_S_MAX, f"expired after {self.outcome.expired_s:.1f} s")
        self.caused += 2

    # -- what is to be seen

    def generation(self) -> int:
        """The group's generation."""
        keys = GroupKeys.of("tidegate", 50, "default", self.group.group_id)
        with redis.Redis.from_url(self.cluster.redis_url) as client:
            return int(client.hget(keys.group, "generation") or 0)

    def causes(self) -> list[str]:
        """Why the group rebalanced, from its events."""
        keys = GroupKeys.of("tidegate", 50, "default", self.group.group_id)
        with redis.Redis.from_url(self.cluster.redis_url) as client:
            entries = [fields for _, fields in client.xrange(keys.shard_keys.events)]
        started = [fields for fields in entries if fields[b"kind"] == b"rebalance_started"]
        return [fields[b"cause"].decode() for fields in started if fields[b"group"].decode() == keys.ref]

    async def consumed(self) -> None:
        """Every record has been consumed; those sent while nothing happened, at once."""
        sent_s, arrived_s, outcome = self.records.sent_s, self.group.arrived_s, self.outcome
        ends_s = _now_s() + CATCH_UP_S
        while len(self.group.consumed) < len(sent_s) and _now_s() < ends_s:
            await asyncio.sleep(0.1)
        outcome.records = len(sent_s)
        outcome.twice = sum(self.group.consumed.values()) - len(self.group.consumed)
        missing = [at for at in sent_s if at not in arrived_s]
        outcome.check(not missing, f"{len(missing)} records were not consumed, such as {missing[:3]}")
        for after, (first_s, last_s) in self.quiet_s.items():
            late_s = [
                arrived_s[at] - sent for at, sent in sent_s.items() if at in arrived_s and first_s <= sent < last_s
            ]
            late_ms = sorted(late_s)[len(late_s) * 95 // 100] * 1_000
            outcome.check(
                late_ms <= LATE_MS_MAX.get(outcome.client, 1_500),
                f"after {after} one record in twenty came {late_ms:.0f} ms late or later",
            )
            outcome.late_ms = max(outcome.late_ms, late_ms)

    def committed(self) -> None:
        """All have closed: what they consumed is committed."""
        sent = [0] * PARTITIONS
        for partition, _ in self.records.sent_s:
            sent[partition] += 1
        asking = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": self.group.group_id})
        wanted = [TopicPartition(self.group.topic, partition) for partition in range(PARTITIONS)]
        committed = [found.offset for found in asking.committed(wanted, timeout=30)]
        asking.close()
        self.outcome.check(committed == sent, f"committed {committed} of {sent}")


def _now_s() -> float:
    return asyncio.get_running_loop().time()


# -- what the cluster says


def _held(cluster: Cluster) -> tuple[int, float]:
    """How many heartbeats were held, and for how long each on average."""
    count = total = 0.0
    for broker in cluster.brokers:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/metrics", timeout=10) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        for family in families:
            if family.name == "tidegate_heartbeat_delayed_seconds":
                count += sum(sample.value for sample in family.samples if sample.name.endswith("_count"))
                total += sum(sample.value for sample in family.samples if sample.name.endswith("_sum"))
    return int(count), total / count if count else 0.0
