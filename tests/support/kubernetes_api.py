"""As much of Kubernetes' API as Spark asks for, over HTTP on loopback: what is made is kept; pods may be started."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

Resource = dict[str, Any]


class KubernetesApi:
    """`made` is every resource, by kind. `on_pod` is called with each pod."""

    def __init__(self, on_pod: Callable[[Resource], None] | None = None) -> None:
        self.made: dict[str, dict[str, Resource]] = {}
        self._on_pod = on_pod

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            api = self

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}") if length else {}
                status, reply = self.api.asked(self.command, urlsplit(self.path).path, body)
                text = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *reported: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> KubernetesApi:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def asked(self, verb: str, path: str, body: Resource) -> tuple[int, Resource]:
        """`/api/v1/namespaces/<namespace>/<kind>[/<name>]`."""
        parts = path.strip("/").split("/")
        if "namespaces" not in parts:
            return 200, {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
        kind, *name = parts[parts.index("namespaces") + 2 :] or ["namespaces"]
        is_delayed = self.made.setdefault(kind, {})
        if verb in ("POST", "PUT", "PATCH"):
            return 201 if verb == "POST" else 200, self._make(kind, body)
        if not name:
            reply = {
                "kind": f"{kind.removesuffix('s').title()}List",
                "apiVersion": "v1",
                "items": list(is_delayed.values()),
            }
            return 200, {**reply, "metadata": {"resourceVersion": "1"}}
        if name[0] not in is_delayed:
            return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound"}
        return 200, is_delayed[name[0]]

    def _make(self, kind: str, body: Resource) -> Resource:
        metadata = body.setdefault("metadata", {})
        metadata |= {"uid": str(uuid.uuid4()), "resourceVersion": "1", "namespace": "default"}
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        new = metadata["name"] not in self.made[kind]
        self.made[kind][metadata["name"]] = body
        if kind == "pods" and new:
            body["status"] = {"phase": "Running", "podIP": "127.0.0.1", "containerStatuses": []}
            if self._on_pod:
                self._on_pod(body)
        return body
