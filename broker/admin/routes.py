"""The admin HTTP of one broker: health for probes, metrics for Prometheus, groups for people.

Loopback unless configured. Any broker answers for any group, and nothing here changes one.
"""

from __future__ import annotations

import json
import re
import socket

import prometheus_client
from aiohttp import web
from aiohttp.typedefs import Handler

import broker
from broker.admin import group_views
from broker.admin.health import Health
from broker.apis.call import Rooms
from broker.errors import GroupIdNotFound, KafkaError, StoreUnavailable
from broker.telemetry.metrics import registry

HEALTH = web.AppKey("health", Health)
ROOMS = web.AppKey("rooms", Rooms)

_HISTORY_MAX = 10_000
_ORG = re.compile(r"[a-z0-9-]{1,63}")
_GROUP = "{group:[^/]+}"
"""Braces too, which aiohttp leaves out by itself."""

_INDEX = f"""tidegate {broker.__version__}
/health/live   200 as long as the event loop turns
/health/ready  200, or 503 and the reasons
/metrics       Prometheus
/groups                    every group, with what troubles it; ?org=default, here and below
/groups/GROUP              one in full (percent-encode its id)
/groups/GROUP/history      its rebalances and events, newest first; ?count=100
/groups/GROUP/explain      why it does what it does
"""


async def index(request: web.Request) -> web.Response:
    """What there is, for who looks with a browser or curl."""
    return web.Response(text=_INDEX)


async def live(request: web.Request) -> web.Response:
    """200 as long as the event loop turns."""
    return web.json_response({"live": True})


async def ready(request: web.Request) -> web.Response:
    """200 when a new client would be served, else 503 with the reasons."""
    reasons = request.app[HEALTH].reasons()
    return web.json_response({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)


async def metrics(request: web.Request) -> web.Response:
    """Prometheus' text format, or OpenMetrics where the scraper asks for it."""
    encoder, content_type = prometheus_client.exposition.choose_encoder(request.headers.get("Accept", ""))
    return web.Response(body=encoder(registry()), headers={"Content-Type": content_type})


async def groups(request: web.Request) -> web.Response:
    """Every group of an organisation."""
    found = await group_views.view_all(request.app[ROOMS], _org(request))
    return web.json_response({"groups": [group_views.listed(one) for one in found]})


async def group(request: web.Request) -> web.Response:
    """One group: identity, state, members, partitions."""
    found = await group_views.view(request.app[ROOMS], _org(request), request.match_info["group"])
    return web.json_response(group_views.described(found))


async def history(request: web.Request) -> web.Response:
    """A group's rebalances and events."""
    count = request.query.get("count", "100")
    if not count.isdigit() or not 0 < int(count) <= _HISTORY_MAX:
        raise _bad(f"count is 1 to {_HISTORY_MAX}")
    group_id = request.match_info["group"]
    return web.json_response(await group_views.history(request.app[ROOMS], _org(request), group_id, int(count)))


async def explain(request: web.Request) -> web.Response:
    """What is to be said of a group."""
    found = await group_views.view(request.app[ROOMS], _org(request), request.match_info["group"])
    return web.json_response(group_views.explained(found))


def _org(request: web.Request) -> str:
    org = request.query.get("org", "default")
    if _ORG.fullmatch(org) is None:  # it is a part of key names
        raise _bad("org is 1 to 63 of a-z, 0-9 and -")
    return org


def _bad(reason: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=json.dumps({"error": reason}), content_type="application/json")


@web.middleware
async def _failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Failures that have a meaning, as JSON."""
    try:
        return await handler(request)
    except GroupIdNotFound:
        return web.json_response({"error": f"there is no group {request.match_info['group']}"}, status=404)
    except StoreUnavailable as error:
        return web.json_response({"error": f"Redis does not answer: {error}"}, status=503)
    except KafkaError as error:
        return web.json_response({"error": str(error)}, status=503)


def application(health: Health, rooms: Rooms | None = None) -> web.Application:
    """The routes, over one broker's health and rooms."""
    app = web.Application(middlewares=[_failures])
    app[HEALTH] = health
    if rooms is not None:
        app[ROOMS] = rooms
        app.add_routes(
            [
                web.get("/groups", groups),
                web.get(f"/groups/{_GROUP}", group),
                web.get(f"/groups/{_GROUP}/history", history),
                web.get(f"/groups/{_GROUP}/explain", explain),
            ]
        )
    app.add_routes(
        [
            web.get("/", index),
            web.get("/health/live", live),
            web.get("/health/ready", ready),
            web.get("/metrics", metrics),
        ]
    )
    return app


class AdminServer:
    """The admin HTTP server on a bound socket. Raises OSError at `start` when it cannot listen."""

    def __init__(self, health: Health, sock: socket.socket, rooms: Rooms | None = None) -> None:
        self._runner = web.AppRunner(application(health, rooms), access_log=None, shutdown_timeout=1.0)
        self._sock = sock

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        await web.SockSite(self._runner, self._sock).start()

    async def close(self) -> None:
        """Stop listening and close what is open."""
        await self._runner.cleanup()
        self._sock.close()
