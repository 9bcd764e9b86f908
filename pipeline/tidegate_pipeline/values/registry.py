"""A client of a schema registry with Confluent's REST interface: Confluent's, Karapace, Apicurio's compatible paths.

Protobuf schemas are read as serialized descriptors (`?format=serialized`), which Apicurio does not have.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast, get_args
from urllib.parse import quote

from tidegate_pipeline.errors import PipelineError, UsageError
from tidegate_pipeline.redis_access import read_secret

if TYPE_CHECKING:
    import requests

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]

_CACHED_MAX: Final = 1_000
"""Schemas that a process remembers; what a schema id means never changes."""
_REFERENCE_DEPTH_MAX: Final = 32
_ATTEMPTS: Final = 3
_RETRIED: Final = (429, 500, 502, 503, 504)


class UnknownSchema(PipelineError):
    """The registry has no schema of an id: the record that names it cannot be decoded."""


class Schema(NamedTuple):
    """A schema: Avro and JSON Schema as text, Protobuf as a serialized FileDescriptorProto.

    `references` are the schemas that it imports, by the name under which it does, those that they import first.
    """

    schema_id: int
    kind: SchemaKind
    source: bytes
    references: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True)
class Registry:
    """The registry at `url`; several addresses with commas are tried in turn.

    `password_variable` names an environment variable, or a file if it has a slash, with the password of `user`; each
    process reads it itself. A pickled registry has no connection and an empty cache. https:// is verified by
    `REQUESTS_CA_BUNDLE`, else by certifi.
    """

    url: str
    user: str = ""
    password_variable: str = ""
    timeout_s: float = 10.0
    _cache: dict[str, Schema] = field(default_factory=dict, repr=False)
    _session: requests.Session | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises UsageError."""
        for address in self._addresses():
            if not address.startswith(("http://", "https://")) or "@" in address:
                raise UsageError("the schema registry is http://host:port or https://host:port, without a login")

    def __getstate__(self) -> tuple[object, ...]:
        return self.url, self.user, self.password_variable, self.timeout_s

    def __setstate__(self, state: tuple[str, str, str, float]) -> None:
        self.url, self.user, self.password_variable, self.timeout_s = state
        self._cache, self._session = {}, None

    def by_id(self, schema_id: int) -> Schema:
        """A writer's schema. Raises UnknownSchema, UsageError, PipelineError."""
        found = self._cached(f"/schemas/ids/{schema_id}", lambda reply: schema_id)
        if found is None:
            raise UnknownSchema(f"schema id {schema_id} is not in the registry")
        return found

    def of_subject(self, subject: str, version: str = "latest") -> Schema:
        """A version of a subject, a number or `latest`. Raises UsageError, PipelineError."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        if version == "latest":
            self._cache.pop(path, None)
        found = self._cached(path, lambda reply: int(reply["id"]))
        if found is None:
            raise UsageError(f"the schema registry {self.url} has no subject {subject} of version {version}")
        return found

    def _cached(self, path: str, id_of: Callable[[Mapping[str, Any]], int]) -> Schema | None:
        if path not in self._cache:
            reply = self._get(path)
            if reply is None:
                return None
            if len(self._cache) >= _CACHED_MAX:
                self._cache.clear()
            self._cache[path] = self._schema(path, reply, id_of(reply))
        return self._cache[path]

    def _schema(self, path: str, reply: Mapping[str, Any], schema_id: int) -> Schema:
        kind = reply.get("schemaType") or "AVRO"
        if kind not in get_args(SchemaKind):
            raise UsageError(f"schema id {schema_id} is of type {kind}; it can be {', '.join(get_args(SchemaKind))}")
        references: dict[str, bytes] = {}
        self._follow(reply, kind, references, 0)
        return Schema(schema_id, cast(SchemaKind, kind), self._source(path, reply, kind), tuple(references.items()))

    def _source(self, path: str, reply: Mapping[str, Any], kind: str) -> bytes:
        if kind != "PROTOBUF":
            return str(reply["schema"]).encode()
        serialized = self._get(f"{path}?format=serialized") or {}
        try:
            return base64.b64decode(serialized.get("schema", ""), validate=True)
        except binascii.Error:
            raise PipelineError(
                f"the schema registry {self.url} has no serialized Protobuf schemas (?format=serialized)"
            ) from None

    def _follow(self, reply: Mapping[str, Any], kind: str, found: dict[str, bytes], depth: int) -> None:
        if depth > _REFERENCE_DEPTH_MAX:
            raise UsageError(f"references of schemas go deeper than {_REFERENCE_DEPTH_MAX}: is there a circle?")
        for reference in reply.get("references") or ():
            name, subject, version = reference["name"], reference["subject"], reference["version"]
            if name in found:
                continue
            path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
            referenced = self._get(path)
            if referenced is None:
                raise UsageError(f"the schema registry has no subject {subject} of version {version}, a reference")
            self._follow(referenced, kind, found, depth + 1)
            found[name] = self._source(path, referenced, kind)

    def _get(self, path: str) -> dict[str, Any] | None:
        """None for what is not there. Raises UsageError where the login is refused, PipelineError for an outage."""
        failure = ""
        for address in self._addresses():
            try:
                reply = self._opened().get(f"{address}{path}", timeout=self.timeout_s)
                if reply.status_code == HTTPStatus.NOT_FOUND:
                    return None
                if reply.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                    who = f"the user {self.user}" if self.user else "requests without a login"
                    raise UsageError(f"the schema registry {address} refuses {who}: status {reply.status_code}")
                if reply.ok:
                    return cast(dict[str, Any], reply.json())
                failure = f"status {reply.status_code}: {reply.text[:200]}"
            except (OSError, ValueError) as error:  # those of requests are OSErrors
                failure = str(error)
        raise PipelineError(f"the schema registry {self.url} does not answer {path}: {failure}")

    def _opened(self) -> requests.Session:
        if self._session is None:
            import requests  # an extra of its own
            from requests.adapters import HTTPAdapter
            from urllib3.util import Retry

            self._session = requests.Session()
            retries = Retry(_ATTEMPTS - 1, backoff_factor=0.2, status_forcelist=_RETRIED, raise_on_status=False, read=0)
            for scheme in ("http://", "https://"):
                self._session.mount(scheme, HTTPAdapter(max_retries=retries))
            self._session.headers["Accept"] = "application/vnd.schemaregistry.v1+json, application/json"
            if self.user:
                self._session.auth = (self.user, read_secret(self.password_variable, "of the schema registry"))
        return self._session

    def _addresses(self) -> list[str]:
        return [address.strip().rstrip("/") for address in self.url.split(",")]
