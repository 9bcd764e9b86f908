"""Logs of tests: structlog's defaults, but exceptions as Python prints them.

The default lays an exception out in frames with every local variable: 0.5 s for one in a large object.
"""

from __future__ import annotations

import structlog


def install() -> None:
    """From now on this process's exceptions are logged that way."""
    processors = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors[:-1], plain])
