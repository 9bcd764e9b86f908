"""Answers to health probes without an HTTP library: GET /health/live and /health/ready, in one packet, without a body.

The connection is closed behind the answer (RFC 9112, 9.6). Whatever else a client sends is not answered here.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any, Final

from tidegate.http.headers import HEADERS
from tidegate.http.health import Health

LIVE_PATH: Final = "/health/live"
READY_PATH: Final = "/health/ready"
_BYTES_MAX: Final = 4_096
_PROBE: Final = re.compile(rf"GET ({LIVE_PATH}|{READY_PATH}) HTTP/1\.[01]\r\n((?:[A-Za-z-]+:[ -~]*\r\n)*)\r\n".encode())
_NAMES: Final = re.compile(rb"([A-Za-z-]+):.*\r\n")
_REASONS: Final = {200: "OK", 503: "Service Unavailable"}
_OF_BODIES: Final = frozenset({b"content-length", b"transfer-encoding", b"expect", b"upgrade"})


def live_answer() -> tuple[int, dict[str, Any]]:
    """Status and JSON of the liveness probe: 200 while the event loop runs."""
    return 200, {"live": True}


def ready_answer(health: Health) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the readiness probe: 200 when a new client would be served, else 503 with the reasons.

    How scripts are run changes neither.
    """
    reasons, scripts = health.reasons(), "functions" if health.runs_functions() else "evalsha"
    return 503 if reasons else 200, {"ready": not reasons, "reasons": reasons, "redis_scripts": scripts}


def answer(health: Health, data: bytes) -> bytes | None:
    """The response to a whole request if it is a plain probe, otherwise None."""
    found = _PROBE.fullmatch(data) if len(data) <= _BYTES_MAX else None
    if found is None:
        return None
    names = [name.lower() for name in _NAMES.findall(found[2])]
    if names.count(b"host") != 1 or not _OF_BODIES.isdisjoint(names):
        return None
    return _response(*(live_answer() if found[1] == LIVE_PATH.encode() else ready_answer(health)))


def _response(status: int, body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(text)),
        "Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        "Connection": "close",
        **HEADERS,
    }
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", *(f"{name}: {headers[name]}" for name in headers)]
    return "\r\n".join([*lines, "", ""]).encode() + text
