"""`tidegate acl ...`: who may do what. Goes to Redis, so that the first rule can be made."""

from __future__ import annotations

import enum
from typing import Annotated, Any, TypeVar

import typer

from tidegate.cli.change_notice import Yes, cluster_of_redis, confirm_change
from tidegate.cli.command_group import command_group
from tidegate.cli.failures import BAD_NEWS, CommandFailed
from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import RedisServer, to_places
from tidegate.telemetry.visible import visible

acl = command_group("acl", "Access rules: list, add, remove, explain a decision.")

Org = Annotated[str, typer.Option(help="The organisation.")]
Principal = Annotated[str, typer.Argument(metavar="PRINCIPAL", help="User:NAME, or User:* for everybody.")]
OperationName = Annotated[
    str, typer.Argument(metavar="OPERATION", help="READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, ..., or ALL.")
]
ResourceName = Annotated[
    str,
    typer.Argument(metavar="RESOURCE", help="topic:NAME, group:NAME, transactional_id:NAME, or cluster."),
]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The rule is for every name that begins with NAME.")]
Deny = Annotated[bool, typer.Option("--deny", help="Deny; a denial wins over every permission.")]
Host = Annotated[str, typer.Option(help="An address or a range such as 10.0.0.0/8.")]

_LIST = [
    Column("principal", "PRINCIPAL"),
    Column("permission", "PERMISSION"),
    Column("operation", "OPERATION"),
    Column("resource_type", "RESOURCE"),
    Column("pattern_type", "PATTERN"),
    Column("name", "NAME"),
    Column("host", "HOST"),
]


@acl.command("list")
@to_places
def list_rules(server: RedisServer, org: Org = "default", output: Output = Form.TABLE) -> None:
    """List the access rules of an organisation."""
    from tidegate.cli.client import access
    from tidegate.cli.client.redis_access import connected
    from tidegate.cli.output import write_rows

    with connected(server) as client:
        table = access.rules(client, server.prefix, org)
    write_rows(output, _LIST, [_row(rule) for rule in table.rules])


@acl.command()
@to_places
def add(
    principal: Principal,
    operation: OperationName,
    resource: ResourceName,
    server: RedisServer,
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = "*",
    org: Org = "default",
    yes: Yes = False,
) -> None:
    """Allow (or deny) a principal an operation."""
    _change(server, principal, operation, resource, prefixed, deny, host, org, yes, adds=True)


@acl.command()
@to_places
def remove(
    principal: Principal,
    operation: OperationName,
    resource: ResourceName,
    server: RedisServer,
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = "*",
    org: Org = "default",
    yes: Yes = False,
) -> None:
    """Remove one rule, named as it was added."""
    _change(server, principal, operation, resource, prefixed, deny, host, org, yes, adds=False)


@acl.command()
@to_places
def explain(
    principal: Principal,
    operation: OperationName,
    resource: ResourceName,
    server: RedisServer,
    host: Annotated[str, typer.Option(help="The client's address.")] = "127.0.0.1",
    org: Org = "default",
) -> None:
    """Whether the rules allow an operation, and which rule decides. Super users are the brokers' own setting."""
    from tidegate.cli.client import access
    from tidegate.cli.client.redis_access import connected
    from tidegate.security.acls import Operation

    resource_type, name = _resource(resource)
    wanted = _member(Operation, operation)
    with connected(server) as client:
        table = access.rules(client, server.prefix, org)
    decision = table.decide(principal, host, wanted, resource_type, name, allowed_without_rules=False)
    word = "allowed" if decision.allowed else "denied"
    if decision.rule is None:
        typer.echo(f"{word}: no rule lets {principal} {wanted.name} {resource}")
    else:
        row = _row(decision.rule)
        rule = (
            f"{row['permission']} {row['operation']} to {row['principal']} from {row['host']} "
            f"on {row['resource_type']} {row['name']} ({row['pattern_type']})"
        )
        typer.echo(f"{word}: {visible(rule)}")
    if not decision.allowed:
        raise typer.Exit(BAD_NEWS)


def _change(
    server: RedisServer,
    principal: str,
    operation: str,
    resource: str,
    prefixed: bool,
    deny: bool,
    host: str,
    org: str,
    yes: bool,
    *,
    adds: bool,
) -> None:
    from tidegate.cli.client import access
    from tidegate.cli.client.redis_access import connected, durable_change
    from tidegate.security.acls import AclBinding, Operation, PatternType, Permission

    resource_type, name = _resource(resource)
    rule = AclBinding(
        resource_type,
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal,
        host,
        _member(Operation, operation),
        Permission.DENY if deny else Permission.ALLOW,
    )
    reason = rule.reason_not_creatable() if adds else None
    if reason is not None:
        raise CommandFailed(reason)
    shown = f"{rule.permission.name} {rule.operation.name} to {principal} on {resource}"
    confirm_change(cluster_of_redis(server), f"{shown} is {'added' if adds else 'removed'}", yes)
    with connected(server) as client, durable_change(client, server):
        changed = access.change_rules(client, server.prefix, org, [rule] if adds else [], [] if adds else [rule])
    if not any(changed):
        typer.echo(f"{shown} {'exists already' if adds else 'did not exist'}", err=True)
        raise typer.Exit(BAD_NEWS)
    typer.echo(f"{shown} is {'added' if adds else 'removed'}")


Kind = TypeVar("Kind", bound=enum.IntEnum)


def _member(kinds: type[Kind], text: str) -> Kind:
    word = text.upper().replace("-", "_")
    if word not in kinds.__members__:
        raise CommandFailed(f"{text}: not one of {', '.join(one.name for one in kinds if one > 1)}")
    return kinds[word]


def _resource(text: str) -> tuple[Any, str]:
    """`topic:orders` -> its kind and name. Raises CommandFailed."""
    from tidegate.security.acls import CLUSTER_NAME, ResourceType

    kind, colon, name = text.partition(":")
    resource_type = _member(ResourceType, kind)
    if resource_type is ResourceType.CLUSTER:
        return resource_type, CLUSTER_NAME
    if not colon or not name:
        raise CommandFailed(f"{text}: not KIND:NAME, such as topic:orders")
    return resource_type, name


def _row(rule: Any) -> dict[str, str]:
    return {
        "principal": rule.principal,
        "permission": rule.permission.name,
        "operation": rule.operation.name,
        "resource_type": rule.resource_type.name,
        "pattern_type": rule.pattern_type.name,
        "name": rule.name,
        "host": rule.host,
    }
