"""`tidegate quota ...`: how much clients may use. Goes to Redis, so that it works when clients take too much."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.cli.change_notice import Yes, cluster_of_redis, confirm_change
from tidegate.cli.command_group import command_group
from tidegate.cli.failures import BAD_NEWS, CommandFailed
from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import RedisServer, to_places

quota = command_group("quota", "Quotas of clients: list, set, remove.")

Org = Annotated[str, typer.Option(help="The organisation.")]
EntityText = Annotated[
    str,
    typer.Argument(
        metavar="ENTITY",
        help="user=NAME, client-id=NAME, user=NAME,client-id=NAME, ip=ADDRESS or org=NAME; without =NAME the default.",
    ),
]
Key = Annotated[
    str,
    typer.Argument(
        metavar="QUOTA",
        help="producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate; of an ip "
        "connection_creation_rate; of an org also topics_max, partitions_max, groups_max, connections_max and "
        "log_bytes_max.",
    ),
]

_LIST = [Column("entity", "ENTITY"), Column("quota", "QUOTA"), Column("value", "VALUE")]


@quota.command("list")
@to_places
def list_quotas(server: RedisServer, org: Org = "default", output: Output = Form.TABLE) -> None:
    """List the quotas of an organisation."""
    from tidegate.cli.client import access
    from tidegate.cli.client.redis_access import connected
    from tidegate.cli.output import write_rows

    with connected(server) as client:
        table = access.quotas(client, server.prefix)
    rows: list[dict[str, Any]] = [
        {"entity": entity.text().replace("&", ","), "quota": key.value, "value": value}
        for entity, values in table.of_org(org).items()
        for key, value in values.items()
    ]
    write_rows(output, _LIST, rows)


@quota.command("set")
@to_places
def set_quota(
    entity: EntityText,
    key: Key,
    value: Annotated[
        float,
        typer.Argument(
            metavar="VALUE", help="Bytes, percent or count a second; what an org may have in bytes or as a count."
        ),
    ],
    server: RedisServer,
    org: Org = "default",
    yes: Yes = False,
) -> None:
    """Set a quota for all brokers together, with immediate effect."""
    _change(server, entity, key, value, org, yes)


@quota.command()
@to_places
def remove(entity: EntityText, key: Key, server: RedisServer, org: Org = "default", yes: Yes = False) -> None:
    """Remove a quota."""
    _change(server, entity, key, None, org, yes)


def _change(server: RedisServer, text: str, key: str, value: float | None, org: str, yes: bool) -> None:
    from tidegate.cli.client import access
    from tidegate.cli.client.redis_access import connected, durable_change
    from tidegate.errors import InvalidRequest
    from tidegate.quotas.entities import CLUSTER_ORG, Entity

    try:
        entity = Entity.of_text(text.replace(",", "&")).checked()
        checked = entity.check_quota(key, value)
    except (ValueError, InvalidRequest) as error:
        raise CommandFailed(str(error)) from None
    if entity.is_of_cluster and org != CLUSTER_ORG:
        raise CommandFailed(f"quotas of addresses and organisations belong to organisation {CLUSTER_ORG}")
    done = f"{key} of {text} is {'removed' if value is None else f'set to {value:g}'}"
    confirm_change(cluster_of_redis(server), done, yes)
    with connected(server) as client, durable_change(client, server):
        changed = access.change_quotas(client, server.prefix, org, [(entity, checked, value)])
    if not changed:
        typer.echo(f"{key} of {text} is so already", err=True)
        raise typer.Exit(BAD_NEWS)
    typer.echo(done)
