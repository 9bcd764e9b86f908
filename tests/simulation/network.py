"""Sockets in memory between clients and brokers: latency, bytes in pieces, cuts, dead hosts.

The broker's side is a transport as asyncio has it; the client's side is two callbacks. Bytes of one direction
keep their order. A host that has vanished answers nothing; one whose process ended resets.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final
from unittest.mock import patch

from tests.simulation.loop import Process, SimLoop
from tidegate.server import stalls

GRAIN_S: Final = 1 / 2048
"""Half a millisecond, of which sums are exact: what happens at one instant has one time."""
LATENCIES_S: Final = (GRAIN_S, GRAIN_S, GRAIN_S, GRAIN_S, 2 * GRAIN_S)


class Fabric:
    """What the network does to bytes now; faults change it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.delay_max_s = 0.0
        self.split_share = 0.01

    def latency(self, base_s: float) -> float:
        """How long one message takes; a whole number of grains, so that messages meet as they do in a busy broker."""
        if self.delay_max_s:
            return base_s + GRAIN_S * int(self.rng.random() * self.delay_max_s / GRAIN_S)
        return base_s if self.rng.random() < 0.95 else base_s + GRAIN_S * self.rng.randrange(1, 8)


class _Socket:
    """What a broker asks of a socket behind a transport; its number stands for a file descriptor."""

    family = socket.AF_INET

    def __init__(self, address: tuple[str, int], number: int = -1) -> None:
        self._address, self._number = address, number

    def setsockopt(self, *_: Any) -> None:
        """Nothing to set."""

    def fileno(self) -> int:
        return self._number

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        """Nothing to close."""


