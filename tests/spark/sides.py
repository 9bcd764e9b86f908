"""Spark's Kafka connector and the format `tidegate` on one cluster, for comparisons."""

from __future__ import annotations

from typing import Any

from bench.cluster import Cluster


def theirs(reader: Any, cluster: Cluster) -> Any:
    """The connector's options on a batch or stream reader."""
    return reader.format("kafka").option("kafka.bootstrap.servers", cluster.bootstrap).option("includeHeaders", "true")


def ours(reader: Any, cluster: Cluster) -> Any:
    """Our source's."""
    return reader.format("tidegate").option("redis.url", cluster.redis_url).option("includeHeaders", "true")
