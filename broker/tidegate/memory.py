"""Shares of this process's memory: what each cache and the request buffers may hold, from `memory_max`.

The shares together stay below the limit, so that a broker in a small container refuses or evicts before the kernel
kills it. Sources of the limit: cgroup v2 `memory.max`, cgroup v1 `memory.limit_in_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
DEFAULT_BYTES: Final = 2048 * MIB
"""The limit of a process that has none by its cgroup."""
PROCESS_BYTES: Final = 192 * MIB
"""Memory of a broker beside its shares: interpreter, modules, topics, groups, connections."""
LIMIT_BYTES_MIN: Final = 384 * MIB
_UNLIMITED: Final = 1 << 50
_CGROUP_FILES: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """Bytes that each may hold."""

    requests: int
    """Requests that are received or unanswered; also the largest request."""
    decoded: int
    """Large requests that are handled, as objects."""
    opened_batch: int
    """Records of one compressed batch while it is checked."""
    tail_cache: int
    logs: int
    """The cached states of idle logs."""
    archive_cache: int
    """Cached row groups of the archive."""
    archive_footers: int
    """Cached footers of the archive's files."""
    metadata_cache: int
    key_names: int
    """Cached key names, of groups and of logs each."""
    groups: int
    """Cached groups of KIP-848, share groups and streams groups, of each kind."""
    decisions: int
    """Large groups that are read to be decided on, of each kind; one larger one too."""
    heartbeats: int
    """Members whose heartbeats are answered from snapshots, and their groups."""
    patterns: int
    """What the patterns of subscriptions match."""
    fetch_sessions: int
    share_sessions: int
    unsent: int
    """Replies that one connection has not read, and those of all connections that read nothing."""

    @classmethod
    def of(cls, limit: int) -> MemoryShares:
        """The shares of a limit in bytes."""
        part = (max(limit, LIMIT_BYTES_MIN) - PROCESS_BYTES) // 64
        return cls(
            requests=12 * part,
            decoded=4 * part,
            opened_batch=15 * part,
            tail_cache=5 * part,
            logs=4 * part,
            archive_cache=2 * part,
            archive_footers=2 * part,
            metadata_cache=2 * part,
            key_names=part,
            groups=part,
            decisions=part,
            heartbeats=part,
            patterns=part,
            fetch_sessions=3 * part,
            share_sessions=part,
            unsent=4 * part,
        )


@cache
def shares_of(memory_max: int) -> MemoryShares:
    """The shares for the setting `memory_max`; 0 takes the limit of this process's cgroup."""
    return MemoryShares.of(memory_max or cgroup_limit() or DEFAULT_BYTES)


def cgroup_limit(files: tuple[str, ...] = _CGROUP_FILES) -> int | None:
    """The memory limit of the process's cgroup in bytes; None without."""
    for name in files:
        try:
            text = Path(name).read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdecimal() and int(text) < _UNLIMITED:
            return int(text)
    return None
