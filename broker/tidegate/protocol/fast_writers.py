"""Hand-written bodies of the hot and the large answers, byte for byte what the schema's writer gives.

All take plain values and give a body without response header; throttle time is always 0. Arrays are
sequences; text is str, None where the protocol's field is nullable.
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
from tidegate.protocol.log_writers import FetchPartition, api_versions, fetch, produce

__all__ = [
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
