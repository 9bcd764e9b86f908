"""Seeded faults. The gentle ones come one at a time and must cost no living member its place; rough ones may.

A fault takes its random numbers from the plan's own generator, so that a run replays from its seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.brokers import Broker
from tests.simulation.redis_link import LOST_SHARE, RedisLink
from tidegate.store.scripts import registered

if TYPE_CHECKING:
    from tests.simulation.world import World

RECOVERY_S: Final = 8.0
"""Between two gentle faults at least: a member needs one heartbeat through."""
ROUGH_RECOVERY_S: Final = 45.0
"""After a rough fault: until nobody's session ends because of it any more."""
PAUSE_MAX_S: Final = 3.5
"""Less than the shortest session timeout less its heartbeat interval."""
_APPEND: Final = b"XADD"
_STRUCK: Final = (
    "groups/join_group",
    "groups/sync_group",
    "groups/heartbeat",
    "groups/leave_group",
    "groups/read_group_status",
    "groups/commit_offsets",
    "XADD",
    "XADD",
)
_LINK_WAITS_S: Final = 6.0


class Faults:
    """What happens to the cluster."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self._gentle: list[Callable[[], Awaitable[None]]] = [
            self.kill,
            self.kill,
            self.kill_at_script,
            self.kill_at_script,
            self.vanish,
            self.pause,
            self.drain,
            self.cut_link_at_script,
            self.cut_link_at_script,
            self.cut_links,
            self.stall,
            self.slow_redis,
            self.lose_messages,
            self.slow_network,
            self.cut_connections,
            self.cut_connections,
        ]
        self._rough: list[Callable[[], Awaitable[None]]] = [
            self.kill_all,
            self.redis_away,
            self.long_pause,
            self.long_stall,
        ]

    async def gentle(self) -> None:
        """One gentle fault, and its recovery."""
        history, fault = self.world.history, self.rng.choice(self._gentle)
        impedes = fault != self.lose_messages
        if impedes:
            history.impeded.append((self.world.loop.now, float("inf")))
        await fault()
        if impedes:
            began_s, _ = history.impeded.pop()
            history.impeded.append((began_s, self.world.loop.now + RECOVERY_S / 2))
        await asyncio.sleep(RECOVERY_S + self.rng.expovariate(1 / 4))

    async def rough(self) -> None:
        """Some rough faults, one in the other."""
        history = self.world.history
        for _ in range(self.rng.randrange(1, 4)):
            history.lenient_until_s = float("inf")
            await self.rng.choice(self._rough)()
            await asyncio.sleep(self.rng.uniform(0, 5))
        history.lenient_until_s = self.world.loop.now + ROUGH_RECOVERY_S
        await asyncio.sleep(ROUGH_RECOVERY_S)

    def _broker(self) -> Broker:
        return self.rng.choice(self.world.brokers)

    async def _back(self, broker: Broker) -> None:
        broker.start()
        while not broker.ready:
            await asyncio.sleep(0.1)

    # -- gentle

    async def kill(self) -> None:
        broker = self._broker()
        self.world.history.fault("broker killed", str(broker.port))
        broker.kill()
        await asyncio.sleep(self.rng.uniform(0.2, 8))
        await self._back(broker)

    async def vanish(self) -> None:
        broker = self._broker()
        self.world.history.fault("broker's host gone", str(broker.port))
        broker.kill(vanished=True)
        await asyncio.sleep(self.rng.uniform(2, 10))
        await self._back(broker)

    async def kill_at_script(self) -> None:
        broker = self._broker()
        if await self._at_script(broker, "killed", broker.kill):
            await asyncio.sleep(self.rng.uniform(0.2, 5))
            await self._back(broker)

    async def cut_link_at_script(self) -> None:
        await self._at_script(self._broker(), "cut off from Redis", lambda: None)

    async def _at_script(self, broker: Broker, what: str, also: Callable[[], None]) -> bool:
        """Break a broker's link just before or after a script of groups or an append, next time that it runs one."""
        name = self.rng.choice(_STRUCK)
        struck = {_APPEND} if name == "XADD" else _texts_of(name)
        when = self.rng.choice(("before", "after"))
        done: asyncio.Future[None] = self.world.loop.create_future()

        def strike(link: RedisLink, running: bytes) -> str | None:
            if running not in struck or link.process is not broker.process:
                return None
            self.world.redis.before_script = _never
            self.world.history.fault(f"broker {what} at a script", f"{broker.port} {when} {name}")
            link.cut()
            also()
            done.set_result(None)
            return when

        self.world.redis.before_script = strike
        try:
            await asyncio.wait_for(done, _LINK_WAITS_S)
        except TimeoutError:
            self.world.redis.before_script = _never
            return False
        return True

    async def pause(self) -> None:
        await self._pause("broker paused", self.rng.uniform(0.1, PAUSE_MAX_S))

    async def _pause(self, kind: str, seconds: float) -> None:
        broker = self._broker()
        self.world.history.fault(kind, f"{broker.port} for {seconds:.1f} s")
        broker.pause()
        await asyncio.sleep(seconds)
        broker.resume()

    async def drain(self) -> None:
        broker = self._broker()
        self.world.history.fault("broker drained", str(broker.port))
        broker.drain()
        await asyncio.sleep(2)
        while not broker.ready:
            await asyncio.sleep(0.1)

    async def cut_links(self) -> None:
        broker = self._broker()
        self.world.history.fault("links to Redis cut", str(broker.port))
        for link in [link for link in self.world.redis.links if link.process is broker.process]:
            link.cut()

    async def stall(self) -> None:
        await self._stall("Redis stalled", self.rng.uniform(0.1, 1.5))

    async def _stall(self, kind: str, seconds: float) -> None:
        self.world.history.fault(kind, f"for {seconds:.1f} s")
        self.world.redis.stall(seconds)
        await asyncio.sleep(seconds)

    async def slow_redis(self) -> None:
        redis = self.world.redis
        redis.delay_max_s = self.rng.uniform(0.01, 0.3)
        self.world.history.fault("Redis slow", f"up to {redis.delay_max_s * 1000:.0f} ms")
        await asyncio.sleep(self.rng.uniform(3, 15))
        redis.delay_max_s = 0.0

    async def lose_messages(self) -> None:
        redis = self.world.redis
        redis.lost_messages_share = self.rng.choice((0.3, 0.7, 1.0))
        self.world.history.fault("messages lost", f"{redis.lost_messages_share:.0%}")
        await asyncio.sleep(self.rng.uniform(5, 30))
        redis.lost_messages_share = LOST_SHARE

    async def slow_network(self) -> None:
        fabric = self.world.net.fabric
        fabric.delay_max_s = self.rng.uniform(0.02, 0.5)
        self.world.history.fault("network slow", f"up to {fabric.delay_max_s * 1000:.0f} ms")
        await asyncio.sleep(self.rng.uniform(3, 15))
        fabric.delay_max_s = 0.0

    async def cut_connections(self) -> None:
        pipes = list(self.world.net.pipes)
        cut = self.rng.sample(pipes, min(len(pipes), self.rng.randrange(1, 60)))
        self.world.history.fault("client connections cut", count=len(cut))
        for pipe in cut:
            pipe.cut()

    # -- rough

    async def kill_all(self) -> None:
        self.world.history.fault("all brokers killed")
        for broker in self.world.brokers:
            broker.kill(vanished=self.rng.random() < 0.3)
            await asyncio.sleep(self.rng.uniform(0, 0.5))
        for broker in self.world.brokers:
            await asyncio.sleep(self.rng.uniform(0, 7))
            await self._back(broker)

    async def redis_away(self) -> None:
        seconds = self.rng.uniform(0.2, 20)
        self.world.history.fault("Redis away", f"for {seconds:.1f} s")
        self.world.redis.set_away(True)
        await asyncio.sleep(seconds)
        self.world.redis.set_away(False)

    async def long_pause(self) -> None:
        await self._pause("broker paused for long", self.rng.uniform(6, 30))

    async def long_stall(self) -> None:
        await self._stall("Redis stalled for long", self.rng.uniform(1.5, 8))


def _never(link: RedisLink, sha: bytes) -> str | None:
    return None


def _texts_of(name: str) -> set[bytes]:
    """What names a script in EVALSHA and in FCALL."""
    script = next(one for one in registered() if one.name == name)
    return {text.encode() for text in (script.sha, *([script.function] if script.is_function else ()))}
