"""The broker processes of one host: what each is called and listens on, and how each knows that the others serve."""

from __future__ import annotations

import mmap
import re
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from tidegate.cluster.listeners import address_mode_of
from tidegate.memory import cgroup_limit
from tidegate.settings import Settings
from tidegate.startup import CannotStart

REPORT_INTERVAL_MS: Final = 250
SILENT_S: Final = 2.0
"""A process that has not reported for this long is not ready: it is stopped, or its event loop stands still."""
_SLOT: Final = struct.Struct("=dqq")
"""Of each process: time of its last report (monotonic, the same clock for all), 1 if it is ready, restarts so far."""
_LISTENED: Final = re.compile(r":(\d+)(?=\s*$)")
_PORT_MAX: Final = 65_535


def of_process(settings: Settings, ordinal: int, memory_limit: Callable[[], int | None] = cgroup_limit) -> Settings:
    """The settings of one of `processes`: every port and a fixed node id counted up by `ordinal`.

    Port 0 stays. Advertised ports of listeners in mode `direct`, where each broker has its own address, count up too,
    and the processes share the memory limit of their cgroup equally. Raises CannotStart for ports above 65,535.
    """
    changed: dict[str, Any] = {"processes": 1}
    for name in ("port", "admin_port"):
        changed[name] = _counted(getattr(settings, name), ordinal)
    if settings.node_id is not None:
        changed["node_id"] = settings.node_id + ordinal
    if settings.listeners is not None:
        changed["listeners"] = _listeners(settings.listeners, ordinal)
    if settings.advertised_listeners is not None:
        addresses = settings.advertised_listeners.split(",")
        changed["advertised_listeners"] = ",".join(_advertised(settings, address, ordinal) for address in addresses)
    limit = memory_limit() if settings.memory_max == 0 else None
    if limit is not None:
        changed["memory_max"] = limit // settings.processes
    return settings.model_copy(update=changed)


def _counted(port: int, ordinal: int) -> int:
    if port + ordinal > _PORT_MAX:
        raise CannotStart(f"port {port + ordinal} of process {ordinal} is above {_PORT_MAX} (TIDEGATE_PROCESSES)")
    return port + ordinal if port else 0


def _listeners(text: str, ordinal: int) -> str:
    return ",".join(_listener(listener, ordinal) for listener in text.split(","))


def _listener(text: str, ordinal: int) -> str:
    return _LISTENED.sub(lambda match: f":{_counted(int(match[1]), ordinal)}", text)


def _advertised(settings: Settings, text: str, ordinal: int) -> str:
    is_direct = address_mode_of(settings, text.partition("://")[0].strip()) == "direct"
    return _listener(text, ordinal) if is_direct else text


class HostPage:
    """Readiness of every process, in memory that all of them share. Create it before the first fork."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._memory = mmap.mmap(-1, count * _SLOT.size)

    def report(self, ordinal: int, ready: bool, now_s: float) -> None:
        """A process is up; called by itself at least every `SILENT_S`."""
        _, _, restarts = self._read(ordinal)
        self._write(ordinal, now_s, ready, restarts)

    def restarted(self, ordinal: int) -> None:
        """A process has ended and will be started again; called by the supervisor."""
        self._write(ordinal, 0.0, False, self._read(ordinal)[2] + 1)

    def ended(self, ordinal: int) -> None:
        """A process has ended for good; called by the supervisor."""
        self._write(ordinal, 0.0, False, self._read(ordinal)[2])

    def ready(self, ordinal: int, now_s: float) -> bool:
        """Whether a process reported recently that it is ready."""
        reported_s, ready, _ = self._read(ordinal)
        return bool(ready) and now_s - reported_s < SILENT_S

    def reported(self, ordinal: int) -> bool:
        """Whether a process has served since its last start."""
        return self._read(ordinal)[0] > 0

    @property
    def restarts(self) -> int:
        """Restarts of all processes."""
        return sum(self._read(ordinal)[2] for ordinal in range(self.count))

    def _read(self, ordinal: int) -> tuple[float, int, int]:
        found: tuple[float, int, int] = _SLOT.unpack_from(self._memory, ordinal * _SLOT.size)
        return found

    def _write(self, ordinal: int, reported_s: float, ready: bool, restarts: int) -> None:
        _SLOT.pack_into(self._memory, ordinal * _SLOT.size, reported_s, ready, restarts)


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One of the processes of a host. The first one's admin HTTP answers for the host."""

    page: HostPage
    ordinal: int
    drain_host: Callable[[], None]
    """Makes every process drain and exit, as the first SIGTERM to the supervisor does."""
    clock: Callable[[], float] = time.monotonic

    @property
    def is_first(self) -> bool:
        """Whether this process's admin HTTP answers for the host."""
        return self.ordinal == 0

    def report(self, ready: bool) -> None:
        """Report the state of this process."""
        self.page.report(self.ordinal, ready, self.clock())

    def others_not_ready(self) -> list[str]:
        """Why the host is not ready although this process is; empty on all processes but the first."""
        return list(self._not_ready()) if self.is_first else []

    def _not_ready(self) -> Iterator[str]:
        now_s = self.clock()
        for ordinal in range(self.page.count):
            if ordinal != self.ordinal and not self.page.ready(ordinal, now_s):
                yield f"process {ordinal} of this host is not ready"

    def ready_count(self) -> int:
        """Processes of this host that are ready."""
        now_s = self.clock()
        return sum(self.page.ready(ordinal, now_s) for ordinal in range(self.page.count))
