"""Child processes: started in their own session, stopped by pid, terminated when their parent exits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import IO, Final, Protocol

import tidegate
from tidegate.startup import CannotStart, dies_with_parent

HOST: Final = "127.0.0.1"
DRAIN_BUDGET_MS: Final = 3_000
"""A shorter drain than the default, because the user waits for it after Ctrl-C."""
_FOR_PEOPLE: Final = {
    "TIDEGATE_SHUTDOWN_TIMEOUT_MS": str(DRAIN_BUDGET_MS),
    "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",  # as in Kafka's quick-start configuration
}

_OF_ONE_BROKER: Final = (
    "TIDEGATE_NODE_ID",
    "TIDEGATE_HOST",
    "TIDEGATE_ADVERTISED_LISTENERS",
    "TIDEGATE_PROCESSES",
    "TIDEGATE_REDIS_URL_FILE",
)


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start_child(
    command: list[str],
    log: Path,
    *,
    parent_death_signal: int,
    stdin: int = subprocess.DEVNULL,
    cwd: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child process with its output in `log`, in its own session.

    Ctrl-C on the terminal therefore does not reach it: children are stopped in order, by pid.
    """
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603 - commands of our own making
            command,
            cwd=cwd,
            stdin=stdin,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=dies_with_parent(parent_death_signal),
        )


def last_line(log: Path) -> str:
    """The last non-empty line, for an error message."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


class BrokerStarter(Protocol):
    """Starts the brokers of a cluster, by name, and ends them."""

    def start(self) -> None:
        """Prepare, without waiting."""

    def start_broker(self, name: str, environment: dict[str, str], log: Path) -> None:
        """Start a broker with this environment, whose output goes to `log`."""

    def signal(self, name: str, number: int) -> None:
        """Signal a broker, if it runs."""

    def ended(self, name: str) -> int | None:
        """The exit code of a broker, negative for a signal; None while it runs."""

    def stop(self) -> None:
        """Kill the brokers that remain, and reap."""


class SingleBroker:
    """Starts the only broker as a process of its own (`tidegate.deferred_serve`), whose output goes to `log`.

    A fork server would occupy as much memory again.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process without waiting for its imports."""
        self._log.write_bytes(b"")
        self._process = start_child(
            [sys.executable, "-m", "tidegate.deferred_serve"],
            self._log,
            parent_death_signal=signal.SIGKILL,
            stdin=subprocess.PIPE,
            cwd=str(Path(tidegate.__file__).parent.parent),
        )

    def start_broker(self, name: str, environment: dict[str, str], log: Path) -> None:
        """Have it serve as soon as the imports are done."""
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self._process.stdin.write(json.dumps(environment).encode() + b"\n")
            self._process.stdin.close()

    def signal(self, name: str, number: int) -> None:
        """Signal it, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def ended(self, name: str) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Kill it if it remains, and reap."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


class ForkServer:
    """The process that imports what a broker needs once, and forks each broker (`tidegate.fork_server`)."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._codes: dict[str, int] = {}

    def start(self) -> None:
        """Start the process without waiting for its imports."""
        self._log.write_bytes(b"")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidegate.fork_server"],
                cwd=str(Path(tidegate.__file__).parent.parent),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=dies_with_parent(signal.SIGKILL),
            )
        os.set_blocking(self._pipes()[1].fileno(), False)

    def start_broker(self, name: str, environment: dict[str, str], log: Path) -> None:
        """Start a broker as soon as the imports are done."""
        self._codes.pop(name, None)
        log.write_bytes(b"")
        self._request(start=name, environment=environment, log=str(log))

    def signal(self, name: str, number: int) -> None:
        """Signal a broker, if it runs."""
        self._request(signal=number, name=name)

    def ended(self, name: str) -> int | None:
        """The exit code of a broker, negative for a signal; None while it runs. All end with this process."""
        _, answers = self._pipes()
        while True:
            chunk = answers.read(4096)
            if not chunk:
                break
            *lines, self._received = (self._received + chunk).split(b"\n")
            for answer in map(json.loads, lines):
                if "code" in answer:
                    self._codes[answer["name"]] = answer["code"]
        if chunk == b"":
            return self._codes.get(name, -signal.SIGKILL)
        return self._codes.get(name)

    def _request(self, **values: object) -> None:
        requests, _ = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # it has ended, and all brokers with it
            requests.write(json.dumps(values).encode() + b"\n")
            requests.flush()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def stop(self) -> None:
        """Kill the brokers that remain, and reap the process."""
        if self._process is None:
            return
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class BrokerChild:
    def __init__(self, port: int, admin_port: int, log: Path) -> None:
        self.port = port
        self.admin_port = admin_port
        self.log = log
        self._starter: BrokerStarter | None = None

    @property
    def name(self) -> str:
        """What its starter calls it."""
        return str(self.port)

    def start(self, starter: BrokerStarter, redis_url: str) -> None:
        """Start the process; `ready` reports when it serves."""
        env = {name: value for name, value in os.environ.items() if name not in _OF_ONE_BROKER}
        env = {**_FOR_PEOPLE, **env}
        env.update(
            TIDEGATE_REDIS_URL=redis_url,
            TIDEGATE_HOST=HOST,
            TIDEGATE_PORT=str(self.port),
            TIDEGATE_ADMIN_PORT=str(self.admin_port),
        )
        self._starter = starter
        starter.start_broker(self.name, env, self.log)

    @property
    def ended(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return None if self._starter is None else self._starter.ended(self.name)

    @property
    def is_started(self) -> bool:
        """Whether `start` was called."""
        return self._starter is not None

    def signal(self, number: int) -> None:
        """Signal the process, if it runs."""
        if self._starter is not None:
            self._starter.signal(self.name, number)

    def ready(self, brokers: int) -> bool:
        """Whether it is ready and lists every broker to a client. Raises CannotStart when it has exited."""
        if self.ended is not None:
            raise CannotStart(f"the broker on port {self.port} ended: {reason(self.log)} (log: {self.log})")
        try:
            return _is_ready(self.admin_port) and brokers_listed(HOST, self.port) >= brokers
        except OSError:
            return False


def _is_ready(admin_port: int) -> bool:
    """The status of its readiness probe, without an HTTP library, which would double this process. Raises OSError."""
    with socket.create_connection((HOST, admin_port), timeout=1) as sock, sock.makefile("rb") as stream:
        sock.sendall(f"GET /health/ready HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
        return stream.readline(64).split()[1:2] == [b"200"]


def ending(code: int, reported_text: str) -> str:
    """How a process ended, in words: with its last output for an exit code, without it for a signal."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}: {reported_text}"


def reason(log: Path) -> str:
    """The last message of a broker, without the program's name."""
    return last_line(log).removeprefix("tidegate: ")


def brokers_listed(host: str, port: int) -> int:
    """The brokers in a Metadata response (v1, no topics) from that address. Raises OSError."""
    body = struct.pack(">hhih8si", 3, 1, 1, 8, b"tidegate", 0)
    with socket.create_connection((host, port), timeout=2) as sock, sock.makefile("rb") as stream:
        sock.sendall(struct.pack(">i", len(body)) + body)
        answer = stream.read(12)
    if len(answer) < 12:
        raise ConnectionError("no answer to Metadata")
    return int(struct.unpack(">iii", answer)[2])
