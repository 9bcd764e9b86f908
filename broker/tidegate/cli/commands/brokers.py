"""`tidegate broker ...`: list and drain brokers."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import typer

from tidegate.cli.change_notice import (
    OtherCluster,
    Yes,
    cluster_of_admin,
    cluster_of_redis,
    confirm_change,
    require_same_cluster,
)
from tidegate.cli.command_group import command_group
from tidegate.cli.failures import BAD_NEWS, CommandFailed
from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import AdminHttp, Brokers, RedisServer, to_places
from tidegate.diagnosis.formatting import size
from tidegate.telemetry.visible import visible

broker = command_group("broker", "List and drain brokers.")

_CHECK_INTERVAL_S: Final = 0.25
_MORE: Final = ("state", "version", "uptime_s", "connections", "memory_bytes")
"""Columns that only the admin HTTP provides."""


def _span(seconds: float) -> str:
    from tidegate.diagnosis.formatting import format_duration

    return format_duration(int(seconds * 1000))


_LIST = [
    Column("node_id", "NODE", right=True),
    Column("address", "ADDRESS"),
    Column("rack", "RACK"),
    Column("leads", "LEADS", right=True),
    Column("state", "STATE"),
    Column("version", "VERSION"),
    Column("uptime_s", "UP", _span, right=True),
    Column("connections", "CONNECTIONS", right=True),
    Column("memory_bytes", "MEMORY", size, right=True),
]


@broker.command("list")
@to_places
def list_brokers(brokers: Brokers, admin: AdminHttp, output: Output = Form.TABLE) -> None:
    """List brokers: address, number of partitions led, and state and figures from the admin HTTP."""
    from tidegate.cli.output import write_rows

    rows, missing = asyncio.run(_rows(brokers, admin))
    if missing:
        typer.echo(f"tidegate: states and figures are unknown: {visible(missing)}", err=True)
    write_rows(output, _LIST, rows)


async def _rows(brokers: Brokers, admin: AdminHttp) -> tuple[list[dict[str, Any]], str]:
    from tidegate.cli.client import admin_client
    from tidegate.cli.client.kafka_client import KafkaClient

    reported: dict[int, dict[str, Any]] = {}
    missing = ""
    async with KafkaClient(brokers) as kafka:
        topics = await kafka.topics()
        try:
            found = await admin_client.brokers(admin)
            require_same_cluster(brokers, kafka.cluster_id, admin, found.get("cluster_id"))
            reported = {one["node_id"]: one for one in found["brokers"]}
        except OtherCluster:
            raise
        except CommandFailed as failure:
            missing = str(failure)
        leaders = [leader for topic in topics.values() for leader in topic.leaders.values()]
        return [
            {
                "node_id": one.node_id,
                "address": f"{one.host}:{one.port}",
                "rack": one.rack,
                "leads": leaders.count(one.node_id),
                **{name: reported.get(one.node_id, {}).get(name) for name in _MORE},
            }
            for one in sorted(kafka.listed, key=lambda one: int(one.node_id))
        ], missing


@broker.command()
@to_places
def drain(
    node_id: Annotated[int, typer.Argument(min=0, help="Node id.")],
    admin: AdminHttp,
    redis: RedisServer,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the broker has left.")] = True,
    timeout_s: Annotated[float, typer.Option(min=0, help="Maximum wait, seconds.")] = 120,
    yes: Yes = False,
) -> None:
    """Drain a broker as SIGTERM does: clients move to other brokers, waiting requests are answered, it exits with 0.

    Sends the request through Redis if its address is known (--redis-url, TIDEGATE_REDIS_URL, a running `tidegate dev`)
    and --admin is not given; otherwise through the admin HTTP, which requires an operator's --token. Both record it in
    the audit. Prints the cluster first, and prompts on a terminal. Exit code 1 if the broker has not left in time.
    """
    through_redis = redis.given and not admin.given
    cluster = cluster_of_redis(redis) if through_redis else cluster_of_admin(admin)
    confirm_change(cluster, f"broker {node_id} drains and ends", yes)
    way = _through_redis if through_redis else _through_admin
    left = asyncio.run(way(admin, redis, node_id, timeout_s if wait else 0))
    if not wait:
        typer.echo(f"node {node_id} was asked to drain")
    elif left:
        typer.echo(f"tidegate: node {node_id} has not left after {timeout_s:g} s: it drains, or is stuck", err=True)
        raise typer.Exit(BAD_NEWS)
    else:
        typer.echo(f"node {node_id} has left")


async def _through_admin(admin: AdminHttp, redis: RedisServer, node_id: int, timeout_s: float) -> bool:
    from tidegate.cli.client import admin_client

    async def listing() -> dict[int, str]:
        return {one["node_id"]: one.get("process", "") for one in (await admin_client.brokers(admin))["brokers"]}

    listed = await listing()
    asked = listed.get(node_id)

    async def there() -> bool:
        nonlocal listed
        try:
            listed = await listing()
        except admin_client.NobodyListens:
            if set(listed) != {node_id}:  # others may answer at other addresses
                raise
            return False
        return asked is not None and listed.get(node_id) == asked  # it may have started again already

    await admin_client.ask(admin, "POST", f"/brokers/{node_id}/drain")
    return await _stays(node_id, there, timeout_s)


async def _through_redis(admin: AdminHttp, redis: RedisServer, node_id: int, timeout_s: float) -> bool:
    import socket

    from tidegate.cli.client.kafka_client import own_name
    from tidegate.cluster.audit import Actor, Audit
    from tidegate.cluster.drains import request_drain
    from tidegate.errors import KafkaError, StoreUnavailable
    from tidegate.store.redis_clock import time_ms
    from tidegate.store.store import Store

    store = Store(redis.settings)
    who = Actor(own_name(), "redis", socket.gethostname())
    gone_ms = redis.settings.broker_lease_timeout_ms

    asked = ""

    async def process() -> str:
        record = await store.command("HGET", store.cluster_keys.brokers, node_id)
        return str(json.loads(record)["process"]) if record else ""

    async def there() -> bool:
        renewed = await store.command("ZSCORE", store.cluster_keys.leases, node_id)
        now_ms = time_ms(await store.command("TIME"))
        held = renewed is not None and now_ms - float(renewed) < gone_ms
        return held and await process() == asked  # it may have started again already

    try:
        await store.start()
        asked = await process()
        async with Audit(store, node_id, who, "broker.drain", {"node_id": node_id}):
            await request_drain(store, node_id)
        return await _stays(node_id, there, timeout_s)
    except StoreUnavailable as error:
        raise CommandFailed(f"Redis does not answer: {error}") from None
    except KafkaError as error:
        raise CommandFailed(f"node {node_id}: {error}") from None
    finally:
        await store.close()


async def _stays(node_id: int, there: Callable[[], Awaitable[bool]], timeout_s: float) -> bool:
    """Whether the broker is still listed at the deadline; shows progress on a terminal."""
    started = time.monotonic()
    terminal = sys.stderr.isatty()
    stays = True
    while stays and (waited_s := time.monotonic() - started) < timeout_s:
        if terminal:
            sys.stderr.write(f"\r\033[Knode {node_id} drains: {waited_s:.0f} s")
            sys.stderr.flush()
        await asyncio.sleep(_CHECK_INTERVAL_S)
        try:
            stays = await there()
        except CommandFailed:
            if waited_s + 10 > timeout_s:
                raise  # it may be the very broker being drained; other addresses are tried first
    if terminal:
        sys.stderr.write("\r\033[K")
    return stays
