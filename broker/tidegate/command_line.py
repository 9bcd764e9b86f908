"""The entry of the `tidegate` command and of `python -m tidegate`: a broker at once, or the command line."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from tidegate.cli.failures import CommandFailed, reporting
from tidegate.cli.main import command_line
from tidegate.serve import ServeOptions
from tidegate.serve import run as run_broker

__all__ = ["command_line"]


@command_line.command()
def serve(
    redis_url: Annotated[str | None, typer.Option(help="Redis or Valkey.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[str | None, typer.Option(help="Port to listen on.")] = None,
    advertised_listeners: Annotated[
        str | None, typer.Option(help="Address that clients connect to: PLAINTEXT://host:port.")
    ] = None,
    admin_host: Annotated[str | None, typer.Option(help="Address of the admin HTTP.")] = None,
    admin_port: Annotated[str | None, typer.Option(help="Port of the admin HTTP.")] = None,
    node_id: Annotated[str | None, typer.Option(help="Fixed node id.  [default: a leased one]")] = None,
    processes: Annotated[str | None, typer.Option(help="Broker processes, at ports from --port on.")] = None,
    rack: Annotated[str | None, typer.Option(help="Rack, as clients see it in Metadata.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated.")
    ] = None,
) -> None:
    """Run a broker, or several. Options win over TIDEGATE_* (`tidegate settings` lists them)."""
    given = {
        "redis_url": redis_url,
        "host": host,
        "port": port,
        "advertised_listeners": advertised_listeners,
        "admin_host": admin_host,
        "admin_port": admin_port,
        "node_id": node_id,
        "processes": processes,
        "rack": rack,
        "log_level": log_level,
        "log_format": log_format,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    reporting(partial(run_broker, ServeOptions(settings, assignments or [])))


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
