"""Declares REST endpoints: route, handler, and the pydantic models of query, body and response for OpenAPI."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import ValidationError

from tidegate.apis.call import BrokerContext
from tidegate.apis.slices import SLICE, pause
from tidegate.cluster.audit import Actor
from tidegate.http.access import ACTOR
from tidegate.http.models.base import Model, Nothing
from tidegate.http.problems import Problem
from tidegate.http.single_flight import SingleFlightCache

PREFIX: Final = "/api/v1"
CONTEXT: Final = web.AppKey("context", BrokerContext)
BODY: Final = web.RequestKey("body", Model)
"""The body of a REST request, once it is validated."""
READ_CACHE: Final = web.AppKey("read_cache", SingleFlightCache)
BODY_BYTES_MAX: Final = 4 << 20
"""Largest body of any request."""

_NAMED: Final = re.compile(r"{(\w+)}")


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Of one body. A body is decoded in one call, which takes 150 ms and 100 MiB for 4 MiB of empty objects."""

    bytes_max: int = 512 << 10
    values_max: int = 10_000
    """Values and commas: 1,000 partitions or quotas, with their fields, fit."""
    sliced: str = ""
    """A list that is validated in slices, 2 ms each, and has at most `items_max` elements."""
    items_max: int = 0


Query = TypeVar("Query", bound=Model)
Body = TypeVar("Body", bound=Model)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: the actor, the names in its path, and its query and body as the endpoint declares them."""

    context: BrokerContext
    actor: Actor
    names: Mapping[str, str]
    query: Any
    body: Any


Answers = Callable[[Asked], Awaitable[Mapping[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A declared handler. `gives` is None for a response without a body (204)."""

    method: str
    path: str
    handler: Answers
    gives: type[Model] | None
    query: type[Model]
    body: type[Model] | None
    tag: str
    fails: tuple[int, ...] = field(default=())
    shared: bool = False
    """Expensive and equal for all viewers: concurrent requests share one result (`SingleFlightCache`)."""
    body_limit: BodyLimit = field(default=BodyLimit())

    @property
    def operation_id(self) -> str:
        """The operationId, which generated clients use as the method name."""
        return self.handler.__name__

    @property
    def names(self) -> list[str]:
        """The parameter names in the path."""
        return _NAMED.findall(self.path)

    @property
    def changes(self) -> bool:
        """Whether it needs the operator role."""
        return self.method != "GET"

    def route(self) -> web.RouteDef:
        """The aiohttp route. A path parameter matches anything but a slash; aiohttp's default excludes braces."""
        path = _NAMED.sub(r"{\1:[^/]+}", self.path)
        return web.route(self.method, f"{PREFIX}{path}", self._run)

    async def _run(self, request: web.Request) -> web.Response:
        query = _taken(self.query, dict(request.query), "query")
        body = (
            await _body(self.body, await _read(request, self.body_limit), self.body_limit)
            if self.body is not None
            else None
        )
        if body is not None:
            request[BODY] = body
        asked = Asked(request.config_dict[CONTEXT], request[ACTOR], request.match_info, query, body)
        observations = request.config_dict[READ_CACHE]
        if self.shared:
            text = await observations.get((self.path, query), lambda: self._reported(asked))
        else:
            try:
                text = await self._reported(asked)
            finally:
                if self.changes:
                    observations.forget()
        if self.gives is None:
            return web.Response(status=204)
        return web.Response(text=text, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def _reported(self, asked: Asked) -> str:
        return await asyncio.to_thread(_text, await self.handler(asked))


endpoints: Final[list[Endpoint]] = []
"""Every endpoint, in the order of declaration."""


def endpoint(
    method: str,
    path: str,
    gives: type[Model] | None,
    *,
    query: type[Model] = Nothing,
    body: type[Model] | None = None,
    fails: tuple[int, ...] = (),
    shared: bool = False,
    body_limit: BodyLimit = BodyLimit(),
) -> Callable[[Answers], Answers]:
    """Declare a handler; `fails` are its statuses in addition to those of all endpoints."""

    def declare(handler: Answers) -> Answers:
        tag = path.split("/")[1]
        endpoints.append(Endpoint(method, path, handler, gives, query, body, tag, fails, shared, body_limit))
        return handler

    return declare


def _text(result: Any) -> str:
    """JSON, in steps of Python: `json.dumps` does not let other threads run, 70 ms for a group of 12,000 partitions."""
    return "".join(json.JSONEncoder().iterencode(result))


async def _body(model: type[Model], values: Any, limit: BodyLimit) -> Model:
    items = values.get(limit.sliced) if isinstance(values, dict) else None
    if not isinstance(items, list) or len(items) <= SLICE:
        return _taken(model, values, "body")
    if len(items) > limit.items_max:
        raise Problem(400, f"body.{limit.sliced}: at most {limit.items_max} items")
    found: list[Any] = []
    for first in range(0, len(items), SLICE):
        taken = _taken(model, values | {limit.sliced: items[first : first + SLICE]}, "body", first)
        found += getattr(taken, limit.sliced)
        await pause()
    return taken.model_copy(update={limit.sliced: found})


def _taken(model: type[Model], values: Any, where: str, first: int = 0) -> Model:
    """Validate; `first` is the index of a list's first element."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        wrong = [
            {
                "at": ".".join([where, *(str(at + first if isinstance(at, int) else at) for at in one["loc"])]),
                "detail": one["msg"].removeprefix("Value error, "),
            }
            for one in error.errors()
        ]
        detail = "; ".join(f"{one['at']}: {one['detail']}" for one in wrong[:3])
        raise Problem(400, detail, errors=wrong) from None


async def _read(request: web.Request, limit: BodyLimit) -> Any:
    if request.content_type != "application/json":
        raise Problem(415, "The body must be application/json.")
    if (request.content_length or 0) > limit.bytes_max:
        raise _too_large(f"{limit.bytes_max} bytes")
    try:
        text = await request.text()
        if len(text) > limit.bytes_max:
            raise _too_large(f"{limit.bytes_max} bytes")
        if sum(map(text.count, ",[{")) > limit.values_max:
            raise _too_large(f"{limit.values_max} values")
        return json.loads(text)
    except (ValueError, LookupError, RecursionError):
        raise Problem(400, "The body is not JSON, or nested too deep.") from None


def _too_large(most: str) -> Problem:
    return Problem(413, f"The body is too large: it may have at most {most}.")
