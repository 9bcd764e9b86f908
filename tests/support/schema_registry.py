"""A schema registry over HTTP with the paths of Confluent's REST interface that clients of it read."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class SchemaRegistry:
    """A context; `login` is `user:password`. `requests` counts paths, `failures` the answers that are to be 503."""

    login: str = ""
    failures: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    _schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    _subjects: dict[str, list[int]] = field(default_factory=dict)

    def register(
        self, subject: str, schema: object, kind: str = "AVRO", references: Sequence[tuple[str, str, int]] = ()
    ) -> int:
        """Add a version; a schema is JSON, or a serialized FileDescriptorProto. Returns its id."""
        text = base64.b64encode(schema).decode() if isinstance(schema, bytes) else json.dumps(schema)
        names = ("name", "subject", "version")
        schema_id = 100 + len(self._schemas)
        self._schemas[schema_id] = {
            "schema": text, "schemaType": kind, "references": [dict(zip(names, one, strict=True)) for one in references]
        }  # fmt: skip
        self._subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def __enter__(self) -> Self:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, reply = registry.reply(self.path, self.headers.get("Authorization", ""))
                body = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def reply(self, target: str, authorization: str) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        url = urlsplit(target)
        self.requests[url.path] += 1
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50301, "message": "starting"}
        if self.login and authorization != "Basic " + base64.b64encode(self.login.encode()).decode():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        serialized = parse_qs(url.query).get("format") == ["serialized"]
        match [unquote(part) for part in url.path.strip("/").split("/")]:
            case ["schemas", "ids", schema_id] if int(schema_id) in self._schemas:
                return 200, self._shown(int(schema_id), serialized)
            case ["subjects", subject, "versions", version] if subject in self._subjects:
                ids = self._subjects[subject]
                at = len(ids) if version == "latest" else int(version)
                if at <= len(ids):
                    shown = self._shown(ids[at - 1], serialized)
                    return 200, {**shown, "subject": subject, "id": ids[at - 1], "version": at}
        return 404, {"error_code": 40401, "message": "not found"}

    def _shown(self, schema_id: int, serialized: bool) -> dict[str, Any]:
        schema = self._schemas[schema_id]
        if schema["schemaType"] == "AVRO":  # as registries answer it
            return {name: value for name, value in schema.items() if name != "schemaType"}
        return schema if serialized or schema["schemaType"] != "PROTOBUF" else schema | {"schema": 'syntax = "proto3";'}


def framed(schema_id: int, payload: bytes) -> bytes:
    """A value in Confluent's wire format."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload
