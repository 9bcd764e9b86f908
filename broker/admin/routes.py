"""The admin HTTP of one broker: health for probes, metrics for Prometheus. Loopback unless configured."""

from __future__ import annotations

import socket

import prometheus_client
from aiohttp import web

import broker
from broker.admin.health import Health
from broker.telemetry.metrics import registry

HEALTH = web.AppKey("health", Health)


_INDEX = f"""tidegate {broker.__version__}
/health/live   200 as long as the event loop turns
/health/ready  200, or 503 and the reasons
/metrics       Prometheus
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


def application(health: Health) -> web.Application:
    """The routes, over one broker's health."""
    app = web.Application()
    app[HEALTH] = health
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

    def __init__(self, health: Health, sock: socket.socket) -> None:
        self._runner = web.AppRunner(application(health), access_log=None, shutdown_timeout=1.0)
        self._sock = sock

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        await web.SockSite(self._runner, self._sock).start()

    async def close(self) -> None:
        """Stop listening and close what is open."""
        await self._runner.cleanup()
        self._sock.close()
