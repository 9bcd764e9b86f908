"""Groups rebalance all the time while their coordinators move, die and stand still, and packets get lost.

A schedule drawn from TIDEGATE_SEED says who is harmed when: brokers are killed, paused, drained and started again;
one member's packets to one broker (and back) go into a black hole; members stop their heartbeats, or inside either
barrier; members join and leave. The same members and moments come again with the same seed, as far as real
processes allow. When it is over every group must be Stable within `CALM_S`, and the history without fault.

TIDEGATE_STORM_S is how long the storm lasts (20 s).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import time
from collections import Counter
from typing import Any

from aiokafka import AIOKafkaConsumer

from bench.cluster import BrokerProcess, Cluster
from tests.chaos.test_double_barrier import SETTINGS, make_topic
from tests.kit.cluster import CONSTANTS
from tests.support.barriers import Group
from tests.support.broker_logs import complaints, tracebacks
from tests.support.proxy import BOTH, Way
from tests.support.storm_history import violations
from tests.support.storm_members import REBALANCE_MS, SESSION_MS, Lapse, StormMember

LENGTH_S = float(os.environ.get("TIDEGATE_STORM_S", "20"))
GROUPS, MEMBERS, MEMBERS_MAX = 3, 5, 8
PARTITIONS = 12
CALM_S = (SESSION_MS + 3 * REBALANCE_MS) / 1000 + 44
"""The gone are found out (a session), the round under way and the next end by their own deadlines; clients retry, which
takes 4 s on a quiet machine: the others are for answers that a loaded one gives later than clients wait."""


class Storm:
    """The cluster, the groups in it, and what is done to them."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.here: dict[str, list[StormMember]] = {f"storm-{number}": [] for number in range(GROUPS)}
        self.ever: dict[str, list[StormMember]] = {name: [] for name in self.here}
        self.done: Counter[str] = Counter()
        self._harms: set[asyncio.Task[None]] = set()
        self._harmed: set[str] = set()

    async def join(self, name: str) -> None:
        """One more member."""
        number = len(self.ever[name])
        member = StormMember(name, f"{name}-{number}", self.cluster.brokers, self.rng.randrange(1 << 32), PARTITIONS)
        self.here[name].append(member)
        self.ever[name].append(member)
        await member.start()

    async def rage(self, seconds: float) -> None:
        """One harm after another; the next often begins before the last has ended."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            harm = self.rng.choice([self._kill, self._pause, self._drain, *[self._hole] * 4, *[self._lapse] * 4])
            harm = self.rng.choice([harm, self._come_or_go]) if self.rng.random() < 0.4 else harm
            harm()
            await asyncio.sleep(self.rng.uniform(0.1, 0.7))
        if self._harms:
            await asyncio.wait(self._harms)

    def _start(self, name: str, harming: Any) -> None:
        self.done[name] += 1
        task = asyncio.create_task(harming)
        self._harms.add(task)
        task.add_done_callback(self._harms.discard)

    # -- brokers: one of them is always left alone

    def _some_broker(self) -> BrokerProcess | None:
        broker = self.rng.choice(self.cluster.brokers)
        if broker.name in self._harmed or len(self._harmed) > 1:
            return None
        self._harmed.add(broker.name)
        return broker

    def _kill(self) -> None:
        if (broker := self._some_broker()) is not None:
            self._start("kill", self._dead(broker, self.rng.uniform(0, 1.5), drained=False))

    def _drain(self) -> None:
        if (broker := self._some_broker()) is not None:
            self._start("drain", self._dead(broker, self.rng.uniform(0, 0.5), drained=True))

    def _pause(self) -> None:
        if (broker := self._some_broker()) is not None:
            self._start("pause", self._asleep(broker, self.rng.uniform(0.3, 3.0)))

    async def _dead(self, broker: BrokerProcess, seconds: float, *, drained: bool) -> None:
        if drained:
            assert await asyncio.to_thread(broker.drain) == 0
        else:
            broker.kill()
        await asyncio.sleep(seconds)
        broker.start()
        await asyncio.to_thread(broker.wait_ready)
        self._harmed.discard(broker.name)

    async def _asleep(self, broker: BrokerProcess, seconds: float) -> None:
        broker.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        broker.signal(signal.SIGCONT)
        await asyncio.to_thread(broker.wait_ready)
        self._harmed.discard(broker.name)

    # -- members

    def _some_member(self) -> StormMember:
        return self.rng.choice(self.here[self.rng.choice(sorted(self.here))])

    def _hole(self) -> None:
        member, broker = self._some_member(), self.rng.choice(self.cluster.brokers)
        ways = self.rng.choice([(Way.UP,), (Way.DOWN,), BOTH])
        self._start("black hole", self._holed(member, broker.port, ways, self.rng.uniform(0.2, 6.0)))

    async def _holed(self, member: StormMember, port: int, ways: tuple[Way, ...], seconds: float) -> None:
        member.networks[port].black_hole(*ways)
        await asyncio.sleep(seconds)
        member.networks[port].restore()

    def _lapse(self) -> None:
        lapse = self.rng.choice(list(Lapse))
        self.done[f"stops: {lapse.name.lower()}"] += 1
        self._some_member().lapse = lapse, self.rng.uniform(0.5, 6.0)

    def _come_or_go(self) -> None:
        name = self.rng.choice(sorted(self.here))
        members = self.here[name]
        if len(members) < MEMBERS_MAX and (len(members) < 3 or self.rng.random() < 0.5):
            self._start("join", self.join(name))
        else:
            self._start("leave", members.pop(self.rng.randrange(len(members))).leave())

    # -- the calm after

    async def calm(self, groups: dict[str, Group]) -> float:
        """Until each group is Stable and owns every partition once; how long it took. Raises TimeoutError."""
        for members in self.ever.values():
            for member in members:
                member.lapse = None
        began = time.monotonic()
        async with asyncio.timeout(CALM_S):
            for name, group in groups.items():
                await group.until(lambda name=name, group=group: self._whole(name, group), CALM_S)
        return time.monotonic() - began

    def _whole(self, name: str, group: Group) -> bool:
        members = self.here[name]
        for member in members:
            member.observe()
        generations = {member.synced_generation for member in members}
        owned = sorted(partition for member in members for partition in member.owned)
        return generations == {group.generation} and owned == list(range(PARTITIONS)) and group["state"] == "Stable"


def consumer(bootstrap: str) -> Any:
    """A member of the group of a real client."""
    return AIOKafkaConsumer(
        "t", bootstrap_servers=bootstrap, group_id="storm-aiokafka", session_timeout_ms=15_000, request_timeout_ms=5_000
    )


async def test_after_the_storm_every_group_is_stable_and_its_history_whole(rng: random.Random) -> None:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs every lost connection
    with Cluster(brokers=3, settings=SETTINGS, constants=CONSTANTS) as cluster:
        await make_topic(cluster.brokers[0].address)
        storm = Storm(cluster, rng)
        groups = {name: Group(cluster, name) for name in storm.here}
        consumers = [consumer(cluster.bootstrap) for _ in range(3)]
        try:
            await asyncio.gather(*(one.start() for one in consumers))
            for name in storm.here:
                for _ in range(MEMBERS):
                    await storm.join(name)
            await storm.rage(LENGTH_S)
            calm_s = await storm.calm(groups)
            await owned_once(consumers)
            checked = {name: violations(storm.ever[name], group.all_events()) for name, group in groups.items()}
            print(f"{dict(storm.done)}; calm after {calm_s:.1f} s of {CALM_S:.0f}")
            for name, group in groups.items():
                print(f"{name}: {figures(storm.ever[name], group)}")
            wrong = [f"{name}: {one}" for name, found in checked.items() for one in found]
            assert not wrong, "\n".join(wrong)
        finally:
            await asyncio.gather(*(one.stop() for one in consumers), return_exceptions=True)
            await asyncio.gather(*(member.stop() for members in storm.ever.values() for member in members))
            for group in groups.values():
                await group.close()
        assert not tracebacks(cluster)
        assert complaints(cluster) == []


async def owned_once(consumers: list[Any]) -> None:
    """The real client's group has every partition in one member's hands, in one generation. Raises TimeoutError."""
    async with asyncio.timeout(CALM_S + 15):
        while True:
            owned = sorted(tp.partition for one in consumers for tp in one.assignment())
            generations = {one._coordinator.generation for one in consumers}
            if owned == list(range(PARTITIONS)) and len(generations) == 1:
                return
            await asyncio.sleep(0.1)


def figures(members: list[StormMember], group: Group) -> str:
    """What a group went through."""
    kinds = Counter(event["kind"] for event in group.all_events())
    causes = Counter(event["cause"] for event in group.all_events() if event["kind"] == "member_expired")
    answers = Counter(f"{one.kind} {one.code.name}" for member in members for one in member.history)
    return json.dumps({"members": len(members), "events": kinds, "expired": causes, "answers": answers})
