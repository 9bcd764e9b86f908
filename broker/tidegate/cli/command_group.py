"""Creates command groups with the same help options and without markup."""

from __future__ import annotations

import typer
from typer.core import TyperGroup


def command_group(name: str, help_text: str, cls: type[TyperGroup] = TyperGroup) -> typer.Typer:
    """A command group, `tidegate NAME VERB`; without a verb it prints its help, which starts with `help_text`."""
    return typer.Typer(
        name=name,
        cls=cls,
        help=help_text,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
