"""`tidegate user ...`: the users that SASL listeners know. Goes to Redis, so that the first one can be made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidegate.cli.change_notice import Yes, cluster_of_redis, confirm_change
from tidegate.cli.command_group import command_group
from tidegate.cli.failures import BAD_NEWS, CommandFailed
from tidegate.cli.output import Column, Form, Output
from tidegate.cli.places import RedisServer, to_places

user = command_group("user", "Users of SASL listeners: list, create, delete, change the password.")

UserName = Annotated[str, typer.Argument(metavar="USER", help="The user's name; its principal is User:NAME.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(help="File that holds the password, - for standard input.  [default: ask on the terminal]"),
]

_LIST = [Column("user", "USER"), Column("org", "ORGANISATION"), Column("mechanisms", "MECHANISMS", ", ".join)]


@user.command("list")
@to_places
def list_users(server: RedisServer, output: Output = Form.TABLE) -> None:
    """List users with their organisation and mechanisms."""
    from tidegate.cli.client import access
    from tidegate.cli.client.redis_access import connected
    from tidegate.cli.output import write_rows

    with connected(server) as client:
        found = access.users(client, server.prefix)
    rows = [{"user": one.name, "org": one.org, "mechanisms": sorted(one.credentials)} for one in found]
    write_rows(output, _LIST, rows)


@user.command()
@to_places
def create(
    name: UserName,
    server: RedisServer,
    org: Annotated[str, typer.Option(help="The organisation that the user acts in.")] = "default",
    password_file: PasswordFile = None,
    yes: Yes = False,
) -> None:
    """Create a user with a password, for PLAIN and SCRAM. It is not an argument, because others can see those."""
    from tidegate.cli.client import access
    from tidegate.cli.client.redis_access import connected, durable_change
    from tidegate.security.identity import ORG_PATTERN
    from tidegate.security.users import User

    if not ORG_PATTERN.fullmatch(org):
        raise CommandFailed(f"--org {org}: an organisation has lower-case letters, digits and hyphens, 63 at most")
    password = _password(password_file)
    with connected(server) as client:
        if access.find_user(client, server.prefix, name) is not None:
            raise CommandFailed(f"user {name} exists; tidegate user password {name} changes its password")
        confirm_change(cluster_of_redis(server), f"user {name} of organisation {org} is created", yes)
        with durable_change(client, server):
            access.set_password(client, server.prefix, User(name, org), None, password)
    typer.echo(f"user {name} is created")


@user.command()
@to_places
def password(name: UserName, server: RedisServer, password_file: PasswordFile = None, yes: Yes = False) -> None:
    """Replace a user's password. Open connections stay until they authenticate again."""
    from tidegate.cli.client import access
    from tidegate.cli.client.redis_access import connected, durable_change

    with connected(server) as client:
        present = access.find_user(client, server.prefix, name)
        if present is None:
            raise CommandFailed(f"there is no user {name}")
        secret = _password(password_file)
        confirm_change(cluster_of_redis(server), f"the password of user {name} changes", yes)
        with durable_change(client, server):
            access.set_password(client, server.prefix, present, present, secret)
    typer.echo(f"the password of user {name} is changed")


@user.command()
@to_places
def delete(name: UserName, server: RedisServer, yes: Yes = False) -> None:
    """Delete a user. Open connections stay until they must authenticate again (connections_max_reauth_ms)."""
    from tidegate.cli.client import access
    from tidegate.cli.client.redis_access import connected, durable_change

    with connected(server) as client:
        present = access.find_user(client, server.prefix, name)
        if present is None:
            typer.echo(f"there is no user {name}", err=True)
            raise typer.Exit(BAD_NEWS)
        confirm_change(cluster_of_redis(server), f"user {name} is deleted", yes)
        with durable_change(client, server):
            access.replace_user(client, server.prefix, name, present, None)
    typer.echo(f"user {name} is deleted")


def _password(file: Path | None) -> str:
    """The password from a file, standard input or the terminal, without its line end. Raises CommandFailed."""
    if file is None:
        if not sys.stdin.isatty():
            raise CommandFailed("no terminal to ask for the password: use --password-file FILE or --password-file -")
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--password-file {file}: {error}") from None
    if not text.strip():
        raise CommandFailed(f"--password-file {file}: the password is empty")
    return text.rstrip("\r\n")
