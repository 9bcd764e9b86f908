"""`tidegate top`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import AdminHttp, to_places


@to_places
def top(
    admin: AdminHttp,
    org: Annotated[str, typer.Option(help="Organisation.")] = "default",
    interval_s: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between refreshes.")] = 2.0,
) -> None:
    """Show groups live, those with problems first: lag and its trend, state and since when; Enter opens one, q exits.

    Needs a terminal, and textual: pip install 'tidegate[top]'.
    """
    if find_spec("textual") is None:
        raise CommandFailed("the live view is not installed here: pip install 'tidegate[top]'")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailed("top needs a terminal: `tidegate group list -o json` is for programs")
    from tidegate.cli.top.app import Top

    Top(admin, org, interval_s).run()
