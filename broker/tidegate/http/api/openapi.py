"""Generates the OpenAPI 3.1 document from the declared endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from pydantic.json_schema import models_json_schema

import tidegate
from tidegate.http.api.endpoint import PREFIX, Endpoint
from tidegate.http.models.base import Model
from tidegate.http.problems import CONTENT_TYPE

_FAILURES: Final = {
    400: "The request cannot be.",
    401: "A token or password is missing, or wrong.",
    403: "Not with this role, from this page, or not on this cluster.",
    404: "There is no such thing.",
    409: "Not in the state that it is in.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "Asked under a name that is not allowed.",
    429: "Too many wrong secrets from this address.",
    503: "Redis does not answer, the group changes, or the request waited in a broker that stood still; try again.",
}
_ALWAYS: Final = (400, 401, 421, 429, 503)
_OF_CHANGES: Final = (403, 413, 415)
_REF: Final = "#/components/schemas/{model}"
_PROBLEM: Final = {
    "type": "object",
    "description": "RFC 9457, with Kafka's error where there is one.",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string", "format": "uri-reference"},
        "kafka_error": {"type": "string"},
        "kafka_code": {"type": "integer"},
        "errors": {"type": "array", "items": {"type": "object"}},
    },
}


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    declared = list(endpoints)
    paths: dict[str, Any] = {}
    for one in declared:
        paths.setdefault(f"{PREFIX}{one.path}", {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate",
            "version": tidegate.__version__,
            "summary": "Groups, topics, brokers and Redis of one cluster; any broker answers for all.",
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**_schemas(declared), "Problem": _PROBLEM},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "of an operator or a viewer"},
                "password": {"type": "http", "scheme": "basic", "description": "user operator or viewer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "tidegate_session"},
            },
        },
    }


def _schemas(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The JSON schemas of all request and response models. Model names must be unique."""
    given: dict[str, tuple[type[Model], str]] = {}
    for one in endpoints:
        for model, mode in ((one.gives, "serialization"), (one.body, "validation")):
            if model is not None:
                given[model.__name__] = model, mode
    _, defined = models_json_schema(list(given.values()), ref_template=_REF)  # type: ignore[arg-type]
    return dict(defined["$defs"])


def _operation(one: Endpoint) -> dict[str, Any]:
    lines = (one.handler.__doc__ or "").strip()
    needed: list[dict[str, list[str]]] = [{"token": []}, {"password": []}, {"session": []}]
    statuses = sorted({*_ALWAYS, *one.fails, *(_OF_CHANGES if one.changes else ())})
    operation: dict[str, Any] = {
        "operationId": one.operation_id,
        "summary": lines.splitlines()[0],
        "description": lines,
        "tags": [one.tag],
        "security": needed if one.changes else [{}, *needed],
        "parameters": [*map(_name, one.names), *_query(one.query)],
        "responses": {**_given(one), **{str(status): _failure(status) for status in statuses}},
    }
    if one.body is not None:
        schema = {"$ref": _REF.format(model=one.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _name(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query(model: type[Model]) -> list[dict[str, Any]]:
    schema = model.model_json_schema()
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": of}
        for name, of in schema.get("properties", {}).items()
    ]


def _given(one: Endpoint) -> dict[str, Any]:
    if one.gives is None:
        return {"204": {"description": "Done."}}
    schema = {"$ref": _REF.format(model=one.gives.__name__)}
    first = (one.gives.__doc__ or "").strip().splitlines()[0]
    return {"200": {"description": first, "content": {"application/json": {"schema": schema}}}}


def _failure(status: int) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model="Problem")}
    return {"description": _FAILURES[status], "content": {CONTENT_TYPE: {"schema": schema}}}
