"""The only place that makes redis-py clients: for the CLI, for the pipeline and for queries of sentinels.

Brokers use their own connections (`link`) and start without redis-py; so this module is imported late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.retry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel

from tidegate.store.addresses import Topology

Client = Any
"""`redis.Redis` or `RedisCluster`; both return bytes."""


def login(
    username: str | None, password: str | None, timeout_s: float, tls: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Connection options; `tls` are redis-py's `ssl_…` parameters, None without TLS."""
    return {
        "username": username,
        "password": password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        **({} if tls is None else {"ssl": True, **tls}),
    }


def cluster_client(topology: Topology, options: Mapping[str, Any]) -> Client:
    """A client of a Redis Cluster; connects at once."""
    nodes: list[Any] = [ClusterNode(*host) for host in topology.hosts]  # type: ignore[no-untyped-call]
    return RedisCluster(startup_nodes=nodes, **options)


def server_client(host: str, port: int, database: int, options: Mapping[str, Any]) -> Client:
    """A client of one server; it does not retry, because redis-py's retries take seconds without any message."""
    return redis.Redis(host, port, database, retry=Retry(NoBackoff(), 0), **options)


def primary_client(topology: Topology, options: Mapping[str, Any], sentinel_options: Mapping[str, Any]) -> Client:
    """A client of the primary that the sentinels name at each connection attempt."""
    sentinels: Any = Sentinel(topology.hosts, sentinel_kwargs=dict(sentinel_options))  # type: ignore[no-untyped-call]
    return sentinels.master_for(topology.service, db=topology.database, retry=Retry(NoBackoff(), 0), **options)


def sentinel_clients(hosts: Sequence[tuple[str, int]], options: Mapping[str, Any]) -> list[redis.asyncio.Redis]:
    """A client of each sentinel, for asyncio. Replies are text: redis-py decodes those of some commands only."""
    retry = redis.asyncio.retry.Retry(NoBackoff(), 0)
    return [
        redis.asyncio.Redis(host=host, port=port, retry=retry, decode_responses=True, **options) for host, port in hosts
    ]
