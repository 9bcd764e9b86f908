"""One fault injector for clusters of real processes: kinds of faults, drawn from a seed, one after the other.

Every fault ends by itself, and `heal` ends what is left, so that what must hold when all is over can be asked.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tests.kit.cluster import STARTED_S, FaultyCluster, Node
from tests.kit.history import FailOver, now_ns
from tests.kit.removals import ClockStep
from tests.support.proxy import BOTH, LinkFault, Proxy, Way

Fault = Callable[[], Awaitable[None]]
STALLS_S: Final = ((0.3, 2.0), (0.3, 2.0), (5.2, 8.0))
"""A command to Redis may take 5 s, and a connection to it 2 s: some stalls are longer than both, and than sessions."""
LONG_STOP_S: Final = (21.0, 26.0)
"""Above every time-out: 20 s of replicated durability, 10 s of readers, of requests and of brokers' leases."""
LONG_STOPS: Final = 0.4
"""How many of the runs that are long enough have such a stop, of a broker or of Redis."""
REDIS_STOPS_FROM_S: Final = 60.0
"""Of a shorter run a long stop of Redis would leave little."""
REST_S: Final = (0.2, 1.5)
TOGETHER: Final = 0.4
"""How often the next fault begins while one is on."""
CLOCK_STEPS_S: Final = (-120, -30, 30, 120, 8 * 86_400)
RESTORED: Final = ("meta", "times", "producers", "protocols", "sessions", "groups", "deadlines")
"""Kinds of keys that brokers restore from others when one is deleted."""
_REDIS: Final = "redis"
_BROKER_FOR_LONG: Final = "broker stopped for long"
_REDIS_FOR_LONG: Final = "redis stopped for long"


class AllBusy(Exception):
    """Something else is done to everything that a fault could be done to."""


class NothingDone(Exception):
    """There was nothing to do the fault to."""


@dataclass(frozen=True, slots=True)
class LongStop:
    """One stop of a run above every time-out: when it begins after the run, and how long it lasts."""

    kind: str
    after_s: float
    for_s: float


def long_stop(rng: random.Random, seconds: float) -> LongStop | None:
    """The one of a run with faults for so long, if it has one: it is over when they are."""
    left_s = seconds - LONG_STOP_S[1]
    if left_s < 0 or rng.random() >= LONG_STOPS:
        return None
    kinds = (_BROKER_FOR_LONG, _REDIS_FOR_LONG) if seconds >= REDIS_STOPS_FROM_S else (_BROKER_FOR_LONG,)
    return LongStop(rng.choice(kinds), rng.uniform(0, left_s), rng.uniform(*LONG_STOP_S))


