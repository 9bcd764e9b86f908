"""Frame -> handler -> reply. The only module that maps exceptions to error codes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis.registry import Api
from tidegate.errors import KafkaError, StoreUnavailable
from tidegate.log.offload import DECODED
from tidegate.protocol import codec, error_responses, fast_writers, headers
from tidegate.protocol.schema_walk import Buffer, DecodeError
from tidegate.telemetry.metrics import metrics

if TYPE_CHECKING:
    from tidegate.server.pending_request import PendingRequest

logger = structlog.get_logger()

PRODUCE, FETCH, JOIN_GROUP, SYNC_GROUP, API_VERSIONS = 0, 1, 11, 14, 18

LARGE_BYTES: Final = 64 * 1024
"""Requests above this many bytes are decoded in a thread: decoding their elements may take many ms."""

STORE_AWAY: Final[Mapping[int, ErrorCode]] = {
    0: ErrorCode.request_timed_out,  # the outcome is unknown; KAFKA_STORAGE_ERROR means that nothing was appended
    1: ErrorCode.kafka_storage_error,
    2: ErrorCode.kafka_storage_error,
    3: ErrorCode.leader_not_available,
    9: ErrorCode.not_coordinator,
    19: ErrorCode.request_timed_out,
    20: ErrorCode.request_timed_out,
    23: ErrorCode.kafka_storage_error,
    32: ErrorCode.request_timed_out,
    37: ErrorCode.request_timed_out,
    60: ErrorCode.request_timed_out,
}
"""API key -> the error code that clients retry on; all other APIs use COORDINATOR_NOT_AVAILABLE."""


CHANGING_NOTHING: Final = frozenset(
    {1, 2, 3, 9, 10, 12, 14, 15, 16, 17, 18, 23, 29, 32, 35, 36, 46, 48, 50, 55, 60, 61, 65, 66, 69, 74, 75, 77}
)
"""APIs whose requests are safe to execute late: reads, and Heartbeat and SyncGroup, which carry their generation."""


class Route:
    """One version of one served API, with everything that dispatching its requests needs."""

    __slots__ = (
        "changes_state",
        "decode",
        "exclusive",
        "handler",
        "has_tags",
        "header_size",
        "inline",
        "key",
        "large",
        "meter",
        "name",
        "pack",
        "plain",
        "raw",
        "version",
        "waits",
    )

    def __init__(self, api: Api, version: int, handler: Callable[..., Any]) -> None:
        self.key = api.key
        self.name = api.name
        self.version = version
        self.handler = handler
        self.large = handler if api.large is None else api.large
        self.inline = api.inline
        self.raw = api.raw
        self.exclusive = api.key == FETCH
        """Concurrency 1 per connection: the replies are large."""
        self.changes_state = api.key not in CHANGING_NOTHING
        """Not executed after a stall longer than clients wait for a reply (see `server.stalls`)."""
        self.plain = api.inline and not self.exclusive
        """Starts immediately when no task request is ahead of it."""
        self.waits = api.key in (JOIN_GROUP, SYNC_GROUP)
        """Cancelled when the client disconnects; other handlers run to completion."""
        self.meter = metrics.apis[api.key].version(version)
        self.decode = codec.decoder(api.key, version)
        self.has_tags = headers.request_has_tags(api.key, version)
        header = headers.answer_header(api.key, version)
        self.pack: Callable[[int, int], bytes] = header.pack
        self.header_size = header.size - 4


class Routes(dict[int, Route]):
    """`headers.route_key` -> route, created at the first request of each version."""

    def __init__(self, apis: Mapping[int, Api]) -> None:
        super().__init__()
        self._apis = apis
        self.wrap: Callable[[Api], Callable[..., Any]] = attrgetter("handler")
        """Returns the function that runs an API's requests: the handler, unless it is wrapped (for example by
        tracing)."""

    def find(self, route_key: int) -> Route | None:
        """The route of a header's API key and version; None when that version is not served."""
        api_key, version = headers.api_and_version(route_key)
        api = self._apis.get(api_key)
        if api is None:
            return None
        if not api.serves(version):
            return self._old_api_versions(api) if api_key == API_VERSIONS else None
        route = self[route_key] = Route(api, version, self.wrap(api))
        return route

    def prepare(self, api_key: int) -> None:
        """Create the routes of all versions of an API. Takes tens of ms; may run in a thread."""
        api = self._apis[api_key]
        for version in range(api.first, api.last + 1):
            self.find(headers.route_key(api_key, version))

    @staticmethod
    def _old_api_versions(api: Api) -> Route:
        """Answer unsupported ApiVersions versions in v0, with UNSUPPORTED_VERSION and the served versions (KIP-511)."""
        body = fast_writers.api_versions(
            0, ErrorCode.unsupported_version.value, [(API_VERSIONS, api.listed_first, api.last)]
        )

        def answer(pending: PendingRequest, _: Buffer) -> None:
            pending.reply(body)

        route = Route(Api(api.key, api.name, 0, 0, answer, True, True, 0), 0, answer)
        route.has_tags = False
        return route


