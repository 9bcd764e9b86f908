"""How a command ends: its exit code, and the one line on stderr where it failed; a traceback is a bug."""

from __future__ import annotations

import errno
import os
import ssl
import sys
from collections.abc import Callable
from typing import Final

import typer

DONE: Final = 0
BAD_NEWS: Final = 1
FAILED: Final = 2
INTERRUPTED: Final = 130

EXIT_CODES: Final = {
    DONE: "done, and nothing is wrong; also where whoever read the output closed the pipe, and where Ctrl-C is the way "
    "to end (`tail --follow`, `top`, `redis run MONITOR`, `dev`)",
    BAD_NEWS: "done, and the answer is bad news: `group explain` found trouble, `doctor` found warnings, a change was "
    "refused or not confirmed, Redis answered with an error, `broker drain` waited in vain",
    FAILED: "not done: a wrong option, nobody answers, no such group or topic; `doctor` found a problem",
    INTERRUPTED: "ended by Ctrl-C",
}
"""What every command's exit code means."""


class CommandFailed(Exception):
    """What was asked for cannot be done; the message is one line."""


def in_words(error: OSError) -> str:
    """`Connection refused`: the system's words, where asyncio has put others in their place."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error) or "it closed the connection"


def reporting(run: Callable[[], None]) -> None:
    """Run a command; a CannotStart or CommandFailed becomes its line and exit code 2, a closed pipe nothing."""
    try:
        run()
        sys.stdout.flush()
    except typer.Exit:
        raise
    except CommandFailed as failure:
        _fail(failure)
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's own last flush complains
        raise typer.Exit(DONE) from None
    except Exception as error:
        from tidegate.errors import CannotStart  # who fails waits for its imports, nobody else

        if not isinstance(error, CannotStart):
            raise
        _fail(error)


def _fail(error: Exception) -> None:
    typer.echo(f"tidegate: {error}", err=True)
    raise typer.Exit(FAILED)
