"""A TCP proxy that cuts connections (at once, in the middle of a reply, leaving a late request), or swallows packets.

What a connection's end can mean for a client that sent a command and got no reply: the server did it and the
answer is lost, it never saw the request or only part of it, or it sees it only some time after.

A black hole is a network that loses every packet of one way, or of both: no side learns of it, not even that the other
side has closed. Once it is over, what is still being sent arrives, as TCP sends it again.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from enum import Enum


class LinkFault(Enum):
    """How a connection ends."""

    NOW = "both ends at once"
    DROP_REPLY = "the next reply is lost, or all but its first bytes"
    DROP_REQUEST = "the next request is lost"
    PART_REQUEST = "only the first bytes of the next request arrive"
    LATE_REQUEST = "the next request arrives after the client was cut off"


class Way(Enum):
    """One way through the proxy."""

    UP = "client to server"
    DOWN = "server to client"


BOTH = (Way.UP, Way.DOWN)


class _Pipe:
    """One client's connection."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.armed: LinkFault | None = None
        self.last_sent = b""

    def abort(self) -> None:
        """End both sides."""
        for writer in (self.client, self.server):
            writer.transport.abort()

    async def upward(self, reader: asyncio.StreamReader) -> None:
        """Client to server."""
        while data := await self.proxy.passed(reader, Way.UP):
            self.last_sent = data
            if self.armed is LinkFault.DROP_REQUEST:
                break
            if self.armed is LinkFault.PART_REQUEST:
                self.server.write(data[: self.proxy.random.randrange(len(data))])
                with suppress(OSError):
                    await self.server.drain()
                break
            if self.armed is LinkFault.LATE_REQUEST:
                self.client.transport.abort()
                await asyncio.sleep(self.proxy.late_s)
                self.server.write(data)
                with suppress(OSError):
                    await self.server.drain()
                await asyncio.sleep(0.01)
                break
            self.server.write(data)
            await self.server.drain()

    async def downward(self, reader: asyncio.StreamReader) -> None:
        """Server to client."""
        while data := await self.proxy.passed(reader, Way.DOWN):
            if self.armed is LinkFault.DROP_REPLY:
                self.client.write(data[: self.proxy.random.randrange(len(data))])
                with suppress(OSError):
                    await self.client.drain()
                break
            if self.armed is not LinkFault.LATE_REQUEST:
                self.client.write(data)
                await self.client.drain()


class Proxy:
    """Listens on a free loopback port and forwards to `port`."""

    def __init__(self, port: int, seed: int = 0, late_s: float = 0.05) -> None:
        self.target = port
        self.port = 0
        self.late_s = late_s
        self.delay_s = 0.0
        """What everything that passes takes longer, each way."""
        self.random = random.Random(seed)
        self.trims = 0
        self._pipes: set[_Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.refusing = False
        self._open = {way: asyncio.Event() for way in Way}
        self.restore()

    @property
    def url(self) -> str:
        """Its address as `redis_url` takes it."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 22)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and cut what is left."""
        assert self._server is not None
        self._server.close()
        for pipe in list(self._pipes):
            pipe.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def black_hole(self, *ways: Way) -> None:
        """From now on nothing gets through these ways, on any connection, nor the news of a connection's end."""
        for way in ways:
            self._open[way].clear()

    def restore(self) -> None:
        """Both ways are open; what was held back arrives."""
        for gate in self._open.values():
            gate.set()

    async def passed(self, reader: asyncio.StreamReader, way: Way) -> bytes:
        """What comes next through one way; empty at the end."""
        try:
            data = await reader.read(1 << 20)
        except OSError:
            data = b""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._open[way].wait()
        return data

    def cut(self, how: LinkFault, place: int | None = None, carrying: bytes = b"") -> None:
        """End one connection (at random, or by its place), or arm it to end at its next traffic.

        `carrying` chooses among those whose last request held these bytes.
        """
        pipes = [pipe for pipe in sorted(self._pipes, key=id) if carrying in pipe.last_sent]
        if pipes:
            self._cut(pipes[self.random.randrange(len(pipes)) if place is None else place], how)

    def cut_all(self, how: LinkFault = LinkFault.NOW) -> None:
        """The same to every connection."""
        for pipe in list(self._pipes):
            self._cut(pipe, how)

    def _cut(self, pipe: _Pipe, how: LinkFault) -> None:
        self.trims += 1
        if how is LinkFault.NOW:
            pipe.abort()
        else:
            pipe.armed = how

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        pipe: _Pipe | None = None
        try:
            if self.refusing:
                return
            for gate in self._open.values():
                await gate.wait()
            upstream, server = await asyncio.open_connection("127.0.0.1", self.target, limit=1 << 22)
            pipe = _Pipe(self, writer, server)
            self._pipes.add(pipe)
            ways = [asyncio.ensure_future(pipe.upward(reader)), asyncio.ensure_future(pipe.downward(upstream))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                if pipe.armed is LinkFault.LATE_REQUEST and not ways[0].done():
                    await asyncio.wait(ways[:1])
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):  # cancelled by `close` alone
            pass
        finally:
            if pipe is not None:
                self._pipes.discard(pipe)
                pipe.abort()
            else:
                writer.transport.abort()
            self._tasks.discard(task)