class Faults:
    """Draws faults for one cluster from `rng` (of some kinds `only`, else of all), and counts them by kind.

    `slots` are those that may move in a Redis Cluster.
    """

    def __init__(
        self, cluster: FaultyCluster, rng: random.Random, only: Collection[str] = (), slots: Sequence[int] = ()
    ) -> None:
        self.cluster, self.rng, self.slots = cluster, rng, slots
        self.counts: Counter[str] = Counter()
        self.log: list[str] = []
        """What was done when, in s since the beginning."""
        self.redis_steps: list[ClockStep] = []
        self.failovers: list[FailOver] = []
        self._began = time.monotonic()
        self._busy: set[Any] = set()
        kinds, self._only = self._possible(), only
        self._kinds = {name: kinds[name] for name in only or kinds}

    @property
    def kinds(self) -> Set[str]:
        """What may be drawn."""
        return self._kinds.keys()

    def _possible(self) -> dict[str, tuple[Fault, int]]:
        """Kind -> what does it, and how often it is drawn."""
        kinds: dict[str, tuple[Fault, int]] = {
            "broker killed": (self._kill_broker, 3),
            "broker stopped": (self._stop_broker, 3),
            "clients cut off": (self._cut_clients, 2),
            "client link a black hole": (self._hole_clients, 2),
            "client link slow": (self._slow_clients, 1),
            "memory full": (self._fill_memory, 1),
            "key deleted": (self._delete_key, 2),
            "redis stopped": (self._stop_redis, 2),
            "redis stalled": (self._stall_redis, 1),
        }
        if self.cluster.is_replicated:
            kinds["primary killed"] = self._kill_primary, 3
            kinds["fail-over asked for"] = self._fail_over, 2
            if self.cluster.is_sharded:
                kinds["slot moved"] = self._move_slot, 2
                kinds["slot moved atomically"] = self._move_slot_atomically, 2
        else:
            kinds["redis killed"] = self._kill_redis, 3
            kinds["redis link cut"] = self._cut_redis, 3
            kinds["redis link a black hole"] = self._hole_redis, 2
            kinds["redis link slow"] = self._slow_redis, 1
        if self.cluster.has_stepped_clocks:
            kinds["broker's clock stepped"] = self._step_broker, 3
            if self.cluster.has_stepped_redis:
                kinds["redis's clock stepped"] = self._step_redis, 2
        return kinds

    async def rage(self, seconds: float) -> None:
        """One fault after another for so long, some of them together; returns when all are over."""
        ends = time.monotonic() + seconds
        running: set[asyncio.Future[None]] = set()
        stop = None if self._only else long_stop(random.Random(self.rng.random()), seconds)
        stopping = asyncio.ensure_future(self._stop_for_long(stop))
        while time.monotonic() < ends:
            name = self.rng.choices(list(self._kinds), [weight for _, weight in self._kinds.values()])[0]
            running.add(asyncio.ensure_future(self._do(name)))
            if self.rng.random() >= TOGETHER:
                await asyncio.gather(*running)
                running.clear()
            await asyncio.sleep(self.rng.uniform(*REST_S))
        await asyncio.gather(stopping, *running)
        await self.heal()

    async def _stop_for_long(self, stop: LongStop | None) -> None:
        """As soon as nothing else is done to what is stopped."""
        if stop is not None:
            await asyncio.sleep(stop.after_s)
            what = self._stop_broker_for if stop.kind == _BROKER_FOR_LONG else self._stop_redis_for
            while not self.counts[stop.kind]:
                await self._count(stop.kind, what(stop.for_s))
                await asyncio.sleep(0.1)

    async def _do(self, name: str) -> None:
        await self._count(name, self._kinds[name][0]())

    async def _count(self, name: str, fault: Awaitable[None]) -> None:
        began = time.monotonic()
        with suppress(AllBusy, NothingDone):
            await fault
            self.counts[name] += 1
            self._note(f"{name}, for {time.monotonic() - began:.2f} s")

    def _stall_s(self) -> float:
        return self.rng.uniform(*self.rng.choice(STALLS_S))

    def _note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:6.2f} {text}")

    async def heal(self) -> None:
        """Nothing is wrong any more, and every broker is ready."""
        self._note("healed")
        await self.cluster.set_memory_limit(0)
        for proxy in self.cluster.proxies:
            proxy.restore()
            proxy.delay_s = 0.0
        for node in self.cluster.nodes:
            await asyncio.to_thread(node.process.wait_ready, STARTED_S)

    def _claim(self, what: Sequence[Any]) -> Any:
        """One of these that nothing else is done to at present. Raises AllBusy."""
        free = [one for one in what if one not in self._busy]
        if not free:
            raise AllBusy
        claimed = self.rng.choice(free)
        self._busy.add(claimed)
        return claimed

    # -- brokers

    async def _kill_broker(self) -> None:
        node: Node = self._claim(self.cluster.nodes)
        node.process.kill()
        await asyncio.sleep(self.rng.uniform(0, 2))
        node.process.start()
        await self._started(node)

    async def _started(self, node: Node) -> None:
        """It is ready; one that could not start while Redis was away is started again, as by a supervisor."""
        for _ in range(20):
            try:
                await asyncio.to_thread(node.process.wait_ready, 30)
                break
            except RuntimeError:
                if node.process.process is not None and node.process.process.poll() is not None:
                    node.process.kill()
                    node.process.start()
        self._busy.discard(node)

    async def _stop_broker(self) -> None:
        await self._stop_broker_for(self._stall_s())

    async def _stop_broker_for(self, seconds: float) -> None:
        node: Node = self._claim(self.cluster.nodes)
        node.process.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        node.process.signal(signal.SIGCONT)
        self._busy.discard(node)

    async def _step_broker(self) -> None:
        node = self.rng.choice(self.cluster.nodes)
        step_s = self.rng.choice(CLOCK_STEPS_S)
        self._note(f"  {node.process.name} {step_s:+} s")
        node.step_clock(step_s)

    # -- Redis

    async def _delete_key(self) -> None:
        kind = self.rng.choice(RESTORED)
        was_there, what = await asyncio.to_thread(self.cluster.delete_key, kind, self.rng)
        self._note(f"  {what}")
        if not was_there:
            raise NothingDone

    async def _kill_redis(self) -> None:
        self._claim([_REDIS])
        self.cluster.kill_server()
        await asyncio.sleep(self.rng.uniform(0.1, 4))
        await asyncio.to_thread(self.cluster.start_server)
        self._busy.discard(_REDIS)

    async def _stop_redis(self) -> None:
        await self._stop_redis_for(self._stall_s())

    async def _stall_redis(self) -> None:
        await self._stop_redis_for(self.rng.uniform(*STALLS_S[-1]))

    async def _stop_redis_for(self, seconds: float) -> None:
        self._claim([_REDIS])
        pid, began = self.cluster.primary_pid(self.rng), now_ns()
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
        await self.cluster.wait_in_sync()
        if self.cluster.is_replicated:
            self.failovers.append(FailOver(began, now_ns()))
        self._busy.discard(_REDIS)

    async def _kill_primary(self) -> None:
        await self._replace_primary(killed=True)

    async def _fail_over(self) -> None:
        await self._replace_primary(killed=False)

    async def _replace_primary(self, *, killed: bool) -> None:
        self._claim([_REDIS])
        began = now_ns()
        await self.cluster.replace_primary(killed, self.rng)
        self.failovers.append(FailOver(began, now_ns()))
        self._busy.discard(_REDIS)

    async def _move_slot(self) -> None:
        await self._move(atomically=False)

    async def _move_slot_atomically(self) -> None:
        await self._move(atomically=True)

    async def _move(self, *, atomically: bool) -> None:
        """One of those that clients use."""
        self._claim([_REDIS])
        slot = self.rng.choice(self.slots)
        self._note(f"  slot {slot}")
        await self.cluster.move_slot(slot, atomically, self.rng)
        self._busy.discard(_REDIS)

    async def _fill_memory(self) -> None:
        self._claim([_REDIS])
        await self.cluster.set_memory_limit(1)
        await asyncio.sleep(self.rng.uniform(0.5, 4))
        await self.cluster.set_memory_limit(0)
        self._busy.discard(_REDIS)

    async def _step_redis(self) -> None:
        step_s = self.rng.choice(CLOCK_STEPS_S[:-1])
        self._note(f"  redis {step_s:+} s")
        self.redis_steps.append(ClockStep(now_ns(), step_s * 1_000_000_000))
        self.cluster.step_redis_clock(step_s)

    # -- links

    async def _cut_redis(self) -> None:
        for _ in range(self.rng.randrange(1, 12)):
            node = self.rng.choice(self.cluster.nodes)
            node.redis_link.cut(self.rng.choice(list(LinkFault)))
            await asyncio.sleep(self.rng.uniform(0, 0.3))

    async def _hole_redis(self) -> None:
        await self._hole([node.redis_link for node in self.cluster.nodes])

    async def _slow_redis(self) -> None:
        await self._slow([node.redis_link for node in self.cluster.nodes])

    async def _cut_clients(self) -> None:
        for _ in range(self.rng.randrange(1, 8)):
            node = self.rng.choice(self.cluster.nodes)
            node.client_link.cut(self.rng.choice(list(LinkFault)))
            await asyncio.sleep(self.rng.uniform(0, 0.3))

    async def _hole_clients(self) -> None:
        await self._hole([node.client_link for node in self.cluster.nodes])

    async def _slow_clients(self) -> None:
        await self._slow([node.client_link for node in self.cluster.nodes])

    async def _hole(self, links: Sequence[Proxy]) -> None:
        link: Proxy = self._claim(links)
        link.black_hole(*self.rng.choice([(Way.UP,), (Way.DOWN,), BOTH]))
        await asyncio.sleep(self._stall_s())
        link.restore()
        self._busy.discard(link)

    async def _slow(self, links: Sequence[Proxy]) -> None:
        link: Proxy = self._claim(links)
        link.delay_s = self.rng.uniform(0.02, 0.4)
        await asyncio.sleep(self.rng.uniform(1, 5))
        link.delay_s = 0.0
        self._busy.discard(link)
