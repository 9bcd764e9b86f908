"""One RESP connection to Redis, pipelined: all commands of an event-loop tick are sent in one write.

Redis replies in order, so a queue of callbacks is all the bookkeeping that a command needs: no future, no task. The
order also determines how errors are handled.

- An error reply is a value (`hiredis.ReplyError`) for the callback of its command; other commands are unaffected.
- Each command has a deadline, checked every 100 ms for the oldest command only. If it is overdue, the replies behind
  it cannot arrive either, so the link drops the connection.
- When a connection ends, every command in flight gets `StoreUnavailable`: its outcome is unknown. Redis may have
  executed it. The link never sends a command twice; callers decide whether that is safe.
- Data from an earlier connection is ignored: `_received` and `_lost` compare the `_Wire` that calls them.

The link reconnects with back-off; commands sent while it is down fail at once. Commands in flight are bounded by
number and by bytes, which bounds the memory that a stalled Redis costs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import hiredis
import structlog

from tidegate.errors import StoreUnavailable
from tidegate.store import tls
from tidegate.store.addresses import Address
from tidegate.store.info import info_fields
from tidegate.store.unsent import abort_unsent

logger = structlog.get_logger()

Arg = str | bytes | int | float
OnReply = Callable[[Any], None]
"""Called once with the reply, a `hiredis.ReplyError`, or a `StoreUnavailable`."""

IN_FLIGHT_MAX: Final = 200_000
"""Commands without a reply on one link; further ones are refused at once."""
IN_FLIGHT_BYTES_MAX: Final = 256 << 20
"""Bytes of commands without a reply; beyond it commands are refused."""
_RECONNECT_MS: Final = (20, 50, 100, 200, 400, 800, 1_000)
_CLOSED: Final = "connection closed by Redis"
_NO_ATTEMPT_ENDED: Final = "no answer yet"
_DEADLINE_TICK_S: Final = 0.1
_PROBE_TICKS: Final = 10
_NO_PRIMARY: Final = "the server calls itself a replica, which takes no writes"
_STILL_LOADING: Final = ("LOADING", "MASTERDOWN")
"""Replies to the probe of a server without data; other errors (such as missing rights) are ignored."""


def _pack(args: Sequence[Arg]) -> bytes:
    return hiredis.pack_command(tuple(args))  # type: ignore[arg-type, no-any-return]


class _Wire(asyncio.Protocol):
    """Passes received bytes and the end of the connection to its link."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def data_received(self, data: bytes) -> None:
        self.link._received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.link._lost(self, _CLOSED if exc is None else tls.reason(exc))


