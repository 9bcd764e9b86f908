"""The log-in form; it posts to `broker/tidegate/http/login.py`."""

from __future__ import annotations

from aiohttp import web

from tidegate.http.access import ROLE
from tidegate.http.console.site import page
from tidegate.http.login import ACCESS
from tidegate.http.secrets import Role


async def login(request: web.Request) -> web.StreamResponse:
    """The log-in page, open to all; without an operator secret it explains how to set one."""
    access = request.config_dict[ACCESS]
    return await page(
        request,
        "login.html",
        next=request.query.get("next", "/console/"),
        failed="failed" in request.query,
        at_issuer=request.query.get("failed") == "issuer",
        closed=request[ROLE] is Role.NOBODY,
        people=bool(access.secrets.roles),
        issuer=access.issuer is not None,
    )
