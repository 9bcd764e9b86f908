"""The notice on stderr before a command changes anything: cluster and address; and a check that two addresses agree."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from tidegate.cli.failures import BAD_NEWS, CommandFailed
from tidegate.cli.places import AdminHttp, Brokers, RedisServer
from tidegate.telemetry.visible import visible

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class OtherCluster(CommandFailed):
    """Two given addresses belong to different clusters."""


def cluster_of_brokers(brokers: Brokers) -> str:
    """`cluster ID at ADDRESS`, from Metadata. Raises CommandFailed."""
    from tidegate.cli.client.kafka_client import KafkaClient

    async def ask() -> str | None:
        async with KafkaClient(brokers) as kafka:
            return await kafka.ask_cluster_id()

    return _shown(asyncio.run(ask()), brokers.bootstrap)


def cluster_of_admin(admin: AdminHttp) -> str:
    """`cluster ID at ADDRESS`, from the admin HTTP. Raises CommandFailed."""
    from tidegate.cli.client import admin_client

    return _shown(asyncio.run(admin_client.brokers(admin)).get("cluster_id"), admin.addresses)


def cluster_of_redis(redis: RedisServer) -> str:
    """`cluster ID at ADDRESS`, from the brokers' keys in Redis. Raises CommandFailed."""
    from tidegate.cli.client.redis_access import connected
    from tidegate.store.keys import ClusterKeys

    with connected(redis) as client:
        cluster_id = client.hget(ClusterKeys(redis.prefix).info, "cluster_id")
    return _shown(cluster_id.decode() if cluster_id else None, redis.shown)


def confirm_change(cluster: str, change: str, yes: bool, always: bool = False) -> None:
    """Print the cluster, and prompt on a terminal unless `yes`; `always`: prompt without one too. Raises typer.Exit."""
    typer.echo(f"tidegate: {visible(cluster)}, about to change: {visible(change)}", err=True)
    asks = always or (sys.stdin.isatty() and sys.stderr.isatty())
    if asks and not yes and not typer.confirm("Do it?", err=True):
        typer.echo("nothing changed", err=True)
        raise typer.Exit(BAD_NEWS)


def require_same_cluster(brokers: Brokers, cluster_id: str | None, admin: AdminHttp, admin_cluster_id: str) -> None:
    """Raises OtherCluster if the user named the admin HTTP, otherwise CommandFailed: it is then not used."""
    if cluster_id == admin_cluster_id:
        return
    text = (
        f"{brokers.bootstrap} is of cluster {cluster_id}, and the admin HTTP at {admin.addresses} "
        f"of cluster {admin_cluster_id}"
    )
    raise (OtherCluster if admin.given else CommandFailed)(text)


def _shown(cluster_id: str | None, address: str) -> str:
    return f"cluster {cluster_id} at {address}" if cluster_id else f"a cluster without id at {address}"
