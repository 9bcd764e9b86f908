"""The console's routes, common response headers, and error pages."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

import tidegate
from tidegate.apis.call import BrokerContext
from tidegate.errors import GroupIdNotFound, KafkaError, StoreUnavailable, UnknownTopicOrPartition
from tidegate.http.access import ACTOR, ROLE
from tidegate.http.console.lag_trend import LagTrend
from tidegate.http.console.rendering import DIRECTORY, ROOT, rendered
from tidegate.http.login import ACCESS, csrf_token
from tidegate.http.people import PERSON, is_bound
from tidegate.http.problems import Problem, as_problem
from tidegate.http.secrets import Role
from tidegate.http.single_flight import Found, SingleFlightCache

logger = structlog.get_logger()

DONE: Final = {
    "deleted": "Group {} and its offsets are deleted; the audit can put the offsets back.",
    "removed": "{} is removed; the others rebalance, and it joins again if it is alive.",
    "drains": "Broker {} is asked to drain; it ends when its clients are gone.",
}
"""The result messages of forms. A page shows one only after a local form, because a URL alone can be crafted."""
_STATIC: Final = {path.name: path for path in (DIRECTORY / "static").iterdir()}
_KEPT: Final = "public, max-age=31536000, immutable"
_ORG: Final = re.compile(r"[a-z0-9-]{1,63}")
_FRESH_S: Final = 1.0
_COMPRESSED_FROM: Final = 4_096


@dataclass(slots=True)
class Console:
    """State shared by the pages: the broker's context, and cached results for concurrent readers."""

    context: BrokerContext
    observations: SingleFlightCache
    trend: LagTrend = field(default_factory=LagTrend)

    async def observe(self, key: Hashable, observe: Callable[[], Awaitable[Found]]) -> Found:
        """Load a page's data, shared by concurrent readers."""
        return await self.observations.get(key, observe, _FRESH_S)


CONSOLE: Final = web.AppKey("console", Console)


def console_of(request: web.Request) -> Console:
    return request.config_dict[CONSOLE]


def org_of(request: web.Request) -> str:
    """The organisation of a page. Raises HTTPBadRequest."""
    return valid_org(request.query.get("org", "default"))


def valid_org(org: str) -> str:
    """Validate an organisation's name. Raises HTTPBadRequest."""
    if _ORG.fullmatch(org) is None:
        raise web.HTTPBadRequest(text="An organisation is 1 to 63 of a-z, 0-9 and -.")
    return org


def named(request: web.Request, name: str) -> str:
    """A required query parameter. Raises HTTPNotFound."""
    value = request.query.get(name, "")
    if not value:
        raise web.HTTPNotFound(text=f"This address names no {name}.")
    return value


