"""The log-in form; it posts to `broker/tidegate/http/login.py`."""

from __future__ import annotations

from aiohttp import web

from tidegate.http.access import ROLE
from tidegate.http.console.site import page
from tidegate.http.secrets import Role


async def login(request: web.Request) -> web.StreamResponse:
    """The log-in page, open to all; without an operator secret it explains how to set one."""
    return await page(
        request,
        "login.html",
        next=request.query.get("next", "/console/"),
        failed="failed" in request.query,
        closed=request[ROLE] is Role.NOBODY,
    )
