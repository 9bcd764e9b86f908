"""The broker process: opens the ports of a broker, runs it until a signal or a drain request, and ends it."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Sequence
from typing import Any, Final

import structlog
import uvloop

import tidegate
from tidegate.broker import build
from tidegate.errors import StoreUnavailable
from tidegate.host import HostProcess
from tidegate.http.admin_port import AdminPort
from tidegate.process import Signals, bind
from tidegate.server.listener import Server
from tidegate.server.ports import Ports
from tidegate.settings import Settings, warn_of_former_settings
from tidegate.startup import GC_THRESHOLDS, CannotStart
from tidegate.store.addresses import without_password
from tidegate.store.store import Store
from tidegate.telemetry import logs as logging_setup
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.tracing import Tracing

logger = structlog.get_logger()

_CLOSE_S: Final = 5.0


class App:
    """A broker with its ports, bound at construction: `start`, then `close`. Raises CannotStart."""

    def __init__(self, settings: Settings, host: HostProcess | None = None) -> None:
        self._settings = settings
        self._ports = Ports(settings, bind)
        self._admin_socket = bind(settings.admin_host, settings.admin_port, "TIDEGATE_ADMIN_PORT")
        self._tracing = tracing = Tracing() if settings.tracing else None
        store, new_server = (Store, Server) if tracing is None else (tracing.store, tracing.server)
        self.broker = build(settings, store(settings), self._ports.advertised(), new_server=new_server, host=host)
        self._admin = AdminPort(self.broker.health, self._admin_socket, self.broker.context)
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        """Start the broker and open its ports. Raises CannotStart."""
        ports, broker = self._ports, self.broker
        try:
            await broker.start()
            await ports.open(broker.server)
            await broker.serve()
            await self._start_admin()
        except (StoreUnavailable, TimeoutError) as error:
            address = without_password(self._settings.redis_url)
            raise CannotStart(f"Redis is not usable at {address}: {error or 'no answer'}") from None
        finally:
            ports.close()
        if ports.certificates is not None:
            self._loops.run("certificates", ports.certificates.watch)
        gc.collect()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.freeze()  # exclude long-lived objects from further collections
        logger.info("ready", port=ports.numbers[0], version=tidegate.__version__)

    async def _start_admin(self) -> None:
        try:
            await self._admin.start()
        except OSError as error:
            raise CannotStart(f"cannot listen for admin HTTP (TIDEGATE_ADMIN_PORT): {error.strerror}") from None

    async def close(self) -> None:
        """Close the ports and stop the broker."""
        await self._loops.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._admin.close()
                await self.broker.close()
        except TimeoutError:
            logger.warning("not_closed_in_time", seconds=_CLOSE_S)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)


async def run(settings: Settings, unknown: Sequence[str] = (), host: HostProcess | None = None) -> None:
    """Run one broker until a signal or a drain request. Raises CannotStart."""
    signals = Signals()
    logging_setup.bind(pid=os.getpid())
    for variable in unknown:
        logger.warning("unknown_setting", variable=variable)
    warn_of_former_settings()
    app = App(settings, host)
    starting = asyncio.ensure_future(app.start())
    asked = asyncio.ensure_future(signals.asked.wait())
    running: list[asyncio.Future[Any]] = [starting, asked]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            running.append(asyncio.ensure_future(app.broker.prepare()))
            running.append(ending := asyncio.ensure_future(app.broker.drain_asked.wait()))
            await asyncio.wait([asked, ending], return_when=asyncio.FIRST_COMPLETED)
            await app.broker.drain()  # a SIGTERM during this drain has no further effect
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await app.close()


def serve(settings: Settings, unknown: Sequence[str] = (), host: HostProcess | None = None) -> None:
    """Run one broker until a signal. Raises CannotStart.

    `unknown` are variables that look like settings but are none; `host` is given to one of several processes.
    """
    logging_setup.configure(settings.log_format, settings.log_level)
    uvloop.run(run(settings, unknown, host))
