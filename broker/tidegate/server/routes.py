"""The versions of the served APIs, each with what the socket layer must know to run its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Protocol

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import Api
from tidegate.protocol import codec, headers, log_writers
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.framing import Splitter
from tidegate.protocol.primitives import Buffer
from tidegate.protocol.versions import is_old
from tidegate.server.bad_frames import refuse_frame
from tidegate.server.muting import LOADING
from tidegate.telemetry.metrics import metrics

logger = structlog.get_logger()


class Route:
    """One version of one served API, with everything that dispatching its requests needs."""

    __slots__ = (
        "answers_large",
        "away",
        "changes_state",
        "decode",
        "decoded_bytes_max",
        "error",
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
        self.exclusive = api.exclusive
        self.away = api.away
        self.error = api.error
        self.decoded_bytes_max = api.decoded_bytes_max
        self.answers_large = api.answers_large
        self.changes_state = not api.safe_late
        """Not executed after a stall longer than clients wait for a reply (see `server.stalls`)."""
        self.plain = api.inline and not self.exclusive
        """Starts immediately when no task request is ahead of it."""
        self.waits = api.cancelled
        """Cancelled when the client disconnects; other handlers run to completion."""
        self.meter = metrics.apis[api.key].version(version)
        self.decode = codec.decoder(api.key, version)
        self.has_tags = headers.request_has_tags(api.key, version)
        header = headers.answer_header(api.key, version)
        self.pack: Callable[[int, int], bytes] = header.pack
        self.header_size = header.size - 4


Wrap = Callable[[Api], Callable[..., Any]]
"""Returns the function that runs an API's requests: the handler, unless it is wrapped (for example by tracing)."""


class LoadingConnection(Protocol):
    """What `find_route` uses of a connection."""

    splitter: Splitter
    blocked: int

    @property
    def server(self) -> Any:
        """The server of the connection, with its routes."""

    def resume(self) -> None:
        """Read again, if nothing else prevents it."""

    def close_after_replies(self, reason: str, pending: None) -> None:
        """Take no more requests; close after the replies."""


def find_route(
    connection: LoadingConnection, route_key: int, data: bytes | memoryview, start: int, end: int
) -> Route | None:
    """Create the route of a frame; None where its version is not served, or until its API is loaded in a thread."""
    routes: Routes = connection.server.routes
    if not routes.is_slow(route_key):
        route = routes.find(route_key)
        if route is None:
            reason = "API {} v{} is not served".format(*headers.api_and_version(route_key))
            refuse_frame(connection, reason, (data, start, end))
        return route

    def loaded(_: object) -> None:
        connection.blocked &= ~LOADING
        connection.resume()

    connection.splitter.put_back(data, start, end)
    connection.blocked |= LOADING
    routes.load(route_key).add_done_callback(loaded)
    return None


class Routes(dict[int, Route]):
    """`headers.route_key` -> route, created at the first request of each version.

    The first route of an API imports its schemas of all versions but the old ones, up to 100 ms, on a slow machine 300:
    `load` does this in a thread.
    """

    _loaded: ClassVar[set[tuple[int, bool]]] = set()
    """API keys, and whether their old versions: the codec keeps their schemas for the whole process."""

    def __init__(self, apis: Mapping[int, Api], wrap: Wrap = attrgetter("handler")) -> None:
        super().__init__()
        self._apis = apis
        self._wrap = wrap
        self._loading: dict[int, asyncio.Task[None]] = {}

    def find(self, route_key: int) -> Route | None:
        """The route of a header's API key and version; None when that version is not served."""
        api_key, version = headers.api_and_version(route_key)
        api = self._apis.get(api_key)
        if api is None:
            return None
        if not api.serves(version):
            return self._old_api_versions(api, version) if api_key == ApiKey.API_VERSIONS else None
        route = self[route_key] = Route(api, version, self._wrap(api))
        self._loaded.add(_schemas_of(route_key))
        return route

    def is_slow(self, route_key: int) -> bool:
        """Whether creating this route blocks for long."""
        api_key, version = headers.api_and_version(route_key)
        api = self._apis.get(api_key)
        return api is not None and _schemas_of(route_key) not in self._loaded and api.serves(version)

    def load(self, route_key: int) -> asyncio.Task[None]:
        """Create a route in a thread; one at a time of each API. After a failure, `find` fails too."""
        api_key, _ = headers.api_and_version(route_key)
        if api_key not in self._loading:
            loading = asyncio.get_running_loop().create_task(self._load(api_key, route_key))
            self._loading[api_key] = loading
        return self._loading[api_key]

    async def _load(self, api_key: int, route_key: int) -> None:
        try:
            await asyncio.to_thread(self.find, route_key)
        except Exception as error:
            logger.exception("api_not_loaded", api=api_key, error=str(error))
        finally:
            self._loaded.add(_schemas_of(route_key))
            del self._loading[api_key]

    def prepare(self, api_key: int) -> None:
        """Create the routes of all versions of an API. Takes tens of ms; may run in a thread."""
        api = self._apis[api_key]
        for version in range(api.first, api.last + 1):
            self.find(headers.route_key(api_key, version))

    @staticmethod
    def _old_api_versions(api: Api, version: int) -> Route:
        """Answer unsupported ApiVersions versions in v0, with UNSUPPORTED_VERSION and the served versions (KIP-511)."""
        body = log_writers.api_versions(
            0, ErrorCode.unsupported_version.value, [(ApiKey.API_VERSIONS, api.listed_first, api.last)]
        )

        def answer(call: Call, _: Buffer) -> None:
            call.reply(body)

        route = Route(Api(api.key, api.name, 0, 0, answer, True, True, 0, api.error), 0, answer)
        route.has_tags = version > 0  # the header is that of the version that the client sent
        return route


def _schemas_of(route_key: int) -> tuple[int, bool]:
    """What is loaded at once with a version: those of its API that are old, or all others."""
    api_key, version = headers.api_and_version(route_key)
    return api_key, is_old(api_key, version)
