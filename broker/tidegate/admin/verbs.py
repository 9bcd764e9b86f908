"""How the groups of commands are made: the same help options, no markup."""

from __future__ import annotations

import typer
from typer.core import TyperGroup


def verbs(name: str, says: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """A group of commands, `tidegate NAME VERB`; without a verb it shows its help, which begins with `says`."""
    return typer.Typer(
        name=name,
        cls=cls,
        help=says,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
