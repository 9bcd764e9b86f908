"""`tidegate top`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from tidegate.admin.failures import CommandFailed
from tidegate.admin.places import AdminHttp, to_places


@to_places
def top(
    admin: AdminHttp,
    org: Annotated[str, typer.Option(help="The organisation.")] = "default",
    interval_s: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between looks.")] = 2.0,
) -> None:
    """Groups by trouble, live: lag and how it grows, state and since when; Enter opens one, q ends.

    Needs a terminal, and textual: pip install 'tidegate[top]'.
    """
    if find_spec("textual") is None:
        raise CommandFailed("the live view is not installed here: pip install 'tidegate[top]'")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailed("top needs a terminal: `tidegate group list -o json` is for programs")
    from tidegate.admin.top.app import Top

    Top(admin, org, interval_s).run()
