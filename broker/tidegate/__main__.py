"""The command's entry: arguments -> Settings -> App. Everything but `serve` is in admin/cli.py."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from tidegate.admin.cli import command_line
from tidegate.admin.failures import CommandFailed, reporting


@command_line.command()
def serve(
    redis_url: Annotated[str | None, typer.Option(help="Redis or Valkey.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[str | None, typer.Option(help="Port to listen on.")] = None,
    advertised_host: Annotated[str | None, typer.Option(help="Host that clients are told.")] = None,
    advertised_port: Annotated[str | None, typer.Option(help="Port that clients are told.")] = None,
    admin_host: Annotated[str | None, typer.Option(help="Address of the admin HTTP.")] = None,
    admin_port: Annotated[str | None, typer.Option(help="Port of the admin HTTP.")] = None,
    node_id: Annotated[str | None, typer.Option(help="Fixed node id; else one is leased.")] = None,
    rack: Annotated[str | None, typer.Option(help="Rack that clients are told.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated.")
    ] = None,
) -> None:
    """Run one broker. Options win over TIDEGATE_* (`tidegate settings` lists them)."""
    from tidegate.admin import options

    given = {
        "redis_url": redis_url,
        "host": host,
        "port": port,
        "advertised_host": advertised_host,
        "advertised_port": advertised_port,
        "admin_host": admin_host,
        "admin_port": admin_port,
        "node_id": node_id,
        "rack": rack,
        "log_level": log_level,
        "log_format": log_format,
    }

    def run() -> None:
        settings = options.load(given, assignments or ())
        from tidegate.app import serve as serve_broker

        serve_broker(settings, options.unknown_variables())

    reporting(run)


@command_line.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}, add_help_option=False
)
def pipeline(arguments: Annotated[list[str] | None, typer.Argument(metavar="VERB [OPTIONS]")] = None) -> None:
    """Spark jobs over topics and the history of groups."""

    def run() -> None:
        if any(find_spec(package) is None for package in ("tidegate_pipeline", "pyspark", "pyarrow")):
            raise CommandFailed("the pipeline is not installed here: pip install tidegate-pipeline")
        import_module("tidegate_pipeline.cli").main(arguments or ["--help"])

    reporting(run)


def main() -> None:
    """Entry point of the `tidegate` command and of `python -m tidegate`."""
    command_line(prog_name="tidegate")


if __name__ == "__main__":
    main()
