"""Broker processes: what `tidegate.broker.build` makes, with one listener, started, killed, paused and drained."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from tests.simulation.loop import Process, SimLoop
from tests.simulation.network import Network
from tests.simulation.redis_link import SimRedis
from tidegate.broker import Broker as BuiltBroker
from tidegate.broker import build
from tidegate.errors import StoreUnavailable
from tidegate.process import ProcessUse
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.store import Store

LOGS_BYTES_MAX: Final = 100_000
"""Memory of a broker for logs: a third of those that a run uses."""
RESTART_S: Final = 1.0
"""Until a broker that could not start is started again."""


class MadeUpUse(ProcessUse):
    """What brokers take of their machine: measured, it would differ between two runs of a seed."""

    def cpu_share(self) -> float:
        return 0.1

    def memory_bytes(self) -> int:
        return 64 << 20


class Broker:
    """One broker of the cluster, in its successive processes."""

    def __init__(self, loop: SimLoop, net: Network, redis: SimRedis, settings: Settings, rng: random.Random) -> None:
        self.loop, self.net, self.redis, self.settings, self.rng = loop, net, redis, settings, rng
        self.port = settings.port
        self.evicts_logs = False
        """Whether it has no memory for all logs that it uses."""
        self.starts = self.logs_evicted = 0
        self.process: Process | None = None
        self.app: BuiltBroker | None = None
        self.ready = False
        self.on_killed: Callable[[int], None] = lambda port: None

    def start(self) -> None:
        """Begin to start; `ready` says when it is done."""
        self.net.restore(self.port)
        self.starts += 1
        self.process = Process(f"broker-{self.port}.{self.starts}")
        self.loop.create_task(self._start(self.process), context=self.process.context)

    async def _start(self, process: Process) -> None:
        settings, endpoints = self.settings, {"PLAINTEXT": ("127.0.0.1", self.settings.port)}
        try:
            self.app = build(settings, Store(settings), endpoints, self.loop.time, use=MadeUpUse())
            if self.evicts_logs:
                self.app.context.logs.open_logs._bytes_max = LOGS_BYTES_MAX
            await self.app.start()
            await self.app.server.open("127.0.0.1", settings.port)
            await self.app.serve()
        except (CannotStart, StoreUnavailable, TimeoutError):
            self.loop.later(0, self.kill)
            self.loop.later(RESTART_S, self.start)
            return
        self.ready = True

    @property
    def running(self) -> bool:
        """Started, not paused."""
        return self.ready and self.process is not None and self.process.held is None

    def kill(self, vanished: bool = False) -> None:
        """End the process at this instant. What it sent may arrive; a vanished host never says that it is gone."""
        if self.process is None:
            return
        if self.app is not None and self.evicts_logs:
            self.logs_evicted += self.app.context.logs.open_logs.evictions
        process, self.process, self.app, self.ready = self.process, None, None, False
        self.redis.end_process(process, commands_lost=self.rng.random() < 0.5)
        process.kill()
        self.net.end_process(process, vanished)
        self.on_killed(self.port)

    def pause(self) -> None:
        """Stop the process where it is."""
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        """Let it continue."""
        if self.process is not None and self.process.held is not None:
            self.loop.resume(self.process)

    def drain(self) -> None:
        """As on SIGTERM: drain, close, end; then start again."""
        if self.ready and self.process is not None:
            self.loop.create_task(self._drain(self.process), context=self.process.context)

    async def _drain(self, process: Process) -> None:
        app = self.app
        assert app is not None
        self.ready = False
        try:
            await app.drain()
            await app.close()
        except asyncio.CancelledError:
            raise
        if process.alive:
            self.loop.later(0, self._drained, process)

    def _drained(self, process: Process) -> None:
        if self.process is process:
            self.kill()
            self.loop.later(RESTART_S, self.start)
