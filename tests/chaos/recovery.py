"""`python -m tests.chaos.recovery`: how long a lost Redis primary stops clients, and what was acknowledged and lost.

Three brokers; six partitions and six groups of one member each, spread over the shards, are used without a pause while
a primary dies or hands over. An outage is the longest time between two answers without an error to one client; a figure
has the longest of all clients of a kind, as median (and maximum) of the rounds. Beside it: when Redis itself had a
primary again. Prints Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from kio.schema.errors import ErrorCode

from bench.cluster import Cluster
from tests.kit.member import Member
from tests.kit.wire import RawClient
from tests.support.log_broker import produce_request
from tests.support.logs import batch_bytes
from tests.support.redis_cluster import Sharded
from tests.support.sentinels import Watched
from tests.support.valkey import ValkeyServer

TOPIC: Final = "recovery"
COUNT: Final = 6
DOWN_AFTER_MS: Final = 3_000
"""`down-after-milliseconds` of sentinels, `cluster-node-timeout` of nodes."""
_KEEPING: Final = ("--appendonly", "yes", "--appendfsync", "everysec")
_CALM_S: Final = 3.0
_PAUSE_S: Final = 0.01
_RETRY_S: Final = 0.05
_ANSWER_S: Final = 60.0
_SESSION_MS: Final = 60_000
_PLACE_LOST: Final = (ErrorCode.rebalance_in_progress, ErrorCode.unknown_member_id, ErrorCode.illegal_generation)

Harm = Callable[[], float]
"""Returns once Redis has a primary again: after how many seconds."""


@dataclass
class Client:
    """One connection that asks the same again and again."""

    kind: str
    connection: RawClient
    address: str
    ask: Callable[[], Awaitable[ErrorCode]]
    answered_s: list[float] = field(default_factory=list)
    """When an answer without an error came."""

    async def live(self, over: asyncio.Event) -> None:
        """Until then; the last answer is waited for."""
        while not over.is_set():
            try:
                code = await self.ask()
            except (OSError, asyncio.IncompleteReadError):  # brokers share connections out again after a fail-over
                await self._connect_again()
                continue
            if code is ErrorCode.none:
                self.answered_s.append(time.monotonic())
                await asyncio.sleep(_PAUSE_S)
            else:
                await asyncio.sleep(_RETRY_S)

    async def _connect_again(self) -> None:
        self.connection.writer.close()
        fresh = await RawClient.connect(self.address)
        self.connection.reader, self.connection.writer = fresh.reader, fresh.writer

    def outage_s(self, begin_s: float) -> float:
        """The longest time without such an answer since then."""
        times = [begin_s, *(one for one in self.answered_s if one > begin_s)]
        return max(after - before for before, after in pairwise(times))


class Clients:
    """All clients of a cluster, and what was acknowledged to them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.clients: list[Client] = []
        self.acknowledged = [0] * COUNT
        """By partition: how many records, numbered from 0."""
        self.commits_lost = 0
        self.rebalances = 0

    async def start(self, stack: AsyncExitStack) -> None:
        """Make the topic and the groups, and connect."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(TOPIC, COUNT, 1)])
        await admin.close()
        for index in range(COUNT):
            address = self.cluster.brokers[index % len(self.cluster.brokers)].address
            of_records, of_commits, of_heartbeats = [
                await stack.enter_async_context(await RawClient.connect(address)) for _ in range(3)
            ]
            member = Member(of_commits, f"recovery-{index}", session_timeout_ms=_SESSION_MS)
            await member.round()
            self.clients += [
                Client("records", of_records, address, self._producing(of_records, index)),
                Client("commits", of_commits, address, self._committing(member)),
                Client("heartbeats", of_heartbeats, address, _heartbeats(of_heartbeats, member)),
            ]

    def _producing(self, client: RawClient, partition: int) -> Callable[[], Awaitable[ErrorCode]]:
        async def ask() -> ErrorCode:
            batch = batch_bytes(value=b"%d" % self.acknowledged[partition])
            answer = await client.ask(produce_request([(TOPIC, [(partition, batch)])]), _ANSWER_S)
            code: ErrorCode = answer.responses[0].partition_responses[0].error_code
            self.acknowledged[partition] += code is ErrorCode.none
            return code

        return ask

    def _committing(self, member: Member) -> Callable[[], Awaitable[ErrorCode]]:
        """Commits the next offset, after a look at the last: it must not have gone back."""
        acknowledged = -1

        async def ask() -> ErrorCode:
            nonlocal acknowledged
            try:
                found = (await member.committed(TOPIC, [0], _ANSWER_S))[0]
            except AssertionError:
                return ErrorCode.coordinator_not_available
            self.commits_lost += max(0, acknowledged - found)
            acknowledged = max(found, 0)
            code = (await member.commit(TOPIC, {0: acknowledged + 1}, _ANSWER_S))[0]
            if code is ErrorCode.none:
                acknowledged += 1
            elif code in _PLACE_LOST:
                self.rebalances += 1
                await member.round()
            return code

        return ask

    async def round(self, harm: Harm) -> dict[str, float]:
        """Harm under load: seconds until Redis had a primary, and the outage of each kind."""
        over = asyncio.Event()
        tasks = [asyncio.create_task(client.live(over)) for client in self.clients]
        await asyncio.sleep(_CALM_S)
        begin_s = time.monotonic()
        took = {"Redis": await asyncio.to_thread(harm)}
        ends_s = time.monotonic() + _ANSWER_S
        while waiting := [one.kind for one in self.clients if one.answered_s[-1] < begin_s + took["Redis"]]:
            assert time.monotonic() < ends_s, f"not served again: {waiting}"
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.1)
        await asyncio.sleep(_CALM_S)
        over.set()
        await asyncio.gather(*tasks)
        for client in self.clients:
            took[client.kind] = max(took.get(client.kind, 0.0), client.outage_s(begin_s))
        return took

    async def records_lost(self) -> int:
        """How many acknowledged records are not in the log."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.cluster.bootstrap)
        await consumer.start()
        partitions = [TopicPartition(TOPIC, index) for index in range(COUNT)]
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        found: list[set[int]] = [set() for _ in range(COUNT)]
        async with asyncio.timeout(_ANSWER_S):
            while any([await consumer.position(tp) < ends[tp] for tp in partitions]):
                for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                    found[tp.partition].update(int(record.value) for record in records)
        await consumer.stop()
        return sum(len(set(range(count)) - one) for count, one in zip(self.acknowledged, found, strict=True))


