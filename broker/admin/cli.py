"""The `tidegate` command, but for `serve`, which `__main__.py` adds: it builds the whole house.

Failures are one line on stderr and exit code 2; a traceback is a bug.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

import broker
from broker.admin import group_changes, group_commands
from broker.admin.failures import CommandFailed
from broker.errors import CannotStart

FAILED: Final = 2

tidegate = typer.Typer(
    name="tidegate",
    help="Kafka's protocol, kept in Redis.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


tidegate.add_typer(group_commands.group)
group_changes.add_to(group_commands.group)


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@tidegate.callback()
def _any_command(
    asked: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Kafka's protocol, kept in Redis."""


def reporting(run: Callable[[], None]) -> None:
    """Run a command; a CannotStart or CommandFailed becomes its line and exit code 2."""
    try:
        run()
    except (CannotStart, CommandFailed) as error:
        typer.echo(f"tidegate: {error}", err=True)
        raise typer.Exit(FAILED) from None


@tidegate.command()
def version() -> None:
    """Print the version."""
    typer.echo(broker.__version__)


@tidegate.command()
def dev(
    brokers: Annotated[int, typer.Option(min=1, max=64, help="Broker processes.")] = 3,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of the first; the others follow.")] = 9092,
    data: Annotated[Path | None, typer.Option(help="Keep the data in this directory between runs.")] = None,
    admin_port: Annotated[int, typer.Option(min=1, max=65_535, help="Admin HTTP port of the first.")] = 8080,
    redis_url: Annotated[str | None, typer.Option(help="Use this Redis or Valkey instead of our own.")] = None,
    redis_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port of the embedded server.  [default: 6379, or a free one]")
    ] = None,
) -> None:
    """Run Valkey and several brokers here, until Ctrl-C."""
    from broker.admin import dev as command
    from broker.admin import options

    def start() -> None:
        if redis_url is not None and (data is not None or redis_port is not None):
            raise CannotStart("--redis-url uses a server that runs already: --data and --redis-port are not for it")
        options.load({"redis_url": redis_url})
        if port + brokers > 65_536 or admin_port + brokers > 65_536:
            raise CannotStart(f"{brokers} ports do not fit from --port {port} and --admin-port {admin_port} on")
        directory = data.absolute() if data is not None else None
        command.run(command.DevOptions(brokers, port, admin_port, directory, redis_url, redis_port))

    reporting(start)


@tidegate.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def redis(
    command: Annotated[list[str], typer.Argument(help="A Redis command and its arguments.", metavar="COMMAND")],
    redis_url: Annotated[
        str | None,
        typer.Option(help="Which Redis.  [default: that of a running `tidegate dev`, else TIDEGATE_REDIS_URL]"),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Only the bytes, as redis-cli writes to a pipe.")] = False,
) -> None:
    """Send one command to Redis; print as redis-cli does.

    Exit code 1 for an error reply.
    """
    from broker.admin import options, redis_command, running
    from broker.store.store import parse_redis_url

    def send() -> None:
        cluster = None if redis_url is not None else running.find()
        url = cluster.redis_url if cluster is not None else options.load({"redis_url": redis_url}).redis_url
        failed = False
        try:
            for reply in redis_command.replies(parse_redis_url(url), command):
                failed = isinstance(reply, redis_command.Failure)
                if raw:
                    sys.stdout.buffer.write(redis_command.raw(reply) + b"\n")
                    sys.stdout.buffer.flush()
                else:
                    typer.echo(redis_command.shown(reply))
        except KeyboardInterrupt:
            return
        except OSError as error:
            where = options.without_password(url)
            hint = "" if redis_url is not None or cluster is not None else "; no `tidegate dev` runs"
            raise CannotStart(f"Redis is not reachable at {where}: {error.strerror or error}{hint}") from None
        if failed:
            raise typer.Exit(1)

    reporting(send)


@tidegate.command()
def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="As docs/settings.md, with the defaults.")] = False,
) -> None:
    """Print every setting: its variable, unit, default and meaning."""
    from broker.admin import options

    def show() -> None:
        if markdown:
            typer.echo(options.markdown(), nl=False)
            return
        for row in options.listed(options.load()):
            now = "" if row.value == row.default else f", now {row.value}"
            typer.echo(f"{row.variable}\n    {row.meaning}\n    {row.unit}; default {row.default}{now}")

    reporting(show)
