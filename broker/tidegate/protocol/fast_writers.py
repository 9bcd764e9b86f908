"""Hand-written encoders of hot-path and large responses; byte for byte equal to the schema's encoder.

All take plain values and return a body without response header; the throttle time is always 0. Arrays are sequences;
text is str, or None for a nullable field.
"""

from __future__ import annotations

from tidegate.protocol.group_writers import (
    find_coordinator,
    heartbeat,
    join_group,
    offset_commit,
    offset_fetch,
    sync_group,
)
from tidegate.protocol.log_writers import Endpoint, FetchPartition, api_versions, fetch, produce

__all__ = [
    "Endpoint",
    "FetchPartition",
    "api_versions",
    "fetch",
    "find_coordinator",
    "heartbeat",
    "join_group",
    "offset_commit",
    "offset_fetch",
    "produce",
    "sync_group",
]
