"""What broker processes wrote to their logs."""

from __future__ import annotations

import re
from typing import Final

from bench.cluster import Cluster

_LEVEL: Final = re.compile(r"\[(?:warning|error|critical) *\]")


def tracebacks(cluster: Cluster) -> str:
    """The first traceback in any broker's log with some lines around it; "" where there is none."""
    for broker in cluster.brokers:
        lines = broker.log_path.read_text().splitlines()
        for number, line in enumerate(lines):
            if "Traceback" in line:
                return "\n".join([broker.name, *lines[max(0, number - 2) : number + 40]])
    return ""


EXPECTED: Final = ("redis_setting", "unknown_setting", "event_loop_stalled")
"""Of a server without a memory limit that keeps nothing; of variables that are for the test; of a busy machine, which
lets a process wait for seconds."""


def complaints(cluster: Cluster) -> list[str]:
    """Every line above `info` in any broker's log that needs an explanation."""
    return [
        f"{broker.name}: {line}"
        for broker in cluster.brokers
        for line in broker.log_path.read_text().splitlines()
        if _LEVEL.search(line) and not any(event in line for event in EXPECTED)
    ]
