"""Process-level services: bound ports, signal handling, event-loop lag, resource use."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

import structlog

from tidegate.startup import CannotStart

logger = structlog.get_logger()

_LAG_PERIOD_S: Final = 0.25
_LAG_WINDOW: Final = 40


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A bound socket that does not listen yet, so that a port in use is reported before anything else starts.

    An error names `setting`. Raises CannotStart.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotStart(
            f"{host} is not an address to listen on ({setting.replace('PORT', 'HOST')}): {error}"
        ) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise CannotStart(f"port {port} on {host} is in use ({setting} takes another)") from None
        raise CannotStart(f"cannot listen on {host}:{port} ({setting}): {error.strerror}") from None
    return sock


class Signals:
    """SIGTERM and SIGINT: the first requests a drain, the second ends the process immediately."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)

    def _signalled(self, number: int) -> None:
        if self.asked.is_set():
            logger.warning("ended_at_once", signal=signal.Signals(number).name)
            os._exit(1)
        logger.info("asked_to_stop", signal=signal.Signals(number).name)
        self.asked.set()


class LoopLag:
    """Lag of the event loop: the worst delay of a timer in the last ten seconds, and since the start."""

    def __init__(self) -> None:
        self._lags_s: list[float] = [0.0]
        self.longest_s = 0.0
        """Longest delay since the start."""

    @property
    def worst_s(self) -> float:
        return max(self._lags_s)

    async def measure(self) -> None:
        """Measure until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            lag_s = max(0.0, clock() - due)
            self.longest_s = max(self.longest_s, lag_s)
            self._lags_s.append(lag_s)
            del self._lags_s[:-_LAG_WINDOW]


class ProcessUse:
    """CPU, memory and uptime of this process."""

    def __init__(self) -> None:
        self._began_s = self._asked_s = time.monotonic()
        self._cpu_s = time.process_time()

    @property
    def uptime_s(self) -> float:
        """Seconds since construction."""
        return time.monotonic() - self._began_s

    def cpu_share(self) -> float:
        """Used part of one core since the previous call."""
        now_s, cpu_s = time.monotonic(), time.process_time()
        share = (cpu_s - self._cpu_s) / max(now_s - self._asked_s, 0.001)
        self._asked_s, self._cpu_s = now_s, cpu_s
        return share

    def memory_bytes(self) -> int:
        """Resident memory; on systems without /proc the peak resident memory."""
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
        except OSError:
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return most if sys.platform == "darwin" else most * 1024
        return pages * resource.getpagesize()
