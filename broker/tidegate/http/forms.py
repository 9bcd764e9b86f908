"""Parses browser forms; a malformed form is answered with a 4xx status, also before authentication."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import http_exceptions, web
from multidict import MultiDictProxy

FORM: Final = "application/x-www-form-urlencoded"
FIELDS_READ: Final = web.RequestKey("fields_read", dict[str, str])
"""The fields of a form that its handler has read."""
_CONSOLE: Final = "/console/"
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""


def has_form(request: web.Request) -> bool:
    """Whether a request may be a form of the console. Other endpoints read their query and JSON, never a form."""
    return request.path.startswith(_CONSOLE) and request.method not in READS and request.content_type == FORM


async def form_of(request: web.Request) -> MultiDictProxy[Any]:
    """The fields of a form. Raises HTTPUnsupportedMediaType, HTTPBadRequest."""
    if request.content_type != FORM:
        raise web.HTTPUnsupportedMediaType(text=f"A form is {FORM}.")
    try:
        return await request.post()
    except (ValueError, LookupError, web.RequestPayloadError, http_exceptions.HttpProcessingError):
        raise web.HTTPBadRequest(text="The form cannot be read.") from None
