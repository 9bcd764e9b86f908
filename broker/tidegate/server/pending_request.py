"""One request in its connection's pipeline: the handler's `Call`, and the slot for its reply.

The only module that maps exceptions to error codes of whole requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from time import perf_counter
from typing import Any, Final, Protocol

import structlog
from kio.schema.errors import ErrorCode

from tidegate.admissions import Admissions
from tidegate.apis.call import Body, BrokerContext, Call, Client
from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.log.offload import ENCODED
from tidegate.protocol import codec
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.primitives import Buffer, DecodeError
from tidegate.server.limits import RequestBytes
from tidegate.server.routes import Route
from tidegate.telemetry.metrics import metrics

logger = structlog.get_logger()

COPIED_BYTES_MAX: Final = 16 * 1024
"""Bodies up to this many bytes are joined with their header; larger ones are sent without a copy."""
ENCODED_INLINE_BYTES_MAX: Final = 1024
"""Answers to requests of more bytes are encoded in a thread: each byte may be an element, whose answer takes up to 25
us."""


def code_of(away: ErrorCode, error: BaseException) -> ErrorCode:
    """The error code of a request that failed as a whole; `away` is its API's while Redis is away."""
    if isinstance(error, StoreUnavailable):
        return away
    if isinstance(error, KafkaError):
        return error.code
    return ErrorCode.unknown_server_error


def _error_answer(route: Route, request: Any, code: ErrorCode) -> bytes | str:
    """The error response to a whole request, or why its connection closes instead. For any thread."""
    try:
        if route.raw:
            request = codec.decode(route.key, route.version, request)
        if route.key == ApiKey.PRODUCE and request.acks == 0:
            return f"Produce with acks=0 failed: {code.name}"
        return codec.encode(route.key, route.version, route.error(request, code))
    except DecodeError as malformed:
        return f"malformed {route.name} v{route.version}: {malformed}"
    except Exception:
        logger.exception("error_response_failed", api=route.name, version=route.version)
        return f"{route.name} failed and its error cannot be encoded"


class Dropped:
    """Marks a request that gets no reply."""


class Closed:
    """Marks a request that closes its connection when its turn to be answered comes."""


DROPPED: Final = Dropped()
CLOSED: Final = Closed()

Answer = bytes | list[Body] | Dropped | Closed


class SharedByConnections(Protocol):
    """What a request uses of its server."""

    context: BrokerContext
    draining: asyncio.Event
    request_bytes: RequestBytes
    large_requests: Admissions


class Pipeline(Protocol):
    """What a request uses of its connection."""

    client: Client
    client_id: str
    unsent: int
    closed: bool

    @property
    def server(self) -> SharedByConnections:
        """The server of the connection."""

    @property
    def pipeline(self) -> deque[PendingRequest]:
        """Requests without a reply, in order of arrival."""

    def run_alone(self, pending: PendingRequest) -> None:
        """Start no later request before this one is answered."""

    def let_later_start(self, pending: PendingRequest) -> None:
        """End `run_alone`."""

    def close_after_replies(self, reason: str, pending: PendingRequest | None) -> None:
        """Close after the reply to `pending`."""

    def mute(self, seconds: float) -> None:
        """Take no more requests for a while."""

    def advance(self) -> None:
        """Send the replies that are next."""


