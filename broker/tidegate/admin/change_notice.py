"""What a command says on stderr before it changes anything: which cluster, where; and that two places are of one."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from tidegate.admin.failures import BAD_NEWS, CommandFailed
from tidegate.admin.places import AdminHttp, Brokers, RedisServer

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class OtherCluster(CommandFailed):
    """Two places that were named are of two clusters."""


def cluster_of_brokers(brokers: Brokers) -> str:
    """`cluster ID at ADDRESS`, as Metadata has it. Raises CommandFailed."""
    from tidegate.admin.kafka_client import KafkaClient

    async def ask() -> str | None:
        async with KafkaClient(brokers) as kafka:
            return await kafka.ask_cluster_id()

    return _shown(asyncio.run(ask()), brokers.bootstrap)


def cluster_of_admin(admin: AdminHttp) -> str:
    """`cluster ID at ADDRESS`, as the admin HTTP has it. Raises CommandFailed."""
    from tidegate.admin import admin_client

    return _shown(asyncio.run(admin_client.brokers(admin)).get("cluster_id"), admin.addresses)


def cluster_of_redis(redis: RedisServer) -> str:
    """`cluster ID at ADDRESS`, as the brokers wrote it there. Raises CommandFailed."""
    from tidegate.admin.redis_access import connected
    from tidegate.store.keys import ClusterKeys

    with connected(redis) as client:
        cluster_id = client.hget(ClusterKeys(redis.prefix).info, "cluster_id")
    return _shown(cluster_id.decode() if cluster_id else None, redis.shown)


def confirm_change(cluster: str, change: str, yes: bool, always: bool = False) -> None:
    """Name the cluster, and ask on a terminal unless `yes`; `always`: ask without one too. Raises typer.Exit."""
    typer.echo(f"tidegate: {cluster}: {change}", err=True)
    asks = always or (sys.stdin.isatty() and sys.stderr.isatty())
    if asks and not yes and not typer.confirm("Do it?", err=True):
        typer.echo("nothing changed", err=True)
        raise typer.Exit(BAD_NEWS)


def require_same_cluster(brokers: Brokers, cluster_id: str | None, admin: AdminHttp, admin_cluster_id: str) -> None:
    """Raises OtherCluster where the admin HTTP was named, else CommandFailed: it is not to be asked then."""
    if cluster_id == admin_cluster_id:
        return
    text = (
        f"{brokers.bootstrap} is of cluster {cluster_id}, and the admin HTTP at {admin.addresses} "
        f"of cluster {admin_cluster_id}"
    )
    raise (OtherCluster if admin.given else CommandFailed)(text)


def _shown(cluster_id: str | None, address: str) -> str:
    return f"cluster {cluster_id} at {address}" if cluster_id else f"a cluster without id at {address}"
