"""`tidegate serve` without the rest of the command line, so that a broker imports neither typer nor rich."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from tidegate import startup

OPTIONS: Final = (
    "redis_url",
    "host",
    "port",
    "advertised_listeners",
    "admin_host",
    "admin_port",
    "node_id",
    "processes",
    "rack",
    "log_level",
    "log_format",
)
"""Settings with an option of their own; the others take `--set NAME=VALUE`."""


class ServeOptions(NamedTuple):
    """The options of a command line: settings by name, and the assignments of `--set`."""

    settings: Mapping[str, str] = MappingProxyType({})
    assignments: Sequence[str] = ()


def parse(arguments: Sequence[str]) -> ServeOptions | None:
    """The options after `serve`; None if the full command line has to answer: `--help`, or a wrong option."""
    given = startup.given_options(arguments, (*OPTIONS, "set"))
    if given is None:
        return None
    assignments = [value for name, value in given if name == "set"]
    return ServeOptions({name: value for name, value in given if name != "set"}, assignments)


def import_broker() -> None:
    """Import what a broker needs before it serves clients, and render its scripts."""
    import tidegate.app
    import tidegate.cli.options  # noqa: F401
    from tidegate.apis import registry
    from tidegate.store import scripts

    registry.load_all()
    for script in scripts.registered():
        script.source  # noqa: B018 - rendered once, then cached


def warm_up() -> None:
    """As `import_broker`, with the admin HTTP: for processes that are forked from this one."""
    import tidegate.http.routes  # noqa: F401

    import_broker()


def run(options: ServeOptions) -> None:
    """Run one broker, or `processes` of them, until a signal. Raises CannotStart."""
    from tidegate.cli.options import load, unknown_variables

    settings, unknown = load(options.settings, options.assignments), unknown_variables()
    if settings.processes > 1:
        from tidegate.supervisor import supervise

        warm_up()
        supervise(settings, unknown)
        return
    from tidegate.app import serve

    serve(settings, unknown)


def main(options: ServeOptions) -> None:
    """Run brokers as this process; what prevents their start is one line on stderr, and exit code 2."""
    startup.prepare()
    from tidegate.forks import exit_code

    sys.exit(exit_code(lambda: run(options)))
