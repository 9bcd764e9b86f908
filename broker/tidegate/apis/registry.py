"""The table of served APIs: key -> versions, handler, and how its requests run. ApiVersions answers from it.

`@api` registers a coroutine that returns the newest version's response. `@inline_api` registers a plain function for
the few APIs of the hot path: no task and no future per request; it queues the request and answers later through
`call.reply`. With `raw=True` it gets the body as a memoryview instead of a decoded request.

A handler is annotated with the class of the newest version that it serves, imported for type checking only; with `Any`
where it reads fields that the newest version has not, such as topics by name beside topics by id.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

ErrorShape = Callable[[Any, ErrorCode], Any]
"""Called with the request, in its newest form, and the error code."""


@dataclass(frozen=True, slots=True)
class Api:
    """One served API. `first`..`last` are the versions advertised, both inclusive."""

    key: int
    name: str
    first: int
    last: int
    handler: Callable[..., Any]
    inline: bool
    raw: bool
    listed_first: int
    error: ErrorShape
    """The newest response to a request that failed as a whole, with its code in every field that clients check."""
    large: Callable[..., None] | None = None
    """Handles an inline API's requests above `dispatch.LARGE_BYTES` instead of the handler, in slices."""
    away: ErrorCode = ErrorCode.coordinator_not_available
    """The answer while Redis is away: a code that clients of this API retry on."""
    safe_late: bool = False
    """Requests may run after a stall longer than clients wait: they read, or carry the generation that they are of."""
    exclusive: bool = False
    """One request at a time per connection: the replies are large."""
    cancelled: bool = False
    """A handler that waits is cancelled when the client disconnects; others run to completion."""
    decoded_bytes_max: int = 16 << 20
    """Largest request that is decoded into objects: above it copying alone stalls the event loop. One with the most
    elements and names of usual length is smaller."""
    answers_large: bool = False
    """A short request may have an answer of megabytes, which is encoded in a thread."""
    confirmed: bool = False
    """Answered once what it has written is as durable as `durability` says; a failed request is answered at once."""
    prepared: bool = False
    """The routes are created after the start, in a thread: members of many groups ask at once."""

    def serves(self, version: int) -> bool:
        """Whether requests of that version are handled."""
        return self.first <= version <= self.last


served: dict[int, Api] = {}

TaskHandler = TypeVar("TaskHandler", bound=Callable[..., Awaitable[Any]])
Inline = TypeVar("Inline", bound=Callable[..., None])


def _register(api: Api) -> None:
    if api.key in served and served[api.key].handler.__qualname__ != api.handler.__qualname__:
        raise ValueError(f"API {api.key} is registered twice")
    served[api.key] = api


def api(key: int, first: int, last: int, *, error: ErrorShape, **traits: Any) -> Callable[[TaskHandler], TaskHandler]:
    """Register `async def handler(call, request) -> response` for versions first..last; `traits` are fields of Api."""

    def register(handler: TaskHandler) -> TaskHandler:
        run = _confirmed(handler) if traits.get("confirmed") else handler
        _register(Api(int(key), api_key_map[int(key)], first, last, run, False, False, first, error, **traits))
        return handler

    return register


def _confirmed(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(handler)
    async def run(call: Any, request: Any) -> Any:
        async with call.context.logs.durability.confirmed():
            return await handler(call, request)

    return run


def inline_api(
    key: int,
    first: int,
    last: int,
    *,
    error: ErrorShape,
    raw: bool = False,
    listed_first: int | None = None,
    **traits: Any,
) -> Callable[[Inline], Inline]:
    """Register `def handler(call, request) -> None`; `listed_first` widens only what ApiVersions lists."""
    listed = first if listed_first is None else listed_first

    def register(handler: Inline) -> Inline:
        _register(Api(int(key), api_key_map[int(key)], first, last, handler, True, raw, listed, error, **traits))
        return handler

    return register


def error_response(api_key: int, request: Any, code: ErrorCode) -> Any:
    """The served API's newest response to a request that failed as a whole."""
    return served[api_key].error(request, code)


@cache
def load_all() -> dict[int, Api]:
    """Import the modules beside this one and return the table."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"tidegate.apis.{module.name}")
    return served
