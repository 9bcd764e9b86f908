"""Log-in and log-out of the console; the page with the form is in `console/login_page.py`."""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import quote

import structlog
from aiohttp import web

from tidegate.http.access import LOGIN_PATH, LOGOUT_PATH, Access, is_secure
from tidegate.http.forms import form_of
from tidegate.http.oidc import COOKIE as LOGIN_COOKIE
from tidegate.http.oidc import LOGIN_S, LoginFailed
from tidegate.http.problems import Problem
from tidegate.http.secrets import Role
from tidegate.http.sessions import COOKIE, drop_cookie, put_cookie

ACCESS = web.AppKey("access", Access)
ISSUER_PATH: Final = f"{LOGIN_PATH}/issuer"
CALLBACK_PATH: Final = f"{LOGIN_PATH}/callback"

logger = structlog.get_logger()


async def login(request: web.Request) -> web.StreamResponse:
    """POST `name`, `password`, `next`: redirects to `next` with a session cookie, or to the form with `failed=1`."""
    access = request.config_dict[ACCESS]
    form = await form_of(request)
    name, password, wanted = (str(form.get(field, "")) for field in ("name", "password", "next"))
    wanted = _own_page(wanted)
    access.check_pace(request)
    role, person = await access.identify(name, password)
    if role is Role.NOBODY:
        access.failed(request)
        raise web.HTTPSeeOther(f"{LOGIN_PATH}?failed=1&next={quote(wanted, safe='')}")
    logger.info("logged_in", name=name, remote=request.remote)
    access.on_login(request, "form", person or name)
    session = access.sessions.begin(name, role) if person is None else access.sessions.begin_for(person)
    answer = web.Response(status=303, headers={"Location": wanted})
    put_cookie(answer, session, is_secure(request))
    return answer


async def begin_at_issuer(request: web.Request) -> web.StreamResponse:
    """Send the browser to the OpenID issuer."""
    access = request.config_dict[ACCESS]
    if access.issuer is None:
        raise Problem(404, "No OpenID issuer is configured: TIDEGATE_ADMIN_OIDC_ISSUER_URL.")
    wanted = _own_page(request.query.get("next", ""))
    try:
        begun = await access.issuer.begin(_callback(request), wanted)
    except LoginFailed as error:
        raise _refused_by_issuer(request, error) from None
    answer = web.Response(status=303, headers={"Location": begun.url})
    # Lax, for it comes back from another site.
    answer.set_cookie(
        LOGIN_COOKIE, begun.cookie, max_age=LOGIN_S, path=LOGIN_PATH, httponly=True, samesite="Lax",
        secure=is_secure(request),
    )  # fmt: skip
    return answer


async def end_at_issuer(request: web.Request) -> web.StreamResponse:
    """The browser is back from the issuer, with a code or an error."""
    access = request.config_dict[ACCESS]
    if access.issuer is None or access.people is None:
        raise Problem(404, "No OpenID issuer is configured: TIDEGATE_ADMIN_OIDC_ISSUER_URL.")
    query = request.query
    try:
        if "error" in query:
            raise LoginFailed(f"the issuer answers {query['error'][:100]!r}")
        cookie = request.cookies.get(LOGIN_COOKIE, "")
        identity, wanted = await access.issuer.end(
            cookie, query.get("state", ""), query.get("code", ""), _callback(request)
        )
        person = access.people.of_identity(identity)
        if person is None:
            raise LoginFailed(f"{identity.principal} has no role in TIDEGATE_ADMIN_ROLES")
    except LoginFailed as error:
        raise _refused_by_issuer(request, error) from None
    logger.info("logged_in", name=person.principal, remote=request.remote)
    access.on_login(request, "OpenID Connect", person)
    # A page and no redirect: the browser sends a SameSite=Strict cookie only where a page of this site led it.
    target = escape(wanted)
    page = f'<!doctype html><meta http-equiv="refresh" content="0;url={target}"><a href="{target}">Continue</a>'
    answer = web.Response(text=page, content_type="text/html", headers={"Cache-Control": "no-store"})
    put_cookie(answer, access.sessions.begin_for(person), is_secure(request))
    answer.del_cookie(LOGIN_COOKIE, path=LOGIN_PATH, httponly=True, samesite="Lax")
    return answer


def _callback(request: web.Request) -> str:
    return f"{'https' if is_secure(request) else 'http'}://{request.host}{CALLBACK_PATH}"


def _refused_by_issuer(request: web.Request, error: LoginFailed) -> web.HTTPSeeOther:
    logger.warning("login_refused", remote=request.remote, reason=str(error))
    request.config_dict[ACCESS].on_refused(request, "OpenID Connect", str(error))
    return web.HTTPSeeOther(f"{LOGIN_PATH}?failed=issuer")


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
    """The routes but for the page."""
    return [
        web.post(LOGIN_PATH, login),
        web.post(LOGOUT_PATH, logout),
        web.get(ISSUER_PATH, begin_at_issuer),
        web.get(CALLBACK_PATH, end_at_issuer),
    ]


def _own_page(wanted: str) -> str:
    """Accept paths of this console only: `//evil` and `/\\evil` lead to other sites."""
    own = wanted.startswith("/console/") and "\\" not in wanted and "//" not in wanted.partition("?")[0]
    return wanted if own and wanted.isprintable() else "/console/"
