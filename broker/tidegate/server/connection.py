"""One client connection: parses requests in order, sends replies in order, and limits both.

An inline request starts on arrival unless a task request is running or queued. A task request starts when every earlier
request is answered. Effects therefore keep the order of arrival where it matters, and replies always do. All replies
that become ready in one event-loop tick are sent in one write.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from functools import partial
from time import perf_counter
from typing import Any, Final

import structlog

from tidegate.apis.call import Body, Client
from tidegate.protocol import headers
from tidegate.protocol.framing import Splitter
from tidegate.protocol.primitives import DecodeError
from tidegate.quotas.entities import canonical_address
from tidegate.server import dispatch, limits
from tidegate.server.acceptor import Acceptor
from tidegate.server.bad_frames import not_taken
from tidegate.server.limits import FRAMES_AT_ONCE, IN_FLIGHT_MAX
from tidegate.server.muting import BLOCKED_ON_WRITE, Muting
from tidegate.server.pending_request import CLOSED, PendingRequest
from tidegate.server.reading_on import ReadingOn
from tidegate.server.repeated_requests import RepeatedRequest, note_repeated
from tidegate.server.request_memory import RequestMemory
from tidegate.server.routes import find_route
from tidegate.server.stalls import take_late
from tidegate.server.sweeping import ConnectionState
from tidegate.server.tls_transport import OverTls
from tidegate.telemetry.metrics import metrics

logger = structlog.get_logger()

_read_header = headers.FIXED.unpack_from
_HEADER_SIZE: Final = headers.FIXED.size
_AT_ONCE: Final = range(FRAMES_AT_ONCE)


class Connection(OverTls, Muting, RequestMemory, ReadingOn, asyncio.BufferedProtocol):
    identified_on_accept = True
    """Whether the client's organisation is known when the connection is accepted."""

    def __init__(self, server: Acceptor[Connection], listener: str) -> None:
        self.server, self.client_id = server, ""
        self.client = Client(connection_id=server.next_connection_id(), host="", port=0, listener=listener)
        self.pipeline: deque[PendingRequest] = deque()
        """Requests without a reply, in order of arrival; the first one is answered next."""
        self.unsent = 0
        """Bytes of replies that wait for an earlier reply or for the end of the tick."""
        self._client_id_raw = b""
        self.repeated: RepeatedRequest | None = None
        self.queue: deque[PendingRequest] = deque()
        self._task_request: PendingRequest | None = None
        self._exclusive: PendingRequest | None = None
        self.splitter = Splitter(server.request_bytes_max)
        self.taken_s = self._paused_s = 0.0
        """Times of the last complete frame and of the last pause of reading, by `perf_counter`."""
        self.half_since_s = math.inf
        """When the current partial frame was first observed; moved forward by the time that reading was paused."""
        self.late_bytes = 0
        """Bytes still to be parsed that were already in the socket when the process resumed after a stall."""
        self.transport: Any = None
        self.out: list[Body] = []
        """Replies for the next write."""
        self._reading = self._scheduled = self._starting = self._own_buffer = self._paused = self._resuming = False
        self._closing = self._draining = self._ended = self.closed = False
        self.last_active_s = self.opened_s = perf_counter()
        self.jitter = random.uniform(-1, 1)  # noqa: S311 - spreads reconnects, no secret
        """Position of this connection in the jitter of the maximum age, -1 to 1."""

    # -- callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set socket options and register the connection, or refuse it above `connections_max`."""
        self.transport = self.encrypting(transport)
        if not self.server.admit(self):
            self.closed = True
            self.transport.abort()
            return
        host, self.client.port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.client.host = canonical_address(host)
        limits.tune(transport.get_extra_info("socket"))
        self.transport.set_write_buffer_limits(high=min(limits.WRITE_BUFFER_MAX, self.server.out_bytes_max))

    def get_buffer(self, sizehint: int) -> Any:
        """The buffer for the next read: a large frame's own buffer, or the read buffer that all connections share."""
        buffer = self.splitter.own_buffer()
        self._own_buffer = buffer is not None
        return self.server.shared_buffer if buffer is None else buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse and start every complete frame in the received bytes."""
        self.last_active_s = perf_counter()
        metrics.bytes_in += nbytes
        if self._own_buffer:
            self.splitter.wrote(nbytes)
            if self.splitter.whole:
                self.server.request_bytes.received(self.client.host, self)
        else:
            self.splitter.feed(bytes(self.server.shared_buffer[:nbytes]))
        if self.last_active_s > self.server.trusted_until_s:
            self.server.check_trust(self.last_active_s)
        self.server.tick.reads_left -= 1  # as `is_full`, without its call
        if self.server.tick.reads_left < 0 and self.server.tick.exhausted():
            self._pause()
            self.resume()
        else:
            self._take_frames()

    def eof_received(self) -> bool:
        """The client closed its side: take what came before that, then close ours."""
        if self._resuming:  # over TLS uvloop reports the end of a connection that is paused
            self._paused = False
            self._take_frames()
        self._ended = True
        self.discard_unencrypted()
        return False

    def resume_writing(self) -> None:
        """The write buffer is below its low-water mark: start queued requests, resume reading."""
        if self.tls is not None and self.tls.on_resume():
            return
        self.blocked &= ~BLOCKED_ON_WRITE
        self.last_active_s = perf_counter()
        self._start_queued()
        self.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel waits; running handlers finish without a reply."""
        self.server.forget(self)
        self.discard_unencrypted()
        if self.closed:
            return
        self.closed = self._ended = True
        held = self.splitter.reserved if self.splitter.whole else 0
        pipeline, self.pipeline = self.pipeline, deque()
        self.queue.clear()
        self.out = []
        for pending in pipeline:
            held += pending.held
            pending.held, pending.data = 0, b""
            if pending.task is not None and pending.route.waits:
                pending.task.cancel()
        self.server.request_bytes.abandon(self.client.host, self)
        self.server.request_bytes.release(held)
        self.client.end()

    # -- frames

    def _take_frames(self) -> None:
        """Start every complete frame; stop at a limit, and continue from there after `resume`."""
        server, splitter = self.server, self.splitter
        pipeline = self.pipeline
        out_bytes_max = server.out_bytes_max
        take = self.take if self.late_bytes <= 0 else partial(take_late, self)
        self._reading = True
        frame = None
        try:
            for _ in _AT_ONCE:
                if self._closing or self._draining:
                    break
                if len(pipeline) >= IN_FLIGHT_MAX or self.unsent >= out_bytes_max or self.blocked or not server.serving:
                    self._pause()
                    break
                if frame is not None and frame[2] == len(frame[0]):
                    break  # nothing was received behind it
                frame = splitter.take()
                if frame is None:
                    self._reserve_frame()
                    break
                if self.client.delayed is not None:
                    self.client.delayed.on_next_request()
                take(*frame)
            else:
                self._pause()
                self.resume()
        except Exception as error:  # noqa: BLE001 - nothing may leave the connection waiting
            not_taken(self, frame, error)
        self._reading = False
        if self.out and not self._ended:
            self._flush()
            if self._paused:
                self.resume()

    def take(self, data: bytes | memoryview, start: int, end: int) -> None:
        """Find the route of one frame, and start or queue its request. Raises DecodeError."""
        if self.repeated is not None and self.repeated.answer(self, data, start, end):
            return
        if end - start < _HEADER_SIZE:
            raise DecodeError(f"a frame of {end - start} bytes")
        route_key, correlation_id, client_id_size = _read_header(data, start)
        server = self.server
        route = server.routes.get(route_key) or find_route(self, route_key, data, start, end)
        if route is None:
            return
        position = start + _HEADER_SIZE
        before, position = position, position + (client_id_size if client_id_size > 0 else 0)
        if data[before:position] != self._client_id_raw:
            self._note_client_id(data[before:position])
        if route.has_tags:
            untagged = position < end and data[position] == 0
            position = position + 1 if untagged else headers.skip_header_tags(data, position, end)
        if position > end:
            raise DecodeError("a header that ends too early")
        self.taken_s = self.last_active_s
        pending = server.request_type(self, route, correlation_id, data, position, end, self.last_active_s)
        self.pipeline.append(pending)
        if route.plain and self._task_request is None and not self.queue:
            dispatch.start(pending)
        else:
            self._start_or_queue(pending)
        if pending.answer is None or type(data) is memoryview:
            self._reserve(pending, data, end - start)
        elif self.client.repeat is not None:
            note_repeated(self, pending, data, start, end)

    def _note_client_id(self, raw: bytes | memoryview) -> None:
        """Decode the client id once: clients send the same one in every request. Raises DecodeError."""
        self.client_id = headers.client_id_of(raw)
        self._client_id_raw = bytes(raw)

    # -- order

    def _may_start(self, pending: PendingRequest) -> bool:
        if not pending.route.inline:
            return self.pipeline[0] is pending
        return self._task_request is None and not (pending.route.exclusive and self._exclusive is not None)

    def _start_or_queue(self, pending: PendingRequest) -> None:
        if not self.queue and self._may_start(pending):
            self._start(pending)
        else:
            self.queue.append(pending)

    def _start(self, pending: PendingRequest) -> None:
        if not pending.route.inline:
            self._task_request = pending
        elif pending.route.exclusive:
            self._exclusive = pending
        dispatch.start(pending)

    def advance(self) -> None:
        """Move ready replies from the head of the pipeline to the output, and start requests that may start now."""
        pipeline, out = self.pipeline, self.out
        while pipeline and (answer := pipeline[0].answer) is not None:
            pending = pipeline.popleft()
            if pending is self._task_request:
                self._task_request = None
            if pending is self._exclusive:
                self._exclusive = None
            if type(answer) is bytes:
                out.append(answer)
            elif isinstance(answer, list):
                out.extend(answer)
            elif answer is CLOSED:
                self._flush_and_close()
                return
        if self.queue and not self._starting:
            self._start_queued()
        if not (self._reading or self._scheduled):
            self._scheduled = True
            self.server.tick.flush_soon(self)

    def run_alone(self, pending: PendingRequest) -> None:
        """Make later requests wait for the reply to this one, as behind a task request."""
        self._task_request = pending

    def let_later_start(self, pending: PendingRequest) -> None:
        """Allow later requests to start before this one is answered."""
        if self._task_request is pending:
            self._task_request = None
            if self.queue and not self._starting:
                self._start_queued()

    def _start_queued(self) -> None:
        self._starting, queue = True, self.queue
        while queue and not self._ended and not self.blocked & BLOCKED_ON_WRITE and self._may_start(queue[0]):
            self._start(queue.popleft())
        self._starting = False

    def flush(self) -> None:
        """Send all replies that became ready in this tick in one write."""
        self._scheduled = False
        if self._ended:
            return
        if self.out:
            self._flush()
        if self._draining and not self.pipeline:
            self._flush_and_close()
        elif self._paused:
            self.resume()

    def _flush(self) -> None:
        out, self.out = self.out, []
        self.last_active_s = perf_counter()
        size = sum(map(len, out))
        self.unsent -= size
        metrics.bytes_out += size
        if len(out) == 1:
            self.transport.write(out[0])
        elif size <= limits.JOINED_BYTES_MAX:
            self.transport.write(b"".join(out))
        else:
            self.transport.writelines(out)

    # -- back-pressure

    def _pause(self) -> None:
        if not (self._paused or self._ended):
            self._paused, self._paused_s = True, perf_counter()
            self.transport.pause_reading()

    def resume(self) -> None:
        """Resume reading when every limit is below half: the hysteresis avoids a pause at each request."""
        server = self.server
        self._unblock_answered()
        if not self._paused or self._ended or self._closing or self._draining or self.blocked:
            return
        full = len(self.pipeline) * 2 > IN_FLIGHT_MAX
        if full or self.unsent * 2 > server.out_bytes_max or not server.serving:
            return
        if not self._resuming:
            self._resuming = True
            server.loop.call_soon(self._read_on)

    # -- closing

    def close_after_replies(self, reason: str, pending: PendingRequest | None) -> None:
        """Parse no more requests; close after the reply to `pending`, or after all replies when it is None."""
        if self._closing or self._ended:
            return
        self._closing = True
        client_id = self.client_id[: limits.LOGGED_ID_MAX]
        logger.info("connection_refused_request", reason=reason, host=self.client.host, client_id=client_id)
        self._pause()
        if pending is None:
            if self.pipeline:
                self._draining = True
            else:
                self._flush_and_close()

    def drain(self) -> None:
        """Close between requests: at once when idle, otherwise after the replies to all parsed requests."""
        if self._ended:
            return
        self._draining = True
        self._pause()
        if self.client.delayed is not None:
            self.client.delayed.on_drain()
        if not self.pipeline:
            self._flush_and_close()

    @property
    def state(self) -> ConnectionState:
        """The connection's state for the sweeper and for a drain."""
        if self._ended or (self.splitter.partial and not self._paused):
            return ConnectionState.READING
        if self.blocked & BLOCKED_ON_WRITE:
            return ConnectionState.BLOCKED_ON_WRITE
        if self._paused or self._task_request is not None or self.queue:
            return ConnectionState.WAITING
        return ConnectionState.SERVING if len(self.pipeline) > self.client.delayed_count else ConnectionState.IDLE

    def abort(self, reason: str | None = None) -> None:
        """Close the socket immediately, and log the reason if any. Group members keep their membership."""
        if reason is not None:
            client_id = self.client_id[: limits.LOGGED_ID_MAX]
            logger.info("connection_abort", reason=reason, host=self.client.host, client_id=client_id)
        self._ended = self._closing = True
        if not self.closed:
            self.transport.abort()

    def _flush_and_close(self) -> None:
        """Write the ready replies, then close."""
        self._closing = True
        if self._ended:
            return
        if self.out:
            self._flush()
        self._ended = True
        self.transport.close()