def start(pending: PendingRequest) -> None:
    """Pass a request to its handler. A body that cannot be decoded closes the connection."""
    route = pending.route
    if pending.end - pending.start > LARGE_BYTES and not route.raw:
        pending.run_alone()
        pending.task = asyncio.get_running_loop().create_task(_run_large(pending))
        return
    try:
        if route.raw:
            request: Any = memoryview(pending.data)[pending.start : pending.end]
        else:
            request = route.decode(pending.data, pending.start, pending.end)
        pending.data = b""
    except DecodeError as error:
        pending.close(f"malformed {route.name} v{route.version}: {error}")
        return
    if not route.inline:
        pending.task = asyncio.get_running_loop().create_task(_run_task(pending, request))
        return
    try:
        route.handler(pending, request)  # same as `_run_hot`, without the extra Python frame
    except DecodeError as error:
        pending.close(f"malformed {route.name} v{route.version}: {error}")
    except Exception as error:  # noqa: BLE001 - every failure of a handler becomes an answer
        fail(pending, request, error)


def _run_hot(pending: PendingRequest, request: Any, handler: Callable[..., Any]) -> None:
    route = pending.route
    try:
        handler(pending, request)
    except DecodeError as error:
        pending.close(f"malformed {route.name} v{route.version}: {error}")
    except Exception as error:  # noqa: BLE001 - every failure of a handler becomes an answer
        fail(pending, request, error)


async def _run_large(pending: PendingRequest) -> None:
    """Decode in a thread; meanwhile later requests of the connection wait."""
    route, data = pending.route, pending.data
    pending.data = b""
    try:
        request = await DECODED.run(route.decode, data, pending.start, pending.end)
    except DecodeError as error:
        pending.close(f"malformed {route.name} v{route.version}: {error}")
        return
    del data
    if not route.inline:
        await _run_task(pending, request, large=True)
    elif not pending.client_is_gone:
        pending.task = None
        _run_hot(pending, request, route.large)
        if route.exclusive:  # it may wait long, as a small request may
            pending.let_later_start()


async def _run_task(pending: PendingRequest, request: Any, large: bool = False) -> None:
    try:
        response = await pending.route.handler(pending, request)
        written = isinstance(response, bytes | list)
        if written:
            body = response
        elif large:
            body = await DECODED.run(codec.encode, pending.api_key, pending.version, response)
        else:
            body = codec.encode(pending.api_key, pending.version, response)
    except Exception as error:  # noqa: BLE001 - every failure of a handler becomes an answer
        fail(pending, request, error)
    else:
        pending.reply(body)
    finally:
        pending.task = None


def code_of(api_key: int, error: BaseException) -> ErrorCode:
    """The error code of a request that failed as a whole."""
    if isinstance(error, StoreUnavailable):
        return STORE_AWAY.get(api_key, ErrorCode.coordinator_not_available)
    if isinstance(error, KafkaError):
        return error.code
    return ErrorCode.unknown_server_error


def fail(pending: PendingRequest, request: Any, error: BaseException) -> None:
    """Reply with the error response for the exception of a failed handler."""
    route = pending.route
    code = code_of(route.key, error)
    if code is ErrorCode.unknown_server_error:
        logger.error("request_failed", api=route.name, version=route.version, exc_info=error)
    if pending.answer is not None:
        return
    pending.note_error(code)
    try:
        if route.raw:
            request = codec.decode(route.key, route.version, request)
        if route.key == PRODUCE and request.acks == 0:
            pending.close(f"Produce with acks=0 failed: {code.name}")
            return
        body = codec.encode(route.key, route.version, error_responses.error_response(route.key, request, code))
    except DecodeError as malformed:
        pending.close(f"malformed {route.name} v{route.version}: {malformed}")
    except Exception:
        logger.exception("error_response_failed", api=route.name, version=route.version)
        pending.close(f"{route.name} failed and its error cannot be told")
    else:
        pending.reply(body)
