"""What every member program writes and reads: JSON lines on stdout, commands on stdin (see bench/clients.py)."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()


def report(event: str, member: int, **more: Any) -> None:
    """One event of a member."""
    with _lock:
        sys.stdout.write(json.dumps({"e": event, "m": member, **more}, separators=(",", ":")) + "\n")
        sys.stdout.flush()


def report_records(member: int, offsets: dict[int, list[int]]) -> None:
    """What one poll brought: for each partition its first and last offset."""
    for partition, found in offsets.items():
        report("records", member, p=partition, a=min(found), b=max(found), n=len(found))


def commands() -> Iterator[list[str]]:
    """`join N MODE [INSTANCE]`, `close N`, until stdin ends."""
    for line in sys.stdin:
        yield line.split()
