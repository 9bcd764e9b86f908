"""One whole broker on a virtual clock, its clients, and the measurement of what a client asks."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from unittest.mock import patch

from tests.cost.counting import COLUMNS, CountedRedis, CountedServer, Counters, SteadyFabric
from tests.kit.wire import decode_response, encode_request
from tests.simulation import outside
from tests.simulation.brokers import Broker
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network
from tests.simulation.redis_link import SERVER_OPTIONS
from tests.support import clock
from tests.support.valkey import ValkeyServer
from tidegate.groups import session_renewals
from tidegate.settings import Settings

PORT: Final = 9092
SEED: Final = 1
QUIET_S: Final = 0.04
"""No timer of the broker is due for so long when a measurement begins: what it does by itself is not a request's."""
IDLE_WAIT_S: Final = 0.01
"""After the last answer, for messages and writes that a request leaves behind."""
WARM_UPS: Final = 2

Cost = dict[str, int]
Result = TypeVar("Result")
Action = Callable[[], Awaitable[None]]


class Client:
    """One connection. What is sent in one call arrives in one chunk."""

    def __init__(self, cluster: Cluster) -> None:
        self._loop, self._counters = cluster.loop, cluster.counters
        self._opened = self._loop.create_future()
        self._waiting: list[tuple[int, int, asyncio.Future[Any]]] = []
        self._received = b""
        self._pipe = cluster.net.dial(PORT, lambda: self._opened.set_result(None), self._on_data, self._on_closed)

    async def ready(self) -> Client:
        """Wait until connected."""
        await self._opened
        return self

    def send(self, *requests: Any) -> list[asyncio.Future[Any]]:
        """Send requests in one chunk; their answers, decoded."""
        frames, answers = [], []
        for request in requests:
            answer: asyncio.Future[Any] = self._loop.create_future()
            schema = type(request)
            self._waiting.append((int(schema.__api_key__), int(schema.__version__), answer))
            frames.append(encode_request(request, 1, "cost"))
            answers.append(answer)
        self._counters.client_io += 1
        self._pipe.send(b"".join(frames))
        return answers

    async def ask(self, *requests: Any) -> Any:
        """Send requests in one chunk and wait for all; the last answer."""
        return (await asyncio.gather(*self.send(*requests)))[-1]

    def _on_data(self, data: bytes) -> None:
        self._counters.client_io += 1
        received = self._received + data
        while len(received) >= 4 and len(received) >= (end := 4 + int.from_bytes(received[:4], "big")):
            api_key, version, answer = self._waiting.pop(0)
            answer.set_result(decode_response(api_key, version, received[4:end])[1])
            received = received[end:]
        self._received = received

    def _on_closed(self) -> None:
        for _, _, answer in self._waiting:
            answer.set_exception(ConnectionResetError("the broker closed the connection"))


class Cluster:
    """A broker, a server, and the counters of both."""

    def __init__(self, server: ValkeyServer, **settings: Any) -> None:
        self.loop = SimLoop()
        self.counters = Counters()
        self.net = Network(self.loop, random.Random(SEED))
        self.net.fabric = SteadyFabric(random.Random(SEED))
        self.server = CountedServer(server, "tidegate")
        self.redis = CountedRedis(self.loop, self.server, random.Random(SEED), self.counters)
        self.broker = Broker(
            self.loop, self.net, self.redis, Settings(port=PORT, admin_port=0, **settings), random.Random(SEED)
        )  # fmt: skip

    async def start(self) -> None:
        """Start the broker, and let it finish what it does after its start."""
        self.broker.start()
        while not self.broker.ready:
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)

    async def client(self) -> Client:
        """A new connection."""
        return await Client(self).ready()

    def restart_randomness(self, seed: str) -> None:
        """Draw ids from a seed: so that an operation's do not depend on what came before it."""
        random.seed(seed)
        os.urandom = random._urandom = random.Random(seed).randbytes  # type: ignore[attr-defined]

    async def measure(self, act: Action) -> Cost:
        """What one action costs once caches are warm."""
        for _ in range(WARM_UPS):
            await act()
            await asyncio.sleep(1)
        await self._until_quiet()
        return await self.measure_now(act, IDLE_WAIT_S)

    async def measure_now(self, act: Action, idle_wait_s: float) -> Cost:
        """What happens from here until a while after an action."""
        self.counters.files, self.counters.scripts = set(), set()
        before = dict(vars(self.counters))
        self.server.reset(self.redis.now_ms())
        with _garbage_kept():
            self.counters.start_tracing()
            try:
                await act()
                await asyncio.sleep(idle_wait_s)
            finally:
                self.counters.stop_tracing()
        ran = self.server.commands_run(self.redis.now_ms())
        after = vars(self.counters) | {"server_commands": ran}
        return {name: after[name] - before.get(name, 0) for name in COLUMNS}

    async def _until_quiet(self) -> None:
        for _ in range(10_000):
            due = self.loop.next_timer()
            if due - self.loop.now > QUIET_S:
                return
            await asyncio.sleep(max(due - self.loop.now, 0) + IDLE_WAIT_S / 8)
        raise AssertionError(f"the broker is never without a timer for {QUIET_S} s")


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Collections call finalizers whenever they happen to run: none while something is counted."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run(scenario: Callable[[Cluster], Awaitable[Result]], **settings: Any) -> Result:
    """Run a scenario on a new cluster with these settings.

    It runs in this process, whose clocks and randomness are replaced meanwhile. Heartbeats that follow one another are
    renewed as those of clients that send one every few seconds.
    """
    clock.install()
    server = ValkeyServer(SERVER_OPTIONS)
    errors: list[str] = []
    try:
        cluster = Cluster(server, **settings)
        often = patch.object(session_renewals, "RENEWED_AGAIN_S", 0.0)
        with often, outside.taken_from(cluster.loop, SEED, errors):
            found = cluster.loop.run_until_complete(scenario(cluster))
        cluster.broker.kill()
        cluster.server.close()
        cluster.loop.close()
    finally:
        clock.uninstall()
        server.stop()
    if errors:
        raise AssertionError(f"the broker logged an error: {errors[0]}")
    return found
