"""Kinds of trouble that consumer groups get into, made on real brokers, and what `tidegate group explain` says of each.

`python -m bench.stuck` makes them all at once and prints the answers, as docs/explain.md shows them; names choose some.
The tests make the same and hold `explain` to the kind of finding that each is to have.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.cluster import CONNECTIONS_STAY, REPOSITORY, Cluster
from bench.stuck_member import Member

SETTINGS: Final = {
    "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "300",
    "TIDEGATE_BROKER_LEASE_TIMEOUT_MS": "60000",  # brokers stay, however slow the machine
    "TIDEGATE_GROUP_MIN_SESSION_TIMEOUT_MS": "500",  # a crash is to be noticed in a second, not in six
    "TIDEGATE_AUTO_CREATE_TOPICS_ENABLE": "false",
}
TOPICS: Final = {"orders": 4, "payments": 2}
RECORDS: Final = 400


Scenario = Callable[["Stage"], Coroutine[Any, Any, str]]
"""Makes one kind of trouble and leaves it standing; the group that has it."""


@dataclass(slots=True)
class Stage:
    """A cluster, and whoever plays on it; a context manager."""

    cluster: Cluster
    members: list[Member] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def address(self) -> str:
        """One broker; any serves all."""
        return self.cluster.brokers[0].address

    @property
    def admin(self) -> str:
        """The admin HTTP of another."""
        return f"http://127.0.0.1:{self.cluster.brokers[-1].admin_port}"

    async def __aenter__(self) -> Stage:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()])
        await admin.close()
        async with AIOKafkaProducer(bootstrap_servers=self.cluster.bootstrap) as producer:
            for number in range(RECORDS):
                await producer.send("orders", str(number).encode(), partition=number % TOPICS["orders"])
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for member in self.members:
            member.close()
        await asyncio.sleep(0.1)  # what is closed is gone a turn of the loop later

    async def member(self, group_id: str, name: str, **traits: object) -> Member:
        """A member to be, on its own connections."""
        member = await Member.connect(self.address, group_id, name, **traits)
        self.members.append(member)
        return member

    async def stable(self, group_id: str, *names: str, **traits: object) -> list[Member]:
        """Members of a new group that share one generation."""
        members = [await self.member(group_id, name, **traits) for name in names]
        following = [asyncio.ensure_future(member.follow()) for member in members]
        while -1 in (synced := {member.synced for member in members}) or len(synced) > 1:
            await asyncio.sleep(0.05)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        return members

    def play(self, *work: Coroutine[Any, Any, None]) -> None:
        """What runs in the background, until the end."""
        self.tasks += [asyncio.ensure_future(one) for one in work]

    def healthy(self, *members: Member) -> None:
        """Members that follow commands."""
        self.play(*(member.follow() for member in members))


# -- barriers that stay open


async def silent_member(stage: Stage) -> str:
    """One of three members hangs as a fourth joins."""
    a, b, _ = await stage.stable("silent-member", "web-1", "web-2", "web-3", session_timeout_ms=300_000)
    late = await stage.member("silent-member", "web-4", session_timeout_ms=300_000)
    stage.healthy(a, b)
    stage.play(late.round())
    await asyncio.sleep(6)
    return "silent-member"


async def busy_member(stage: Stage) -> str:
    """One of three members heartbeats and does not poll as a fourth joins."""
    a, b, busy = await stage.stable("busy-member", "etl-1", "etl-2", "etl-3")
    late = await stage.member("busy-member", "etl-4")
    stage.healthy(a, b)
    stage.play(busy.keep_heartbeating(), late.round())
    await asyncio.sleep(6)
    return "busy-member"


async def half_joined(stage: Stage) -> str:
    """A client asks for a member id and does not come back with it, while the group rebalances."""
    a, b = await stage.stable("half-joined", "web-1", "web-2")
    gone = await stage.member("half-joined", "web-3", session_timeout_ms=300_000)
    await gone.ask_for_id()
    stage.healthy(a, b)
    stage.play((await stage.member("half-joined", "web-4")).round())
    await asyncio.sleep(6)
    return "half-joined"


async def hanging_leader(stage: Stage) -> str:
    """The leader joins, heartbeats and hands in no assignment."""
    members = [await stage.member("hanging-leader", name) for name in ("app-1", "app-2", "app-3")]
    joined = await asyncio.gather(*(member.join() for member in members))
    for member, answer in zip(members, joined, strict=True):
        stage.play(member.keep_heartbeating())
        if not member.is_leader:
            stage.play(member.wait_for_assignment(answer))
    await asyncio.sleep(6)
    return "hanging-leader"


async def unsynced_member(stage: Stage) -> str:
    """A member joins, and never asks for what the leader assigned to it."""
    members = [await stage.member("unsynced-member", name, session_timeout_ms=300_000) for name in ("app-1", "app-2")]
    joined = await asyncio.gather(*(member.join() for member in members))
    for member, answer in zip(members, joined, strict=True):
        if member.is_leader:
            await member.sync(answer)
            stage.play(member.keep_heartbeating())
    await asyncio.sleep(6)
    return "unsynced-member"


# -- what happens again and again


async def failing_leader(stage: Stage) -> str:
    """A leader whose assignor fails: it joins, never syncs, is removed and joins again."""
    failing = await stage.member("failing-leader", "pod-a", rebalance_timeout_ms=1_500)
    for _ in range(3):
        failing.member_id = ""
        await failing.join()
        await asyncio.sleep(3)
    return "failing-leader"


async def failing_member(stage: Stage) -> str:
    """The same of a follower: the others have to rebalance each time."""
    (steady,) = await stage.stable("failing-member", "pod-a", rebalance_timeout_ms=4_000)
    stage.healthy(steady)
    failing = await stage.member("failing-member", "pod-b", rebalance_timeout_ms=4_000)
    for _ in range(3):
        failing.member_id = ""
        await failing.join()
        await asyncio.sleep(5)
    return "failing-member"


async def crash_loop(stage: Stage) -> str:
    """A process dies without leaving, and is started again, over and over."""
    stage.healthy(*await stage.stable("crash-loop", "pod-a", "pod-b"))
    for _ in range(3):
        crashing = await stage.member("crash-loop", "pod-c", session_timeout_ms=2_000)
        await crashing.round()
        crashing.close()
        await asyncio.sleep(3.5)
    return "crash-loop"


async def same_instance(stage: Stage) -> str:
    """Two processes have one group.instance.id, and fence each other."""
    stage.healthy(*await stage.stable("same-instance", "pod-a", instance_id="shard-0"))
    for name in ("pod-b", "pod-c") * 2:
        twin = await stage.member("same-instance", name, instance_id="shard-1")
        await twin.round()
        await asyncio.sleep(0.5)
    return "same-instance"


async def restless_leader(stage: Stage) -> str:
    """A leader that finds its metadata changed all the time."""
    leader, other = sorted(await stage.stable("restless-leader", "app-1", "app-2"), key=lambda one: not one.is_leader)
    stage.healthy(other)
    for number in range(4):
        await leader.round(f"cached metadata has changed from (version{number}) to (version{number + 1})")
        await asyncio.sleep(0.5)
    stage.healthy(leader)
    return "restless-leader"


async def poll_timeouts(stage: Stage) -> str:
    """A client that leaves by itself because its thread does not poll, and comes back when it does."""
    (steady,) = await stage.stable("poll-timeouts", "etl-1")
    stage.healthy(steady)
    for _ in range(3):
        slow = await stage.member("poll-timeouts", "etl-2")
        await slow.round()
        await asyncio.sleep(0.3)
        await slow.leave("consumer poll timeout has expired.")
        await asyncio.sleep(0.5)
    return "poll-timeouts"


# -- records that wait although no barrier is open


async def no_commits(stage: Stage) -> str:
    """A member heartbeats and is busy with one record for longer than it should."""
    a, busy = await stage.stable("no-commits", "etl-1", "etl-2")
    stage.healthy(a)
    stage.play(busy.keep_heartbeating())
    await asyncio.sleep(16)
    return "no-commits"


async def nobody_left(stage: Stage) -> str:
    """A real consumer reads a part and is stopped for good."""
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=stage.address,
        group_id="nobody-left",
        client_id="billing-1",
        auto_offset_reset="earliest",
        enable_auto_commit=False,  # aiokafka 0.14 never ends a last commit whose connection is closed while it stops
        max_poll_records=10,
    )
    async with consumer:
        await consumer.getone()
        await consumer.commit()
    return "nobody-left"


async def too_many_members(stage: Stage) -> str:
    """Three members share two partitions."""
    traits = {"topics": ("payments",), "partitions": 2, "end": 0}
    stage.healthy(*await stage.stable("too-many-members", "pod-1", "pod-2", "pod-3", **traits))
    return "too-many-members"


async def missing_topic(stage: Stage) -> str:
    """A subscription with a typing error."""
    traits = {"topics": ("odrers",), "partitions": 0}
    stage.healthy(*await stage.stable("missing-topic", "shop-1", **traits))
    return "missing-topic"


SCENARIOS: Final[dict[Scenario, str]] = {
    silent_member: "join_barrier_open",
    busy_member: "long_processing",
    half_joined: "ids_not_used",
    hanging_leader: "sync_barrier_open",
    unsynced_member: "not_synced",
    failing_leader: "leader_never_syncs",
    failing_member: "never_syncs",
    crash_loop: "crash_loop",
    same_instance: "static_flapping",
    restless_leader: "rebalance_loop",
    poll_timeouts: "long_processing",
    no_commits: "long_processing",
    nobody_left: "empty_with_lag",
    too_many_members: "idle_members",
    missing_topic: "topic_missing",
}
"""What is made, and the finding that names it."""


def tidegate(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, as people type it."""
    command = [sys.executable, "-m", "tidegate", *words]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)


async def run(names: Sequence[str]) -> None:
    """Make all the trouble at once, then ask about each."""
    with Cluster(brokers=2, settings=SETTINGS, constants=CONNECTIONS_STAY) as cluster:
        async with Stage(cluster) as stage:
            chosen = [scenario for scenario in SCENARIOS if not names or scenario.__name__ in names]
            groups = await asyncio.gather(*(scenario(stage) for scenario in chosen))
            for scenario, group_id in zip(chosen, groups, strict=True):
                asked = ["group", "explain", group_id]
                answer = await asyncio.to_thread(tidegate, *asked, "--admin", stage.admin)
                print(
                    f"## {scenario.__doc__}\n\n```\n$ tidegate {' '.join(asked)}\n{answer.stdout}{answer.stderr}```\n"
                )


def main() -> None:
    """Arguments, then the play."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *(scenario.__name__ for scenario in SCENARIOS)])
    asyncio.run(run(parser.parse_args().names))


if __name__ == "__main__":
    main()
