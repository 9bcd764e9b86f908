"""The class of every version of a request or response: kio's, or one of `newer_schemas` where kio has none."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

from kio import index
from kio.schema.index import api_key_map, schema_name_map

from tidegate.protocol.api_keys import ApiKey

NEWER: Final = {
    (ApiKey.API_VERSIONS, 5): "api_versions_v5:ApiVersions",
    (ApiKey.TXN_OFFSET_COMMIT, 6): "txn_offset_commit_v6:TxnOffsetCommit",
    (ApiKey.DELETE_GROUPS, 3): "delete_groups_v3:DeleteGroups",
    (ApiKey.STREAMS_GROUP_HEARTBEAT, 1): "streams_group_heartbeat_v1:StreamsGroupHeartbeat",
    (ApiKey.STREAMS_GROUP_DESCRIBE, 1): "streams_group_describe_v1:StreamsGroupDescribe",
}
"""API key and version -> module and the name before `Request` and `Response`."""


def versions_of(api_key: int) -> list[int]:
    """The versions that have classes."""
    newer = {version for key, version in NEWER if key == api_key}
    return sorted(newer.union(schema_name_map[api_key_map[api_key]]))


@cache
def load_request_schema(api_key: int, version: int) -> type[Any]:
    """The class of a request. Raises kio's KioIndexError for a version that does not exist."""
    return _newer(api_key, version, "Request") or index.load_request_schema(api_key, version)


@cache
def load_response_schema(api_key: int, version: int) -> type[Any]:
    """The class of a response. Raises kio's KioIndexError for a version that does not exist."""
    return _newer(api_key, version, "Response") or index.load_response_schema(api_key, version)


def _newer(api_key: int, version: int, kind: str) -> type[Any] | None:
    if (api_key, version) not in NEWER:
        return None
    module, name = NEWER[api_key, version].split(":")
    found: type[Any] = getattr(import_module(f"tidegate.protocol.newer_schemas.{module}"), name + kind)
    return found
