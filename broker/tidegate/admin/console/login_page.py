"""The log-in form; it posts to `broker/tidegate/admin/login.py`."""

from __future__ import annotations

from aiohttp import web

from tidegate.admin.access import ROLE
from tidegate.admin.console.site import page
from tidegate.admin.secrets import Role


async def login(request: web.Request) -> web.StreamResponse:
    """The log-in page, open to all; without an operator secret it explains how to set one."""
    return await page(
        request,
        "login.html",
        next=request.query.get("next", "/console/"),
        failed="failed" in request.query,
        closed=request[ROLE] is Role.NOBODY,
    )
