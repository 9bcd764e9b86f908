"""A server with handlers that a test steers, and raw connections to it."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import monotonic, perf_counter, sleep
from typing import Any, cast
from unittest.mock import patch

import pytest
import uvloop
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.errors import ErrorCode

from tests.kit.wire import RawClient
from tidegate.apis.call import BrokerContext, Call
from tidegate.apis.registry import Api, load_all
from tidegate.protocol import group_writers, log_writers
from tidegate.server import stalls
from tidegate.server.listener import Server
from tidegate.server.stalls import _closed, _fileno, _unread
from tidegate.settings import Settings

API_VERSIONS, PRODUCE, FETCH, CREATE_TOPICS, HEARTBEAT, JOIN_GROUP = 18, 0, 1, 19, 12, 11


Scenario = Callable[..., Coroutine[Any, Any, None]]


def on_both_loops(scenario: Scenario) -> Callable[[Any], None]:
    """Run a scenario, with its fixtures, on asyncio's loop and on uvloop, which call a protocol differently."""

    @pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
    def test(run: Callable[[Coroutine[Any, Any, None]], None], **fixtures: Any) -> None:
        run(scenario(**fixtures))

    own = inspect.Parameter("run", inspect.Parameter.KEYWORD_ONLY)
    test.__signature__ = inspect.Signature([*inspect.signature(scenario).parameters.values(), own])  # type: ignore[attr-defined]

    test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    return test


class Handlers:
    """Handlers that note what starts, and answer when the test lets them."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.cancelled: list[str] = []
        self.parked: list[Call] = []
        self.cold_gate = asyncio.Event()
        self.cold_gate.set()
        self.error: Exception | None = None
        self.rest: Callable[[Call], Coroutine[Any, Any, None]] | None = None
        """The rest of `heartbeat`, in a task."""
        self.fetch_bytes = self.created_bytes = 0
        self.answers_large = False
        """Whether the answers of `create_topics` may be large."""

    def table(self) -> dict[int, Api]:
        """What `registry.load_all` would give."""
        shapes = {key: one.error for key, one in load_all().items()}
        apis = [
            Api(
                API_VERSIONS,
                "api_versions",
                0,
                4,
                self.api_versions,
                True,
                False,
                0,
                shapes[API_VERSIONS],
                safe_late=True,
            ),
            Api(
                PRODUCE,
                "produce",
                3,
                13,
                self.produce,
                True,
                True,
                0,
                shapes[PRODUCE],
                away=ErrorCode.request_timed_out,
            ),
            Api(
                FETCH,
                "fetch",
                4,
                18,
                self.fetch,
                True,
                False,
                4,
                shapes[FETCH],
                safe_late=True,
                exclusive=True,
                away=ErrorCode.kafka_storage_error,
            ),
            Api(HEARTBEAT, "heartbeat", 0, 4, self.heartbeat, True, False, 0, shapes[HEARTBEAT], safe_late=True),
            Api(
                CREATE_TOPICS,
                "create_topics",
                2,
                7,
                self.create_topics,
                False,
                False,
                2,
                shapes[CREATE_TOPICS],
                answers_large=self.answers_large,
            ),
            Api(
                JOIN_GROUP,
                "join_group",
                0,
                9,
                self.join_group,
                False,
                False,
                0,
                shapes[JOIN_GROUP],
                cancelled=True,
                decoded_bytes_max=4 << 20,
            ),
        ]
        return {api.key: api for api in apis}

    def _note(self, name: str) -> None:
        self.started.append(name)
        if self.error is not None:
            raise self.error

    def api_versions(self, call: Call, request: Any) -> None:
        self._note("api_versions")
        apis = [(api.key, api.listed_first, api.last) for api in self.table().values()]
        call.reply(log_writers.api_versions(call.version, 0, apis))

    def produce(self, call: Call, body: memoryview) -> None:
        self._note(f"produce of {len(body)}")
        call.drop()

    def fetch(self, call: Call, request: Any) -> None:
        """Parked until the test answers with `answer_fetch`, unless bytes are to be returned at once."""
        self._note("fetch")
        if self.fetch_bytes:
            self.answer_fetch(call)
        else:
            self.parked.append(call)

    def answer_fetch(self, call: Call) -> None:
        records = bytes(self.fetch_bytes)
        partition = log_writers.FetchPartition(index=0, buffers=[records], size=len(records))
        call.reply(log_writers.fetch(call.version, 0, 0, [("t", [partition])]))

    def heartbeat(self, call: Call, request: Any) -> None:
        self._note(f"heartbeat {request.group_id}")
        if self.rest is None:
            call.reply(group_writers.heartbeat(call.version, 0))
        else:
            call.answer_later(self.rest(call), request)

    async def create_topics(self, call: Call, request: Any) -> Any:
        self._note("create_topics")
        await self.cold_gate.wait()
        self.started.append("create_topics done")
        if self.created_bytes:
            return bytes(self.created_bytes)
        return CreateTopicsResponse(throttle_time=cast(Any, datetime.timedelta(0)), topics=())

    async def join_group(self, call: Call, request: Any) -> Any:
        self._note("join_group")
        try:
            await self.cold_gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append("join_group")
            raise
        return group_writers.join_group(call.version, ErrorCode.none.value, 1, None, "range", "m", "m", [])


@asynccontextmanager
async def running(handlers: Handlers, **settings: Any) -> AsyncIterator[tuple[Server, str]]:
    """A server on loopback and its address. To it the event loop never stalls: the clock of that does not move."""
    context = cast(BrokerContext, None)  # these handlers have no store
    server, now_s = Server(context, handlers.table(), Settings(**settings)), perf_counter()
    with patch.object(stalls, "perf_counter", lambda: now_s):
        port = await server.open("127.0.0.1", 0)
        try:
            yield server, f"127.0.0.1:{port}"
        finally:
            await server.close()


@asynccontextmanager
async def connected(handlers: Handlers, **settings: Any) -> AsyncIterator[tuple[Server, RawClient]]:
    """A server with one client."""
    async with running(handlers, **settings) as (server, address), await RawClient.connect(address) as client:
        yield server, client


async def another(server: Server) -> RawClient:
    """One more client of a server."""
    return await RawClient.connect(f"127.0.0.1:{server.ports[0]}")


async def closed(client: RawClient, timeout_s: float = 30.0) -> bytes:
    """What else the broker sends until it closes; fails when it stays open."""
    try:
        return await asyncio.wait_for(client.reader.read(), timeout_s)
    except ConnectionError:
        return b""


async def until(condition: Any, timeout_s: float = 30.0) -> None:
    """Wait for a condition of this process."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


def pass_time(server: Server, seconds: float) -> None:
    """All connections have been open, and without a frame, for so much longer."""
    for connection in server.connections:
        connection.last_active_s -= seconds
        connection.opened_s -= seconds


def raw_socket(server: Server) -> socket.socket:
    """A client whose bytes are in the broker's socket as soon as they are sent."""
    return socket.create_connection(("127.0.0.1", server.ports[0]))


def deliver(server: Server, sender: socket.socket, data: bytes, close: bool = False) -> None:
    """Send, and wait until the broker's socket has it all; the event loop does not turn meanwhile."""
    port, deadline_s = sender.getsockname()[1], monotonic() + 30
    (receiver,) = (one for one in server.connections if one.client.port == port)
    receiver.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * len(data))
    sender.sendall(data)
    if close:
        sender.close()
    fileno = _fileno(receiver)
    while _unread(fileno) < len(data) or (close and not _closed({fileno: receiver})):
        assert monotonic() < deadline_s, "the kernel did not deliver"
        sleep(0.001)
