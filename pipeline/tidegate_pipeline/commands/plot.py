"""`tidegate pipeline plot lag|storm`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from tidegate_pipeline.cli import ConfigOption, reporting
from tidegate_pipeline.errors import UsageError

_Group = Annotated[str, typer.Option("--group", help="The group.")]
_Org = Annotated[str, typer.Option("--org", help="Its organisation.")]
_From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="ISO 8601, or 90m: so long ago.")]
_To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="The same.  [default: now]")]
_Out = Annotated[Path, typer.Option("--out", help="The PNG to write.", dir_okay=False)]


def lag(
    group: _Group, out: _Out, topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
    org: _Org = "default", since: _From = None, until: _To = None, config: ConfigOption = None,
) -> None:  # fmt: skip
    """Lag by partition, stuck stretches, records produced and committed; of the table of the job `lag`."""
    with reporting():
        read = _reader(config, since, until, {"org": org, "group": group})
        from tidegate_pipeline.plots.lag import draw_lag

        draw_lag(read("lag", ["window_start"], {"topic": topic} if topic else {}), out)
        typer.echo(f"{out}: lag of {group}")


def storm(
    group: _Group, out: _Out, org: _Org = "default", since: _From = None, until: _To = None,
    config: ConfigOption = None,
) -> None:  # fmt: skip
    """Generations, storms, and who caused each rebalance; of the tables of the jobs `timeline` and `storms`."""
    with reporting():
        read = _reader(config, since, until, {"org": org, "group": group})
        from tidegate_pipeline.plots.storm import draw_storm

        generations = read("timeline", ["started_at", "joined_at"], {})
        try:
            incidents = read("storms", ["opened_at"], {})
        except UsageError as none:
            typer.echo(f"no storm: {none}", err=True)
            incidents = []
        draw_storm(generations, incidents, out)
        typer.echo(f"{out}: {len(generations)} generations of {group}")


def add_to(app: typer.Typer) -> None:
    """Its verbs."""
    plot = typer.Typer(help="Plots of group history as PNG, from the tables that the jobs write.", no_args_is_help=True)
    plot.command()(lag)
    plot.command()(storm)
    app.add_typer(plot, name="plot")


def _reader(config: Path | None, since: str | None, until: str | None, wanted: dict[str, str]) -> Any:
    """What reads a table's rows of the group and times. Raises UsageError."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("plots need matplotlib: pip install 'tidegate-pipeline[plots]'") from None
    from tidegate_pipeline import settings as pipeline_settings
    from tidegate_pipeline.plots.tables import parse_time, read_rows

    settings = pipeline_settings.load(config)
    between = parse_time(since, datetime.fromtimestamp(0, UTC)), parse_time(until, datetime.now(UTC))
    return lambda table, columns, more: read_rows(settings, table, columns, *between, wanted | more)
