"""Requests of the group APIs in any version, from plain values."""

from __future__ import annotations

import dataclasses
import os
import types
import typing
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from bench.jars import NEWEST_KAFKA_VERSION
from tests.kit.wire import request_type

PEER_VERSION: Final = os.environ.get("TIDEGATE_TEST_KAFKA", NEWEST_KAFKA_VERSION)
"""The Apache Kafka that is compared with."""

API_KEYS: Final = {
    "OffsetCommit": 8,
    "OffsetFetch": 9,
    "FindCoordinator": 10,
    "JoinGroup": 11,
    "Heartbeat": 12,
    "LeaveGroup": 13,
    "SyncGroup": 14,
    "DescribeGroups": 15,
    "ListGroups": 16,
    "ApiVersions": 18,
    "DeleteGroups": 42,
    "OffsetDelete": 47,
}

VERSIONS: Final = {
    "OffsetCommit": range(2, 10),
    "OffsetFetch": range(1, 10),
    "FindCoordinator": range(7),
    "JoinGroup": range(10),
    "Heartbeat": range(5),
    "LeaveGroup": range(6),
    "SyncGroup": range(6),
    "DescribeGroups": range(7),
    "ListGroups": range(6),
    "DeleteGroups": range(3),
    "OffsetDelete": range(1),
}
"""What both serve of the group APIs by names of topics, and kio can encode."""


def build(api: str, version: int, values: Mapping[str, Any]) -> Any:
    """The request of that version. Values that it has no field for are left out; timeouts are ms."""
    return build_by_key(API_KEYS[api], version, values)


def build_by_key(api_key: int, version: int, values: Mapping[str, Any]) -> Any:
    """The same of an API that has no name here."""
    return _entity(request_type(api_key, version), values)


def _entity(schema: Any, values: Mapping[str, Any]) -> Any:
    fields = {field.name: field.type for field in dataclasses.fields(schema)}
    return schema(**{name: _value(fields[name], value) for name, value in values.items() if name in fields})


def _value(kind: Any, value: Any) -> Any:
    if isinstance(value, list):
        (item, *_) = typing.get_args(_not_none(kind))
        made = (_entity(item, one) if dataclasses.is_dataclass(item) else one for one in value)
        return tuple(made)
    if isinstance(value, dict):
        return _entity(_not_none(kind), value)
    if isinstance(value, int) and "Timedelta" in getattr(kind, "__name__", ""):
        return timedelta(milliseconds=value)
    return value


def _not_none(kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        return next(one for one in typing.get_args(kind) if one is not type(None))
    return kind