class Link:
    """A pipelined connection that reconnects by itself.

    `on_up(link)` runs directly after HELLO, before any caller's command; the commands that it sends go first.
    `on_down(link)` runs when a connection ended. `on_push(message)` gets RESP3 pushes. `failover_epoch` counts
    connections: data read through an earlier one may be out of date. `find` returns the address for each attempt and
    may raise StoreUnavailable. With `primary_only` a replica is refused. `loading_probe` is a command that this user
    may run and that a server refuses while it loads its data.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], Awaitable[Address]],
        *,
        loading_probe: Sequence[Arg] = ("PING",),
        primary_only: bool = False,
        command_timeout_ms: int = 5_000,
        connect_timeout_ms: int = 2_000,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> None:
        self.name = name
        self.failover_epoch = 0
        self.connected = False
        self.on_up: list[Callable[[Link], None]] = []
        self.on_down: list[Callable[[Link], None]] = []
        self.on_push: Callable[[list[Any]], None] | None = None
        self.address: Address | None = None
        self._find = find
        self._loading_probe = loading_probe
        self._primary_only = primary_only
        self.timeout_s = command_timeout_ms / 1000
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._in_flight_max = in_flight_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._waiting: deque[tuple[OnReply, float, int]] = deque()
        self._bytes = 0
        self._out: list[bytes | memoryview] = []
        self._flush_scheduled = False
        self._reader: Any = None
        self._wire: _Wire | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._loop = asyncio.get_event_loop()
        self._up = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self.last_error = _NO_ATTEMPT_ENDED
        self._last_check = 0.0
        self._ticks = 0
        self._failed_callbacks: set[tuple[str, type[Exception]]] = set()

    # -- lifecycle

    def start(self) -> None:
        """Start connecting; the link reconnects until `close`."""
        self._task = self._loop.create_task(self._keep_connected(), name=f"redis-{self.name}")
        self._loop.call_later(_DEADLINE_TICK_S, self._check_deadlines)

    async def wait_up(self, timeout_s: float, repeats: int = 4) -> None:
        """Wait until connected; repeat while no attempt has ended (a starved process). Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._up.wait()
        except TimeoutError:
            if repeats and self.last_error == _NO_ATTEMPT_ENDED and not self.failover_epoch:
                return await self.wait_up(timeout_s, repeats - 1)
            if not self.connected:  # it may be, since this iteration of the loop
                raise StoreUnavailable(f"Redis is not reachable: {self.last_error}") from None

    async def close(self) -> None:
        """Close permanently; commands in flight fail."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
        self._drop("closed")

    def reconnect(self, reason: str) -> None:
        """Drop this connection and connect again."""
        if self.connected:
            self._drop(reason)

    async def _keep_connected(self) -> None:
        attempt = 0
        while not self._closing:
            try:
                await self._connect()
                attempt = 0
                down = asyncio.Event()

                def mark_down(_: Link, down: asyncio.Event = down) -> None:
                    down.set()

                self.on_down.append(mark_down)
                try:
                    if self.connected:
                        await down.wait()
                finally:
                    self.on_down.remove(mark_down)
            except (OSError, TimeoutError, hiredis.HiredisError, StoreUnavailable) as error:
                self.last_error = tls.reason(error)
            except Exception as error:  # keep the loop running: nothing else reconnects
                if str(error) != self.last_error:
                    logger.exception("redis_link_failed", link=self.name)
                self.last_error = str(error)
            await asyncio.sleep(_RECONNECT_MS[min(attempt, len(_RECONNECT_MS) - 1)] / 1000)
            attempt += 1

    async def _connect(self) -> None:
        address = self.address = await self._find()
        wire = _Wire(self)
        transport = await self._open(address, wire)
        if transport.is_closing():  # closed at once: probably not a Redis server
            raise OSError(_CLOSED)
        self._wire, self._transport = wire, transport
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                *accepted, role, there = await asyncio.gather(*self._greet(address))
        except TimeoutError:
            self._drop("no answer")  # replies of the next connection are not for these commands
            raise
        refusals = [str(reply) for reply in accepted if isinstance(reply, Exception)]
        if address.tls is None and isinstance(accepted[0], StoreUnavailable):
            refusals[0] += f" before it said a word ({tls.SPEAKS_TLS})"
        if isinstance(there, Exception) and str(there).startswith(_STILL_LOADING):
            refusals.append(str(there))  # some commands would be refused: retry later
        if self._primary_only and info_fields(role).get("role", "master") != "master":
            refusals.append(_NO_PRIMARY)
        if refusals:
            self._drop(refusals[0])
            raise OSError(refusals[0])
        if self._wire is not wire:
            raise OSError(_CLOSED)
        self.failover_epoch += 1
        self.connected = True
        self._up.set()
        self._notify(self.on_up)

    async def _open(self, address: Address, wire: _Wire) -> asyncio.WriteTransport:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                transport, _ = await self._loop.create_connection(
                    lambda: wire, address.host, address.port, ssl=address.tls
                )
        except TimeoutError:
            raise OSError(tls.NO_HANDSHAKE if address.tls is not None else "no answer") from None
        return transport

    def _greet(self, address: Address) -> list[asyncio.Future[Any]]:
        """HELLO and SELECT, which must succeed; the role if only a primary will do; the loading probe."""
        hello: list[Arg] = ["HELLO", 3]
        if address.password is not None:
            hello += ["AUTH", address.username or "default", address.password]
        greetings = [self._asked_now([*hello, "SETNAME", f"tidegate-{self.name}"])]
        if address.database:  # a missing database must not fall back to 0
            greetings.append(self._asked_now(["SELECT", address.database]))
        role = self._asked_now(["INFO", "replication"]) if self._primary_only else greetings[0]
        return [*greetings, role, self._asked_now(self._loading_probe)]

    # -- commands

    def send(self, args: Sequence[Arg], on_reply: OnReply, timeout_ms: int | None = None) -> None:
        """Queue one command for this tick's write. Never calls `on_reply` before it returns."""
        if not self.connected or len(self._waiting) >= self._in_flight_max or self._bytes > self._in_flight_bytes_max:
            self._refuse(on_reply)
            return
        self._push(_pack(args), on_reply, timeout_ms)

    def send_buffers(
        self, buffers: Sequence[bytes | memoryview], size: int, on_reply: OnReply, timeout_ms: int | None = None
    ) -> None:
        """Queue one command that the caller encoded as RESP; the buffers are not copied."""
        if not self.connected or len(self._waiting) >= self._in_flight_max or self._bytes > self._in_flight_bytes_max:
            self._refuse(on_reply)
            return
        self._waiting.append(
            (on_reply, self._loop.time() + (timeout_ms / 1000 if timeout_ms else self.timeout_s), size)
        )
        self._bytes += size
        self._out.extend(buffers)
        self._schedule_flush()

    def send_unanswered(self, args: Sequence[Arg]) -> None:
        """Queue a command that is answered only by pushes (SUBSCRIBE, UNSUBSCRIBE)."""
        if self.connected:
            self._out.append(_pack(args))
            self._schedule_flush()

    def call(self, *args: Arg, timeout_ms: int | None = None) -> asyncio.Future[Any]:
        """Send one command. The future raises `StoreUnavailable`, or `hiredis.ReplyError` for an error reply."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def answer(reply: Any) -> None:
            if future.done():
                return
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.send(args, answer, timeout_ms)
        return future

    @property
    def in_flight(self) -> int:
        """The number of commands without a reply."""
        return len(self._waiting)

    def _refuse(self, on_reply: OnReply) -> None:
        reason = f"Redis is not reachable: {self.last_error}" if not self.connected else "too much in flight to Redis"
        self._loop.call_soon(self._guarded, on_reply, StoreUnavailable(reason))

    def _asked_now(self, args: Sequence[Arg]) -> asyncio.Future[Any]:
        """Send one command ahead of all callers' commands; error replies are results."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def answer(reply: Any) -> None:
            if not future.done():
                future.set_result(reply)

        self._push(_pack(args), answer, None)
        return future

    def _push(self, packed: bytes, on_reply: OnReply, timeout_ms: int | None) -> None:
        size = len(packed)
        timeout_s = timeout_ms / 1000 if timeout_ms else self.timeout_s
        self._waiting.append((on_reply, self._loop.time() + timeout_s, size))
        self._bytes += size
        self._out.append(packed)
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out, self._out = self._out, []
        if out and self._transport is not None:
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)

    # -- replies

    def _received(self, wire: _Wire, data: bytes) -> None:
        if wire is not self._wire:
            return
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        while True:
            try:
                reply = reader.gets()
            except hiredis.ProtocolError as error:
                self._lost(wire, f"protocol error: {error}")
                return
            if reply is Ellipsis:
                return
            if isinstance(reply, hiredis.PushNotification):
                if self.on_push is not None:
                    self._guarded(cast(OnReply, self.on_push), reply)
                continue
            if not waiting:
                refused = isinstance(reply, hiredis.ReplyError)  # a refused subscription
                self._lost(wire, str(reply) if refused else "a reply that nobody asked for")
                return
            on_reply, _, size = waiting.popleft()
            self._bytes -= size
            self._guarded(on_reply, reply)
            if wire is not self._wire:
                return

    def _guarded(self, on_reply: OnReply, reply: Any) -> None:
        """Call; if the callback raises, log it once and pass it a failure, so that its waiter ends."""
        try:
            on_reply(reply)
        except Exception as error:
            place = getattr(on_reply, "__qualname__", type(on_reply).__name__)
            if (place, type(error)) not in self._failed_callbacks:
                self._failed_callbacks.add((place, type(error)))
                logger.exception("reply_callback_failed", link=self.name, callback=place)
            if not isinstance(reply, StoreUnavailable | hiredis.PushNotification):
                self._guarded(on_reply, StoreUnavailable(f"the reply could not be used: {error}"))

    def _notify(self, listeners: Sequence[Callable[[Link], None]]) -> None:
        for listener in list(listeners):
            try:
                listener(self)
            except Exception:
                logger.exception("link_listener_failed", link=self.name)

    def _check_deadlines(self) -> None:
        if self._closing:
            return
        self._loop.call_later(_DEADLINE_TICK_S, self._check_deadlines)
        now = self._loop.time()
        # After a pause of this process replies may be received but unread: wait one more tick.
        paused, self._last_check = now - self._last_check > 5 * _DEADLINE_TICK_S, now
        if paused or not self.connected or self._wire is None:
            return
        if self._waiting:
            if self._waiting[0][1] < now:
                self._lost(self._wire, f"no answer from Redis within {self.timeout_s:g} s")
            return
        self._ticks += 1
        if self._ticks % _PROBE_TICKS == 0:  # detects a dead connection
            self.send(["PING"], lambda _: None)

    def _lost(self, wire: _Wire, reason: str) -> None:
        if wire is self._wire:
            self._drop(reason)

    def _drop(self, reason: str) -> None:
        """End this connection: the outcome of every command in flight is unknown."""
        transport, self._transport, self._wire = self._transport, None, None
        was_connected, self.connected = self.connected, False
        self._up.clear()
        self.last_error = reason
        self._out.clear()
        waiting, self._waiting, self._bytes = self._waiting, deque(), 0
        if transport is not None:
            abort_unsent(transport)
        if was_connected and not self._closing:
            logger.warning("redis_link_down", link=self.name, reason=reason, in_flight=len(waiting))
        if was_connected:
            self._notify(self.on_down)
        for on_reply, _, _ in waiting:
            self._loop.call_soon(self._guarded, on_reply, StoreUnavailable(reason))
