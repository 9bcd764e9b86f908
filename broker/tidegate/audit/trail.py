"""The trail of audit events: collected in memory, written in batches to a stream and to a file or stdout.

Nothing waits for it. What cannot be written in time is dropped and counted: an audit must not stop the brokers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from logging.handlers import RotatingFileHandler
from typing import Any, Final

import structlog

from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks
from tidegate.telemetry.metrics import metrics

ADD_EVENTS = Script("security/add_audit_events")

WAITING_MAX: Final = 10_000
"""Events that wait to be written; about 1 kB each."""
BATCH: Final = 500
"""Events of one script."""
FLUSH_MS: Final = 200
FILES: Final = 5
"""The file in use and those that it was rotated to, `FILE_BYTES` each."""
FILE_BYTES: Final = 100 << 20
STDOUT: Final = "-"

logger = structlog.get_logger()


class AuditTrail:
    """`note` an event from any thread. Raises CannotStart if the file cannot be opened."""

    def __init__(self, store: Store, settings: Settings, broker: Callable[[], str]) -> None:
        self._store, self._broker = store, broker
        self._stream_bytes = settings.audit_stream_bytes
        self._events: deque[dict[str, Any]] = deque()
        self._counts: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._to_stdout = settings.audit_file == STDOUT
        self._file = _opened(settings) if settings.audit_file and not self._to_stdout else None
        self._loops = BackgroundTasks()

    @classmethod
    def of(cls, store: Store, settings: Settings, broker: Callable[[], str]) -> AuditTrail | None:
        """The trail, if the settings name a place to write it to. Raises CannotStart."""
        return cls(store, settings, broker) if settings.audit_file or settings.audit_stream_bytes else None

    async def start(self) -> None:
        """Write what is noted from now on."""
        self._loops.every("audit", FLUSH_MS, self.flush)

    async def close(self) -> None:
        """Write the rest, and stop."""
        await self._loops.close()
        await self.flush()
        if self._file is not None:
            self._file.close()

    def note(self, event: Mapping[str, Any]) -> None:
        """Add an event; it gets its time here."""
        if len(self._events) >= WAITING_MAX:
            metrics.audit_events_dropped += 1
            return
        self._events.append({"time": time.time_ns() // 1_000_000, **event})

    def note_repeatable(self, key: tuple[Any, ...], event: Callable[[], Mapping[str, Any]]) -> None:
        """Add an event that clients may cause at any rate: those of one key and batch are one, with a count."""
        counted = self._counts.get(key)
        if counted is not None:
            counted["count"] += 1
        elif len(self._events) >= WAITING_MAX:
            metrics.audit_events_dropped += 1
        else:
            counted = self._counts[key] = {"time": time.time_ns() // 1_000_000, **event(), "count": 1}
            self._events.append(counted)

    async def flush(self) -> None:
        """Write what is waiting, in order."""
        while self._events:
            events = [self._events.popleft() for _ in range(min(BATCH, len(self._events)))]
            self._counts.clear()
            broker = self._broker()
            lines = [json.dumps(event | {"device": {"name": broker}}, separators=(",", ":")) for event in events]
            await asyncio.to_thread(self._write, lines)
            if self._stream_bytes:
                try:
                    await self._store.run(
                        ADD_EVENTS, [self._store.cluster_keys.audit_events], self._stream_bytes, *lines
                    )
                except StoreUnavailable as error:
                    metrics.audit_events_dropped += len(lines)
                    logger.warning("audit_events_dropped", events=len(lines), reason=str(error))
            metrics.audit_events += len(lines)

    def _write(self, lines: list[str]) -> None:
        if self._to_stdout:
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            sys.stdout.flush()
        elif self._file is not None:
            for line in lines:
                self._file.handle(logging.makeLogRecord({"msg": line}))


class _File(RotatingFileHandler):
    """A full disk must not end the broker: lines are lost, and counted."""

    def handleError(self, record: logging.LogRecord) -> None:
        metrics.audit_events_dropped += 1


def _opened(settings: Settings) -> _File:
    try:
        return _File(settings.audit_file, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")
    except OSError as error:
        raise CannotStart(f"TIDEGATE_AUDIT_FILE={settings.audit_file}: {error.strerror}") from None
