"""Forms as browsers send them; what cannot be read is the sender's fault and not ours, before any login too."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import http_exceptions, web
from multidict import MultiDictProxy

FORM: Final = "application/x-www-form-urlencoded"


async def form_of(request: web.Request) -> MultiDictProxy[Any]:
    """The fields of a form. Raises HTTPUnsupportedMediaType, HTTPBadRequest."""
    if request.content_type != FORM:
        raise web.HTTPUnsupportedMediaType(text=f"A form is {FORM}.")
    try:
        return await request.post()
    except (ValueError, LookupError, web.RequestPayloadError, http_exceptions.HttpProcessingError):
        raise web.HTTPBadRequest(text="The form cannot be read.") from None
