"""Brokers for the admin HTTP: their leases, reported measurements, and the shards and partitions assigned to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tidegate.apis.call import BrokerContext
from tidegate.cluster.broker_lease import BrokerInfo
from tidegate.cluster.figures import read_figures
from tidegate.cluster.placement import coordinator_of, leader_of
from tidegate.store.redis_clock import time_ms
from tidegate.topics.model import Topic


async def brokers(context: BrokerContext) -> list[dict[str, Any]]:
    """Every broker with a lease, in order of node id. Raises StoreUnavailable.

    Measurements are None when the broker reported none within 20 s. `shards` and `partitions` count the group shards
    and partitions for which clients are sent to the broker; any broker serves all of them.
    """
    live, preferred = context.broker_lease.live(), context.broker_lease.preferred()
    reported, time = await asyncio.gather(
        read_figures(context.store, (one.node_id for one in live)), context.store.command("TIME")
    )
    now_ms = time_ms(time)
    shards = Counter(
        coordinator_of(shard, preferred).node_id for shard in range(context.settings.coordinator_shards) if preferred
    )
    leads = await asyncio.to_thread(_leads, context.catalog.all_topics(), preferred)
    found = []
    for one in live:
        figures = reported.get(one.node_id)
        if figures is not None and figures.process != one.process:
            figures = None  # of the process before, which had the same node id
        found.append(
            {
                "node_id": one.node_id,
                "process": one.process,
                "listeners": [
                    {"name": name, "host": host, "port": port} for name, (host, port) in one.endpoints.items()
                ],
                "rack": one.rack,
                "version": one.version,
                "state": "suspect" if one.suspect else one.state,
                "answers": one.node_id == context.broker_lease.node_id,
                "uptime_s": figures.uptime_s if figures else None,
                "started_ms": now_ms - round(figures.uptime_s * 1000) if figures else None,
                "connections": figures.connections if figures else None,
                "loop_lag_ms": figures.loop_lag_ms if figures else None,
                "cpu_share": figures.cpu_share if figures else None,
                "memory_bytes": figures.memory_bytes if figures else None,
                "shards": shards[one.node_id],
                "partitions": leads[one.node_id],
            }
        )
    return found


def _leads(topics: Sequence[Topic], preferred: Sequence[BrokerInfo]) -> Counter[int]:
    """The number of partitions that each broker leads. 10,000 take 50 ms, so it runs in a thread."""
    return Counter(
        leader_of(topic.topic_id, partition, preferred).node_id
        for topic in topics
        for partition in range(topic.partition_count if preferred else 0)
    )
