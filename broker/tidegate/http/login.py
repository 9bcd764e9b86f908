"""Log-in and log-out of the console; the page with the form is in `console/login_page.py`."""

from __future__ import annotations

from urllib.parse import quote

import structlog
from aiohttp import web

from tidegate.http.access import LOGIN_PATH, LOGOUT_PATH, Access, is_secure
from tidegate.http.forms import form_of
from tidegate.http.secrets import Role
from tidegate.http.sessions import COOKIE, drop_cookie, put_cookie

ACCESS = web.AppKey("access", Access)

logger = structlog.get_logger()


async def login(request: web.Request) -> web.StreamResponse:
    """POST `name`, `password`, `next`: redirects to `next` with a session cookie, or to the form with `failed=1`."""
    access = request.config_dict[ACCESS]
    form = await form_of(request)
    name, password, wanted = (str(form.get(field, "")) for field in ("name", "password", "next"))
    wanted = _own_page(wanted)
    access.check_pace(request)
    role = access.secrets.role_of_user(name, password)
    if role is Role.NOBODY:
        access.failed(request)
        raise web.HTTPSeeOther(f"{LOGIN_PATH}?failed=1&next={quote(wanted, safe='')}")
    logger.info("logged_in", name=name, remote=request.remote)
    answer = web.Response(status=303, headers={"Location": wanted})
    put_cookie(answer, access.sessions.begin(name, role), is_secure(request))
    return answer


async def logout(_: web.Request) -> web.StreamResponse:
    """End the session; requires its CSRF token."""
    answer = web.Response(status=303, headers={"Location": "/console/"})
    drop_cookie(answer)
    return answer


def csrf_token(request: web.Request) -> str:
    """The `csrf` field for this page's forms; "" without a session."""
    access = request.config_dict[ACCESS]
    session = access.sessions.read(request.cookies.get(COOKIE, ""))
    return access.sessions.csrf_token(session) if session is not None else ""


def routes() -> list[web.RouteDef]:
    """The POST routes."""
    return [web.post(LOGIN_PATH, login), web.post(LOGOUT_PATH, logout)]


def _own_page(wanted: str) -> str:
    """Accept paths of this console only: `//evil` and `/\\evil` lead to other sites."""
    own = wanted.startswith("/console/") and "\\" not in wanted and "//" not in wanted.partition("?")[0]
    return wanted if own and wanted.isprintable() else "/console/"
