"""The client's side of the wire: frames in and out, answers in order, a deadline for each request."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tests.kit.wire import decode_response, encode_request
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network

CONNECT_TIMEOUT_S: Final = 1.0
_CORRELATION: Final = struct.Struct(">i")
_CORRELATION_AT: Final = 8

OnAnswer = Callable[[bytes], None]


class Disconnected(Exception):
    """The connection is gone, or did not answer in time: whether the request was taken is not known."""


class Wire:
    """One connection of a client. Raises Disconnected from everything that waits."""

    def __init__(self, net: Network, port: int, on_closed: Callable[[], None]) -> None:
        self._loop: SimLoop = net.loop
        self.port, self._on_closed = port, on_closed
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._expected: deque[tuple[bytes, OnAnswer | asyncio.Future[bytes]]] = deque()
        self._correlation_id = 0
        self._received = b""
        self.open = True
        self._pipe = net.dial(port, self._on_open, self._on_data, self._closed)

    async def ready(self) -> None:
        """Wait until connected."""
        try:
            await asyncio.wait_for(self._opened, CONNECT_TIMEOUT_S)
        except TimeoutError:
            self.close()
            raise Disconnected from None

    def _on_open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def send(self, frame: bytes, on_answer: OnAnswer | asyncio.Future[bytes]) -> None:
        """Send a whole frame; its correlation id is put in."""
        self._correlation_id += 1
        correlation = _CORRELATION.pack(self._correlation_id)
        self._expected.append((correlation, on_answer))
        self._pipe.send(frame[:_CORRELATION_AT] + correlation + frame[_CORRELATION_AT + 4 :])

    async def ask(self, request: Any, client_id: str, timeout_s: float) -> Any:
        """Send a request and wait for its answer."""
        payload = await self.ask_frame(encode_request(request, 0, client_id), timeout_s)
        return decode_response(int(request.__api_key__), int(request.__version__), payload)[1]

    async def ask_frame(self, frame: bytes, timeout_s: float) -> bytes:
        """Send a whole frame and wait for the answer's payload. A connection that is late is given up."""
        if not self.open:
            raise Disconnected
        answered: asyncio.Future[bytes] = self._loop.create_future()
        self.send(frame, answered)
        late = self._loop.call_later(timeout_s, self.close)
        try:
            return await answered
        finally:
            late.cancel()

    def _on_data(self, data: bytes) -> None:
        received, begin = self._received + data, 0
        while len(received) - begin >= 4:
            end = begin + 4 + int.from_bytes(received[begin : begin + 4], "big")
            if len(received) < end:
                break
            payload, begin = received[begin + 4 : end], end
            correlation, on_answer = self._expected.popleft()
            assert payload[:4] == correlation, "an answer out of turn"
            if isinstance(on_answer, asyncio.Future):
                if not on_answer.done():
                    on_answer.set_result(payload)
            else:
                on_answer(payload)
        self._received = received[begin:]

    def close(self) -> None:
        """Give the connection up."""
        if self.open:
            self._pipe.hang_up()
            self._closed()

    def _closed(self) -> None:
        if not self.open:
            return
        self.open = False
        if not self._opened.done():
            self._opened.set_exception(Disconnected())
            self._opened.exception()
        expected, self._expected = self._expected, deque()
        for _, on_answer in expected:
            if isinstance(on_answer, asyncio.Future) and not on_answer.done():
                on_answer.set_exception(Disconnected())
                on_answer.exception()
        self._on_closed()

    @property
    def deaf(self) -> bool:
        """Whether it waits for a host that vanished without closing the connection."""
        return self._pipe.deaf
