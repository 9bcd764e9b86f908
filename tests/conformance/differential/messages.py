"""Requests of the group APIs in any version, from plain values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from bench.jars import NEWEST_KAFKA_VERSION
from tests.kit.wire import request_of_version

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
    return request_of_version(API_KEYS[api], version, **values)
