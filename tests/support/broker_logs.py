"""What broker processes wrote to their logs."""

from __future__ import annotations

from bench.cluster import Cluster


def tracebacks(cluster: Cluster) -> str:
    """The first traceback in any broker's log with some lines around it; "" where there is none."""
    for broker in cluster.brokers:
        lines = broker.log_path.read_text().splitlines()
        for number, line in enumerate(lines):
            if "Traceback" in line:
                return "\n".join([broker.name, *lines[max(0, number - 2) : number + 40]])
    return ""
