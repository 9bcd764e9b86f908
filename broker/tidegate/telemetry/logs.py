"""Structured logging: an event and its fields, as text for people or JSON for collectors.

All output goes to stderr, one line per event (a traceback follows its line in text, and is a field in JSON). Records
that libraries log through `logging` are formatted the same way. Tracebacks never contain local variables: they may hold
payloads or secrets.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor

from tidegate.telemetry.visible import visible

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_QUIET_LIBRARIES: Final = ("aiohttp.access",)

_process_fields: dict[str, object] = {}


def configure(log_format: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """Set up logging for the whole process; `stream` defaults to stderr."""
    out = stream or sys.stderr
    shared: list[Processor] = [
        _with_process_fields,
        structlog.stdlib.add_log_level if log_format == "json" else structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers = _renderers(log_format, out)
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    _route_libraries(shared, renderers, level, out)


def set_level(level: LogLevel) -> None:
    """Log from this level on; the process's next lines follow it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]))
    logging.getLogger().setLevel(max(LEVELS[level], logging.WARNING))


def bind(**fields: object) -> None:
    """Add fields, such as the node id, to every later line of this process."""
    _process_fields.update(fields)


def _with_process_fields(_: Any, __: str, event: EventDict) -> EventDict:
    return {**_process_fields, **event}


def _escape_controls(_: Any, __: str, event: EventDict) -> EventDict:
    """Escape control characters, so that ids and library messages cannot forge lines or terminal escapes."""
    return {name: visible(value) if isinstance(value, str) else value for name, value in event.items()}


def _renderers(log_format: LogFormat, out: TextIO) -> list[Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return [
        _escape_controls,
        structlog.dev.ConsoleRenderer(
            colors=out.isatty(), pad_event_to=32, exception_formatter=structlog.dev.plain_traceback
        ),
    ]


def _route_libraries(shared: list[Processor], renderers: list[Processor], level: LogLevel, out: TextIO) -> None:
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(LEVELS[level], logging.WARNING))
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).disabled = True