class Pipe(asyncio.Transport):
    """One connection; the object is the broker's transport, `send` and `hang_up` are the client's."""

    def __init__(
        self, net: Network, port: int, on_data: Callable[[bytes], None], on_closed: Callable[[], None]
    ) -> None:
        super().__init__()
        self._net = net
        self._loop = net.loop
        self.port = port
        self.process: Process | None = None
        self._protocol: Any = None
        self._base_s = net.fabric.rng.choice(LATENCIES_S)
        self._on_data, self._on_closed = on_data, on_closed
        self._to_broker_at = self._to_client_at = 0.0
        self._under_way: deque[tuple[float, int]] = deque()
        """What is sent and not yet read: when it is in the broker's socket, and its bytes; 0 if the client closes."""
        self.number = next(net.numbers)
        self._inbox: list[bytes] = []
        self._reading = True
        self._client_open = True
        self._broker_open = False
        self._lost = False
        self.deaf = False
        """Whether the broker's host vanished without closing the connection."""

    # -- the client's side

    def send(self, data: bytes) -> None:
        """Bytes to the broker. A host whose process is another by now resets the connection."""
        if not self._client_open:
            return
        if self.process is not None and not self.process.alive:
            if not self._net.is_vanished(self.port):
                self._close_client()
            return
        rng = self._net.fabric.rng
        if len(data) > 1 and rng.random() < self._net.fabric.split_share:
            cut = rng.randrange(1, len(data))
            self._towards_broker(data[:cut])
            data = data[cut:]
        self._towards_broker(data)

    def hang_up(self) -> None:
        """The client closes; the broker finds out when the bytes before are read."""
        if self._client_open:
            self._client_open = False
            if self.process is not None and self.process.alive:
                self._towards_broker(b"")

    def _towards_broker(self, data: bytes) -> None:
        at = max(self._loop.now + self._net.fabric.latency(self._base_s), self._to_broker_at)
        self._to_broker_at = at
        self._under_way.append((at, len(data)))
        self._loop.post(at, self._arrive, data, process=self.process)

    def _towards_client(self, callback: Callable[..., None], *args: Any) -> None:
        at = max(self._loop.now + self._net.fabric.latency(self._base_s), self._to_client_at)
        self._to_client_at = at
        self._loop.post(at, callback, *args)

    def _close_client(self) -> None:
        self._towards_client(self._closed_client)

    def _closed_client(self) -> None:
        if self._client_open:
            self._client_open = False
            self._on_closed()

    def _deliver_client(self, data: bytes) -> None:
        if self._client_open:
            self._on_data(data)

    # -- the broker's side

    def accept(self, process: Process, factory: Callable[[], Any]) -> None:
        """In the broker's context: the connection is made."""
        self._broker_open = True
        self._protocol = factory()
        self._protocol.connection_made(self)

    def _arrive(self, data: bytes) -> None:
        if not self._broker_open:
            return
        if not self._reading or self._inbox:
            self._inbox.append(data)
        else:
            self._take(data)

    def in_socket(self) -> list[int]:
        """Bytes of each piece that lies in the broker's socket; a last 0 if the client has closed."""
        return [size for at, size in self._under_way if at <= self._loop.now]

    def _take(self, data: bytes) -> None:
        self._under_way.popleft()
        if data:
            self._feed(data)
        else:
            self._protocol.eof_received()
            self._lose(None)

    def _feed(self, data: bytes) -> None:
        free = self._protocol.get_buffer(-1)
        if len(data) <= len(free):
            free[: len(data)] = data
            self._protocol.buffer_updated(len(data))
            return
        view = memoryview(data)
        while len(view) and self._broker_open:
            free = self._protocol.get_buffer(-1)
            taken = min(len(free), len(view))
            free[:taken] = view[:taken]
            view = view[taken:]
            self._protocol.buffer_updated(taken)
            if not self._reading and len(view):
                self._inbox.insert(0, bytes(view))
                self._under_way.appendleft((self._loop.now, len(view)))
                return

    def write(self, data: Any) -> None:
        if self._broker_open:
            self._towards_client(self._deliver_client, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._loop.call_soon(self._read_inbox)

    def _read_inbox(self) -> None:
        while self._inbox and self._reading and self._broker_open:
            self._take(self._inbox.pop(0))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Clients here read at once."""

    def is_closing(self) -> bool:
        return not self._broker_open

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 40_000), "socket": _Socket(("127.0.0.1", self.port), self.number)}.get(
            name, default
        )

    def close(self) -> None:
        if self._broker_open:
            self._close_client()
            self._lose(None)

    def abort(self) -> None:
        self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._broker_open, self._lost = False, True
            assert self.process is not None
            self._net.pipes.pop(self, None)
            self._loop.call_soon(self._protocol.connection_lost, error, context=self.process.context)

    # -- faults

    def cut(self) -> None:
        """The connection breaks; each side learns of it in its own time, what is under way is lost."""
        was_open, self._broker_open = self._broker_open, False
        self._on_data = lambda _: None
        self._close_client()
        if was_open and self.process is not None and self.process.alive and not self._lost:
            self._lost = True
            self._net.pipes.pop(self, None)
            self._loop.later(
                self._net.fabric.latency(self._base_s),
                self._protocol.connection_lost,
                ConnectionResetError("cut"),
                process=self.process,
            )

    def died(self, vanished: bool) -> None:
        """The broker's process is gone. Unless its host vanished, the connection closes after what was sent."""
        self._broker_open, self._lost, self.deaf = False, True, vanished
        if not vanished:
            self._close_client()


class SimServer:
    """What `create_server` gives: a port that is open."""

    def __init__(self, net: Network, process: Process, factory: Callable[[], Any], host: str, port: int) -> None:
        self.process, self.factory, self.port = process, factory, port
        self._net = net
        self.sockets = [_Socket((host, port))]

    def is_serving(self) -> bool:
        return self._net.servers.get(self.port) is self

    def close(self) -> None:
        if self.is_serving():
            del self._net.servers[self.port]


class Network:
    """The brokers' ports, and the connections to them."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.fabric = Fabric(rng)
        self.servers: dict[int, SimServer] = {}
        self.pipes: dict[Pipe, None] = {}
        self.numbers = count(1)
        self._vanished: set[int] = set()
        loop.listen = self._listen

    def _listen(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> SimServer:
        if port in self.servers:
            raise OSError(98, "address in use")
        self.servers[port] = server = SimServer(self, process, factory, host, port)
        return server

    def is_vanished(self, port: int) -> bool:
        """Whether the host behind a port answers nothing at all."""
        return port in self._vanished

    # -- what a broker asks the kernel about its sockets after a stall

    @contextmanager
    def asked_after_stalls(self) -> Iterator[None]:
        """Answer instead of the kernel while the block runs."""
        with patch.object(stalls, "_closed", self._closed), patch.object(stalls, "_unread", self._unread):
            yield

    def _closed(self, numbers: Container[int]) -> set[int]:
        return {pipe.number for pipe in self.pipes if pipe.number in numbers and 0 in pipe.in_socket()}

    def _unread(self, number: int) -> int:
        return sum(next((pipe.in_socket() for pipe in self.pipes if pipe.number == number), ()))

    def dial(
        self, port: int, on_open: Callable[[], None], on_data: Callable[[bytes], None], on_closed: Callable[[], None]
    ) -> Pipe:
        """Connect a client. `on_open` or `on_closed` is called later; neither while the host is vanished."""
        pipe = Pipe(self, port, on_data, on_closed)
        self.loop.later(self.fabric.latency(pipe._base_s), self._answer, pipe, on_open)
        return pipe

    def _answer(self, pipe: Pipe, on_open: Callable[[], None]) -> None:
        if pipe.port in self._vanished or not pipe._client_open:
            return
        server = self.servers.get(pipe.port)
        if server is None:
            pipe._close_client()
            return
        pipe.process = server.process
        self.pipes[pipe] = None
        self.loop.call_soon(pipe.accept, server.process, server.factory, context=server.process.context)
        pipe._towards_client(on_open)

    def end_process(self, process: Process, vanished: bool) -> None:
        """A broker died: its ports and connections with it."""
        for port, server in list(self.servers.items()):
            if server.process is process:
                del self.servers[port]
                if vanished:
                    self._vanished.add(port)
        for pipe in [pipe for pipe in self.pipes if pipe.process is process]:
            del self.pipes[pipe]
            pipe.died(vanished)

    def restore(self, port: int) -> None:
        """The host behind a port answers again."""
        self._vanished.discard(port)