def _heartbeats(client: RawClient, member: Member) -> Callable[[], Awaitable[ErrorCode]]:
    """Of the member as it is now, on another connection."""

    async def ask() -> ErrorCode:
        now = Member(client, member.group_id, member_id=member.member_id, generation=member.generation)
        return await now.heartbeat()

    return ask


# -- what happens to Redis


@contextmanager
def restarted() -> Iterator[tuple[str, Harm]]:
    """One server is killed, and started at once."""
    server = ValkeyServer(_KEEPING)

    def harm() -> float:
        begin_s = time.monotonic()
        server.kill()
        server.start()
        return time.monotonic() - begin_s

    try:
        yield server.url, harm
    finally:
        server.stop()


@contextmanager
def sentinel(*, is_killed: bool) -> Iterator[tuple[str, Harm]]:
    """Sentinels put a replica in the primary's place: it was killed, or they were asked to."""
    with Watched(replicas=2, extra=_KEEPING, down_after_ms=DOWN_AFTER_MS) as watched:

        def harm() -> float:
            watched.wait_in_sync()
            begin_s, primary = time.monotonic(), watched.primary()
            if not is_killed:
                watched.fail_over()
                return time.monotonic() - begin_s
            primary.kill()
            watched.wait_for_another(primary.port)
            took_s = time.monotonic() - begin_s
            primary.start()
            return took_s

        yield watched.url, harm


@contextmanager
def cluster(*, is_killed: bool) -> Iterator[tuple[str, Harm]]:
    """A replica takes the place of one of three primaries: it was killed, or the replica was asked to."""
    with Sharded(replicas=1, extra=_KEEPING, timeout_ms=DOWN_AFTER_MS) as sharded:

        def harm() -> float:
            sharded.in_sync()
            primary = sharded.primaries()[0]
            begin_s = time.monotonic()
            if not is_killed:
                sharded.hand_over(primary)
                return time.monotonic() - begin_s
            primary.kill()
            sharded.fail_over(primary)
            took_s = time.monotonic() - begin_s
            primary.start()
            return took_s

        yield sharded.url, harm


FAULTS: Final[dict[str, tuple[Callable[[], AbstractContextManager[tuple[str, Harm]]], int]]] = {
    "one server is killed and restarted": (restarted, 0),
    "Sentinel, the primary is killed": (partial(sentinel, is_killed=True), 1),
    "Sentinel, a requested fail-over": (partial(sentinel, is_killed=False), 2),
    "Cluster, a primary is killed": (partial(cluster, is_killed=True), 1),
    "Cluster, a requested fail-over": (partial(cluster, is_killed=False), 1),
}
"""What it is, and the replicas that docs/durability.md says to wait for; 0: the disk."""


async def measured(name: str, is_replicated: bool, rounds: int) -> str:
    """One row of the table."""
    fault, replicas = FAULTS[name]
    durability = ("fsynced" if not replicas else f"replicated:{replicas}") if is_replicated else "memory"
    # A replica that was the primary is not in step at once.
    settings = {"TIDEGATE_DURABILITY": durability, "TIDEGATE_DURABILITY_TIMEOUT_MS": "30000"}
    with fault() as (url, harm), Cluster(brokers=3, settings=settings, redis_url=url) as brokers:
        clients = Clients(brokers)
        async with AsyncExitStack() as stack:
            await clients.start(stack)
            found = [await clients.round(harm) for _ in range(rounds)]
        lost = await clients.records_lost()
    columns = [_figures([one[kind] for one in found]) for kind in ("Redis", "records", "commits", "heartbeats")]
    counts = [f"{lost} of {sum(clients.acknowledged)}", clients.commits_lost, clients.rebalances]
    return f"| {name} | {durability} | {' | '.join([*columns, *map(str, counts)])} |"


def _figures(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({max(seconds):.1f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.recovery", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of each fault (default 5)")
    parser.add_argument("--only", default="", help="faults whose name has this")
    options = parser.parse_args()
    print("| Fault | durability | Redis | records | commits | heartbeats | records lost | commits lost | rebalances |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in FAULTS:
        if options.only in name:
            for is_replicated in (False, True):
                print(asyncio.run(measured(name, is_replicated, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