async def page(request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
    """Render a template with the values common to all pages."""
    context = console_of(request).context
    org = values.pop("org", request.query.get("org", "default"))
    role = request.get(ROLE, Role.NOBODY)  # a request rejected before authentication has no role
    known = context.catalog.all_topics() if role >= Role.VIEWER else ()  # the log-in form is open to all
    person = request.get(PERSON)
    orgs = [person.org] if is_bound(person) else sorted({"default", org, *(topic.org for topic in known)})  # type: ignore[union-attr]
    text = await rendered(
        template,
        retry=values.pop("retry", status >= 500 and request.method == "GET"),
        version=tidegate.__version__,
        node_id=context.broker_lease.node_id,
        path=request.path,
        here=request.path_qs,
        again=request.path_qs if request.method == "GET" else _from(request),
        org=org,
        orgs=orgs,
        bound=is_bound(person),
        operator=role >= Role.OPERATOR,
        operators=request.config_dict[ACCESS].secrets.operators,
        who=request[ACTOR].name if ACTOR in request else "anonymous",
        notice=_notice(request),
        csrf=csrf_token(request),
        **values,
    )
    answer = web.Response(text=text, content_type="text/html", status=status)
    answer.headers["Cache-Control"] = "no-store"
    if len(text) > _COMPRESSED_FROM:
        answer.enable_compression()
    return answer


def _notice(request: web.Request) -> str:
    """The result message that a form redirected to; "" for an address that no local page led to."""
    return DONE.get(request.query.get("done", ""), "").format(request.query.get("what", "")) if _from(request) else ""


def _from(request: web.Request) -> str:
    """The local page that submitted this form; "" when unknown."""
    referer = urlsplit(request.headers.get("Referer", ""))
    own = referer.netloc == request.host and referer.path.startswith(ROOT)
    return f"{referer.path}{'?' + referer.query if referer.query else ''}" if own else ""


@web.middleware
async def failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert exceptions into error pages with a remedy."""
    try:
        return await handler(request)
    except (GroupIdNotFound, UnknownTopicOrPartition):
        what = "topic" if "topic" in request.query else "group"
        return await page(
            request,
            "error.html",
            status=404,
            title=f"There is no such {what}",
            sentence=f"Organisation {request.query.get('org', 'default')} has no {what} {request.query.get(what, '')}.",
            advice=f"It may have been deleted, or it belongs to another organisation. See the list of {what}s.",
        )
    except StoreUnavailable as error:
        return await _redis_away(request, error)
    except KafkaError as error:
        problem = as_problem(error)
        return await page(
            request,
            "error.html",
            status=problem.status,
            title="This was refused" if request.method == "POST" else "Not available now",
            sentence=problem.detail,
            advice="Nothing else was changed." if request.method == "POST" else "The page tries again by itself.",
        )
    except Problem as problem:
        return await refused(request, problem)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return await page(
            request,
            "error.html",
            status=error.status,
            title=error.reason,
            sentence=error.text or "",
            advice="Start from the overview.",
        )
    except Exception:
        logger.exception("page_failed", path=request.path)
        return await page(
            request,
            "error.html",
            status=500,
            title="This page is broken",
            sentence="The broker failed to make this page; its log says where.",
            advice="Clients are not affected. The command line shows the same: tidegate group explain.",
        )
    finally:
        if request.method == "POST":
            console_of(request).observations.forget()


async def refused(request: web.Request, problem: Problem) -> web.Response:
    """An error page with the content of a problem response; also for requests rejected before authentication."""
    answer = await page(
        request,
        "error.html",
        status=problem.status,
        title="This was refused" if request.method == "POST" else "This cannot be shown",
        sentence=problem.detail,
        advice="Nothing was changed." if request.method == "POST" and problem.status < 500 else "",
        retry=False,
    )
    answer.headers.update(problem.headers or {})
    return answer


async def _redis_away(request: web.Request, error: StoreUnavailable) -> web.Response:
    links = console_of(request).context.store.links
    down = [link.name for link in links if not link.connected]
    return await page(
        request,
        "error.html",
        status=503,
        title="Redis does not answer",
        sentence=f"This broker has no answer from Redis: {error}.",
        advice="Groups, offsets and logs are in Redis: nothing can be shown of them until it is back. Brokers answer "
        "clients with errors that they try again on, and members keep their place if it is back within their session "
        "timeout. This page tries again by itself.",
        facts=[
            ("Connections to Redis that are down", f"{len(down)} of {len(links)}: {', '.join(down) or 'none'}"),
            ("Groups of members", "not lost: they are in Redis"),
        ],
    )


async def static(request: web.Request) -> web.StreamResponse:
    """A script or style sheet; its URL changes with the version."""
    name = request.match_info["name"]
    if name not in _STATIC:
        raise web.HTTPNotFound(text=f"There is no {name}.")
    return web.FileResponse(_STATIC[name], headers={"Cache-Control": _KEPT})


def application(routes: list[web.RouteDef]) -> web.Application:
    """The console application; the parent application holds CONSOLE."""
    app = web.Application(middlewares=[failures])
    app.add_routes([*routes, web.get(r"/static/{version}/{name}", static)])
    return app
