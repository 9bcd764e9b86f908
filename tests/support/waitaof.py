"""WAITAOF, which `durability=fsynced` needs: Redis 7.0 does not have it."""

from __future__ import annotations

import re
import subprocess
from functools import cache

import pytest

from bench.cluster import server_binary


@cache
def has_waitaof(binary: str) -> bool:
    """Whether a server binary is newer than Redis 7.0, the oldest that brokers take."""
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    return re.search(r"\bv=7\.0", version) is None


needs_waitaof = pytest.mark.skipif(
    not has_waitaof(server_binary()), reason="this server has no WAITAOF (Redis before 7.2)"
)
