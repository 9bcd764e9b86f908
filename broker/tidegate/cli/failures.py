"""How a command ends: its exit code, and one line on stderr on failure. A traceback means a bug."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

from tidegate.startup import CannotStart
from tidegate.telemetry.visible import visible

DONE: Final = 0
BAD_NEWS: Final = 1
FAILED: Final = 2
INTERRUPTED: Final = 130

EXIT_CODES: Final = {
    DONE: "done, and nothing is wrong; also where whoever read the output closed the pipe, and where Ctrl-C is the way "
    "to end (`tail --follow`, `top`, `redis run MONITOR`, `dev`)",
    BAD_NEWS: "done, and the answer is bad news: `group explain` found trouble, `doctor` found warnings, a change was "
    "refused or not confirmed, Redis answered with an error, `broker drain` timed out",
    FAILED: "not done: a wrong option, nobody answers, no such group or topic; `doctor` found a problem",
    INTERRUPTED: "ended by Ctrl-C",
}
"""The meaning of exit codes, for all commands."""


class CommandFailed(Exception):
    """The command failed; the message is one line."""


def describe_os_error(error: OSError) -> str:
    """The operating system's message, such as `Connection refused`, also when asyncio has replaced it."""
    import ssl  # imported on failure only, because it is large

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error) or "it closed the connection"


def reporting(run: Callable[[], None]) -> None:
    """Run a command; CannotStart and CommandFailed print one line and exit with code 2; a closed pipe is silent."""
    try:
        run()
        sys.stdout.flush()
    except (CannotStart, CommandFailed) as failure:
        print(f"tidegate: {visible(str(failure))}", file=sys.stderr)  # noqa: T201 - this is where commands report
        sys.exit(FAILED)
    except OSError as error:
        if error.errno != errno.EPIPE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python's final flush fails
        sys.exit(DONE)
