"""The table of served APIs: key -> versions and handler. ApiVersions answers from it.

`@api` registers a coroutine that returns the newest version's response. `@inline_api` registers a plain function for
the few APIs of the hot path: no task and no future per request; it queues the request and answers later through
`call.reply`. With `raw=True` it gets the body as a memoryview instead of a decoded request.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kio.schema.index import api_key_map


def _api_keys() -> Any:
    return enum.IntEnum("ApiKey", {name.upper(): key for key, name in api_key_map.items()})


ApiKey = _api_keys()
"""Kafka's API keys, named as in its message files (`ApiKey.JOIN_GROUP`)."""

HANDLER_MODULES = (
    "discovery",
    "produce",
    "fetch",
    "positions",
    "classic_groups",
    "committed_offsets",
    "fetched_offsets",
    "group_admin",
    "topics",
    "configs",
    "transactions",
)


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
    large: Callable[..., None] | None = None
    """Handles an inline API's requests above `dispatch.LARGE_BYTES` instead of the handler, in slices."""

    def serves(self, version: int) -> bool:
        """Whether requests of that version are handled."""
        return self.first <= version <= self.last


served: dict[int, Api] = {}

TaskHandler = TypeVar("TaskHandler", bound=Callable[..., Awaitable[Any]])
Inline = TypeVar("Inline", bound=Callable[..., None])


def _register(
    key: int,
    first: int,
    last: int,
    handler: Callable[..., Any],
    *,
    inline: bool,
    raw: bool,
    listed_first: int | None,
    large: Callable[..., None] | None = None,
) -> None:
    if key in served and served[key].handler.__qualname__ != handler.__qualname__:
        raise ValueError(f"API {key} is registered twice")
    listed = first if listed_first is None else listed_first
    served[key] = Api(int(key), api_key_map[int(key)], first, last, handler, inline, raw, listed, large)


def api(key: int, first: int, last: int) -> Callable[[TaskHandler], TaskHandler]:
    """Register `async def handler(call, request) -> response` for versions first..last."""

    def register(handler: TaskHandler) -> TaskHandler:
        _register(key, first, last, handler, inline=False, raw=False, listed_first=None)
        return handler

    return register


def inline_api(
    key: int,
    first: int,
    last: int,
    *,
    raw: bool = False,
    listed_first: int | None = None,
    large: Callable[..., None] | None = None,
) -> Callable[[Inline], Inline]:
    """Register `def handler(call, request) -> None`; `listed_first` widens only what ApiVersions lists."""

    def register(handler: Inline) -> Inline:
        _register(key, first, last, handler, inline=True, raw=raw, listed_first=listed_first, large=large)
        return handler

    return register


def load_all() -> dict[int, Api]:
    """Import every handler module and return the table."""
    for module in HANDLER_MODULES:
        importlib.import_module(f"tidegate.apis.{module}")
    return served
