"""The admin HTTP of one broker: health for probes, metrics for Prometheus, REST, and the console.

Any broker answers for the whole cluster from the data in Redis, and none asks another. Binds to loopback by default.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache, partial

from aiohttp import web
from aiohttp.typedefs import Handler

import tidegate
from tidegate.apis.call import BrokerContext
from tidegate.errors import KafkaError
from tidegate.http import api, login, probes, problems
from tidegate.http.access import OWN_DRAIN_PATH, Access, is_page
from tidegate.http.api import openapi
from tidegate.http.api.endpoint import BODY_BYTES_MAX, CONTEXT, PREFIX, READ_CACHE
from tidegate.http.connection_limiter import CHECK_INTERVAL_MS, ConnectionLimiter
from tidegate.http.console import pages as console
from tidegate.http.console.rendering import ROOT as CONSOLE_ROOT
from tidegate.http.console.site import CONSOLE, Console, refused
from tidegate.http.headers import HEADERS
from tidegate.http.health import Health
from tidegate.http.late_requests import LateRequests
from tidegate.http.login import ACCESS
from tidegate.http.oidc import OpenIdLogin
from tidegate.http.people import People
from tidegate.http.problems import Problem
from tidegate.http.request_audit import RequestAudit, note_authentication
from tidegate.http.secrets import Secrets
from tidegate.http.single_flight import SingleFlightCache
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.telemetry.metrics import exposition

HEALTH = web.AppKey("health", Health)

_INDEX = f"""tidegate {tidegate.__version__}
/health/live           200 as long as the event loop turns
/health/ready          200, or 503 and the reasons
/metrics               Prometheus
{PREFIX}/openapi.json   groups, topics, brokers, Redis, audit: what there is to ask and to change
/console/              the same for people
"""


async def index(request: web.Request) -> web.Response:
    """A list of the routes for curl; browsers are redirected to the console."""
    if "text/html" in request.headers.get("Accept", ""):
        raise web.HTTPFound(f"{CONSOLE_ROOT}/")
    return web.Response(text=_INDEX)


async def live(request: web.Request) -> web.Response:
    """Answer the liveness probe."""
    status, body = probes.live_answer()
    return web.json_response(body, status=status)


async def ready(request: web.Request) -> web.Response:
    """Answer the readiness probe."""
    status, body = probes.ready_answer(request.app[HEALTH])
    return web.json_response(body, status=status)


async def metrics(request: web.Request) -> web.StreamResponse:
    """Prometheus' text format, or OpenMetrics if the scraper asks for it."""
    chunks, content_type = exposition(request.headers.get("Accept", ""))
    response = web.StreamResponse(headers={"Content-Type": content_type})
    response.content_length = sum(map(len, chunks))
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    return response


async def drain(request: web.Request) -> web.Response:
    """Make this broker drain and exit as by SIGTERM, without Redis.

    For operators, and for programs on the broker's own machine, such as Kubernetes' preStop hook.
    """
    request.app[CONTEXT].ask_to_drain(f"admin HTTP, {request.remote}")
    return web.json_response({"draining": True}, status=202)


async def describe_api(request: web.Request) -> web.Response:
    """The OpenAPI document."""
    return web.Response(text=await asyncio.to_thread(_document), content_type="application/json")


@cache
def _document() -> str:
    return json.dumps(openapi.document(api.endpoints))


@web.middleware
async def _failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert KafkaError, Problem and HTTP exceptions into RFC 9457 responses."""
    try:
        return await handler(request)
    except Problem as problem:
        if is_page(request) and CONSOLE in request.config_dict:
            return await refused(request, problem)
        return problems.answer(problem, request.path)
    except KafkaError as error:
        return problems.answer(problems.as_problem(error), request.path)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return problems.answer(Problem(error.status, f"{error.reason}.", headers=allowed), request.path)


async def _guard(request: web.Request, answer: web.StreamResponse) -> None:
    """Add the headers that forbid foreign scripts and frames to every response."""
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)


def application(
    health: Health,
    context: BrokerContext | None = None,
    access: Access | None = None,
    connection_limiter: ConnectionLimiter | None = None,
) -> web.Application:
    """The routes of one broker; `access` authorises requests, `connection_limiter` limits connections."""
    rules = access or Access(Secrets(), "", "127.0.0.1")
    before = [connection_limiter.middleware] if connection_limiter is not None else []
    trail = None if context is None else context.audit
    if trail is not None:
        rules.on_login = partial(note_authentication, trail)
        rules.on_refused = lambda request, mechanism, reason: note_authentication(
            trail, request, mechanism, None, reason
        )
    middlewares = [*before, _failures, RequestAudit(trail).middleware, rules.middleware]
    if context is not None:
        middlewares.append(LateRequests(context).middleware)
    app = web.Application(middlewares=middlewares, client_max_size=BODY_BYTES_MAX)
    app.on_response_prepare.append(_guard)
    app[HEALTH] = health
    app[ACCESS] = rules
    if context is not None:
        app[CONTEXT], app[READ_CACHE] = context, SingleFlightCache()
        app[CONSOLE] = Console(context, app[READ_CACHE])
        app.add_routes([one.route() for one in api.endpoints])
        app.add_routes([web.get(f"{PREFIX}/openapi.json", describe_api), web.post(OWN_DRAIN_PATH, drain)])
        app.add_routes(login.routes())
        app.add_subapp(f"{CONSOLE_ROOT}/", console.application())
    app.add_routes(
        [
            web.get("/", index),
            web.get(probes.LIVE_PATH, live),
            web.get(probes.READY_PATH, ready),
            web.get("/metrics", metrics),
        ]
    )
    return app


class AdminServer:
    """The admin HTTP server; `bound_to` is the address of its port. Raises CannotStart for secrets and roles."""

    def __init__(self, health: Health, bound_to: str, context: BrokerContext) -> None:
        settings = context.settings
        secrets, security = Secrets.read(settings), context.security
        self._people = People(settings, secrets, None if security is None else security.users)
        cluster_id = context.broker_lease.cluster_id
        self._access = access = Access(secrets, cluster_id, bound_to, settings.admin_allowed_hosts, self._people)
        if settings.admin_oidc_issuer_url:
            access.issuer = OpenIdLogin(settings, secrets.oidc_client_secret, access.sessions)
        self._connection_limiter = ConnectionLimiter()
        self._runner = web.AppRunner(
            application(health, context, access, self._connection_limiter),
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=self._connection_limiter.idle_s,
            auto_decompress=False,  # compressed requests are not accepted
        )
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        await self._runner.setup()
        self._loops.every("admin_door", CHECK_INTERVAL_MS, self._connection_limiter.close_slow)

    def protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        server = self._runner.server
        assert server is not None
        return self._connection_limiter.protocol(server)

    async def close(self) -> None:
        """Close all connections."""
        await self._loops.close()
        await self._runner.cleanup()
        await self._people.close()
        if self._access.issuer is not None:
            await self._access.issuer.close()
