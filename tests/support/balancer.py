"""What stands between clients and brokers elsewhere: a load balancer that takes its targets by turns, or ends TLS."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

Next = Callable[[], Awaitable[tuple[str, int]]]
"""The address for the next connection."""


@contextlib.asynccontextmanager
async def balancer(
    targets: Sequence[int] | Next, tls: ssl.SSLContext | None = None, port: int = 0
) -> AsyncIterator[int]:
    """A port on loopback, each of whose connections leads to the next of the ports or addresses; `tls` ends here."""
    next_target = targets if callable(targets) else _cycle(targets)
    serving: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            upstream, onward = await asyncio.open_connection(*await next_target())
            await asyncio.gather(pass_on(reader, onward), pass_on(upstream, writer))
        except OSError:
            return
        finally:
            writer.close()
            serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await asyncio.sleep(0)  # closes the sockets


def _cycle(ports: Sequence[int]) -> Next:
    cycle = itertools.cycle(ports)

    async def next_port() -> tuple[str, int]:
        return "127.0.0.1", next(cycle)

    return next_port
