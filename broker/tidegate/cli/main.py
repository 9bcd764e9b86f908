"""The `tidegate` command without `serve`, which `__main__.py` adds because it imports the whole broker.

Slow imports happen inside the command that needs them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import tidegate
from tidegate.cli.commands import acls as acl_commands
from tidegate.cli.commands import audit as audit_command
from tidegate.cli.commands import backup as backup_commands
from tidegate.cli.commands import brokers as broker_commands
from tidegate.cli.commands import doctor as doctor_command
from tidegate.cli.commands import group_changes, round_trip
from tidegate.cli.commands import groups as group_commands
from tidegate.cli.commands import quotas as quota_commands
from tidegate.cli.commands import redis as redis_commands
from tidegate.cli.commands import tail as tail_command
from tidegate.cli.commands import top as top_command
from tidegate.cli.commands import topics as topic_commands
from tidegate.cli.commands import transactions as transaction_commands
from tidegate.cli.commands import users as user_commands
from tidegate.cli.dev import command as dev_command
from tidegate.cli.failures import reporting

command_line = typer.Typer(
    name="tidegate",
    help="Kafka brokers that store everything in Redis.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


command_line.add_typer(group_commands.group)
group_changes.add_to(group_commands.group)
for commands in (
    topic_commands.topic, transaction_commands.txn, broker_commands.broker, user_commands.user, acl_commands.acl,
    quota_commands.quota, backup_commands.backup, redis_commands.redis,
):  # fmt: skip
    command_line.add_typer(commands)
for command in (
    doctor_command.doctor, tail_command.tail, top_command.top, round_trip.round_trip, audit_command.audit,
):  # fmt: skip
    command_line.command()(command)


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@command_line.callback()
def _any_command(
    asked: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Kafka brokers that store everything in Redis."""


@command_line.command()
def version() -> None:
    """Print the version."""
    typer.echo(tidegate.__version__)


@command_line.command()
def dev(
    brokers: Annotated[int, typer.Option(min=1, max=dev_command.BROKERS_MAX, help="Broker processes.")] = 3,
    port: Annotated[
        int, typer.Option(min=1, max=dev_command.PORT_MAX, help="Port of the first; the others follow.")
    ] = 9092,
    data: Annotated[Path | None, typer.Option(help="Keep the data in this directory between runs.")] = None,
    admin_port: Annotated[
        int, typer.Option(min=1, max=dev_command.PORT_MAX, help="Admin HTTP port of the first.")
    ] = 8080,
    redis_url: Annotated[str | None, typer.Option(help="Use this Redis or Valkey instead of the embedded one.")] = None,
    redis_port: Annotated[
        int | None,
        typer.Option(
            min=1, max=dev_command.PORT_MAX, help="Port of the embedded server.  [default: 6379, or a free one]"
        ),
    ] = None,
) -> None:
    """Run Valkey and several brokers on this machine, until Ctrl-C."""
    dev_command.main(dev_command.DevOptions(brokers, port, admin_port, data, redis_url, redis_port))


@command_line.command()
def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md, with the defaults.")] = False,
) -> None:
    """Print every setting: its variable, unit, default and meaning."""
    from tidegate.cli import options

    def show() -> None:
        if markdown:
            typer.echo(options.markdown(), nl=False)
            return
        for row in options.listed(options.load()):
            now = "" if row.value == row.default else f", now {row.value}"
            typer.echo(f"{row.variable}\n    {row.meaning}\n    {row.unit}; default {row.default}{now}")

    reporting(show)


@command_line.command(hidden=True)
def reference(context: typer.Context, path: Annotated[Path, typer.Argument(exists=True, dir_okay=False)]) -> None:
    """Write the commands into docs/cli.md, below what is written by hand."""
    from tidegate.cli.reference import page

    root = context.find_root()
    path.write_text(page(path.read_text("utf-8"), root.command, root), "utf-8")
