"""The versions of the served APIs, each with what the socket layer must know to run its requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.registry import Api
from tidegate.protocol import codec, fast_writers, headers
from tidegate.protocol.schema_walk import Buffer
from tidegate.telemetry.metrics import metrics

API_VERSIONS: Final = 18


class Route:
    """One version of one served API, with everything that dispatching its requests needs."""

    __slots__ = (
        "away",
        "changes_state",
        "decode",
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


class Routes(dict[int, Route]):
    """`headers.route_key` -> route, created at the first request of each version."""

    def __init__(self, apis: Mapping[int, Api], wrap: Wrap = attrgetter("handler")) -> None:
        super().__init__()
        self._apis = apis
        self._wrap = wrap

    def find(self, route_key: int) -> Route | None:
        """The route of a header's API key and version; None when that version is not served."""
        api_key, version = headers.api_and_version(route_key)
        api = self._apis.get(api_key)
        if api is None:
            return None
        if not api.serves(version):
            return self._old_api_versions(api, version) if api_key == API_VERSIONS else None
        route = self[route_key] = Route(api, version, self._wrap(api))
        return route

    def prepare(self, api_key: int) -> None:
        """Create the routes of all versions of an API. Takes tens of ms; may run in a thread."""
        api = self._apis[api_key]
        for version in range(api.first, api.last + 1):
            self.find(headers.route_key(api_key, version))

    @staticmethod
    def _old_api_versions(api: Api, version: int) -> Route:
        """Answer unsupported ApiVersions versions in v0, with UNSUPPORTED_VERSION and the served versions (KIP-511)."""
        body = fast_writers.api_versions(
            0, ErrorCode.unsupported_version.value, [(API_VERSIONS, api.listed_first, api.last)]
        )

        def answer(call: Call, _: Buffer) -> None:
            call.reply(body)

        route = Route(Api(api.key, api.name, 0, 0, answer, True, True, 0, api.error), 0, answer)
        route.has_tags = version > 0  # the header is that of the version that the client sent
        return route