class PendingRequest(Call):
    """A request; holds its body until it starts and its reply until that is sent."""

    __slots__ = ("answer", "connection", "data", "end", "held", "route", "start", "task")

    def __init__(
        self,
        connection: Pipeline,
        route: Route,
        correlation_id: int,
        data: Buffer,
        start: int,
        end: int,
        now_s: float,
    ) -> None:
        self.connection = connection
        self.route = route
        self.correlation_id = correlation_id
        self.data = data
        self.start = start
        self.end = end
        self.arrived_s = now_s
        self.held = 0
        self.answer: Answer | None = None
        self.task: asyncio.Task[None] | None = None
        self.context = connection.server.context
        self.draining = connection.server.draining
        self.client = client = connection.client
        client.software.requests += 1
        self.client_id = connection.client_id
        self.api_key = route.key
        self.version = route.version

    def reply(self, body: Body | Sequence[Body]) -> None:
        """Set the reply; exactly once. Has no effect after the client disconnected."""
        if self.answer is not None:
            logger.error("duplicate_reply_bug", api=self.route.name)
            return
        route = self.route
        if type(body) is bytes and len(body) <= COPIED_BYTES_MAX:
            answer = route.pack(len(body) + route.header_size, self.correlation_id) + body
            self.answer = answer
            self.connection.unsent += len(answer)
        else:
            parts: list[Body] = [body] if isinstance(body, Body) else list(body)
            size = sum(map(len, parts))
            parts.insert(0, route.pack(size + route.header_size, self.correlation_id))
            self.answer = parts
            self.connection.unsent += size + 4 + route.header_size
        route.meter.observe(perf_counter() - self.arrived_s)
        self._answered()

    def drop(self) -> None:
        """Send no reply (Produce with acks=0)."""
        if self.answer is None:
            self.answer = DROPPED
            self.route.meter.observe(perf_counter() - self.arrived_s)
            self._answered()

    def run_alone(self) -> None:
        """Make later requests wait for this reply, as behind a task request."""
        if self.answer is None:
            self.connection.run_alone(self)

    def mute(self, seconds: float) -> None:
        """Take no more requests of the connection for a while."""
        self.connection.mute(seconds)

    def let_later_start(self) -> None:
        """Allow later requests to start before this one is answered."""
        self.connection.let_later_start(self)

    @property
    def client_is_gone(self) -> bool:
        """Whether the connection is closed."""
        return self.connection.closed

    def close(self, reason: str) -> None:
        """Close the connection after all earlier replies; later requests are not parsed."""
        if self.answer is None:
            self.answer = CLOSED
            self.connection.close_after_replies(reason, self)
            self._answered()

    def answer_later(self, work: Coroutine[Any, Any, None], request: Any) -> None:
        """Run the rest of the handler in a task; what it raises becomes the answer."""
        self.task = self.context.tasks.start(self._answer_later(work, request))

    async def _answer_later(self, work: Coroutine[Any, Any, None], request: Any) -> None:
        this = asyncio.current_task()
        try:
            await work
        except Exception as error:  # noqa: BLE001 - every failure of a handler becomes an answer
            await self.fail_in_task(request, error)
        finally:
            if self.task is this:  # else the rest has a rest of its own
                self.task = None

    def fail(self, request: Any, error: BaseException) -> None:
        """Reply with the error response for the exception of a failed inline handler; to a large request, in a task."""
        code = self._failed_with(error)
        if code is None:
            return
        if self.is_encoded_in_thread:
            self.run_alone()
            self.task = asyncio.get_running_loop().create_task(self._fail_alone(request, code))
        else:
            self._reply_or_close(_error_answer(self.route, request, code))

    async def fail_in_task(self, request: Any, error: BaseException) -> None:
        """The same in the task of the handler."""
        if not self.is_encoded_in_thread:
            self.fail(request, error)
        elif (code := self._failed_with(error)) is not None:
            self._reply_or_close(await ENCODED.run(_error_answer, self.route, request, code))

    async def _fail_alone(self, request: Any, code: ErrorCode) -> None:
        """Later requests wait, undecoded: a connection has one such answer at a time."""
        try:
            self._reply_or_close(await ENCODED.run(_error_answer, self.route, request, code))
        finally:
            self.task = None
            self.let_later_start()

    def _failed_with(self, error: BaseException) -> ErrorCode | None:
        """Count the exception and return its code; None if the request is answered."""
        route = self.route
        code = code_of(route.away, error)
        if code is ErrorCode.unknown_server_error:
            logger.error("request_failed", api=route.name, version=route.version, exc_info=error)
        if self.answer is not None:
            return None
        self.note_error(code)
        return code

    def _reply_or_close(self, answer: bytes | str) -> None:
        if isinstance(answer, str):
            self.close(answer)
        else:
            self.reply(answer)

    @property
    def is_encoded_in_thread(self) -> bool:
        """Whether the answer may have so many elements that the event loop would wait for its encoding."""
        return self.end - self.start > ENCODED_INLINE_BYTES_MAX

    def note_error(self, code: ErrorCode) -> None:
        """Count the error code of a request that failed as a whole."""
        metrics.apis[self.api_key].error(code.value)

    def _answered(self) -> None:
        connection = self.connection
        if self.held:
            connection.server.request_bytes.release(self.held)
            self.held = 0
        pipeline = connection.pipeline
        if pipeline and pipeline[0] is self:
            connection.advance()
