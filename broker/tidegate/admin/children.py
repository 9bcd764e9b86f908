"""Child processes: started in their own session, stopped by pid, terminated when their parent exits."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

import tidegate
from tidegate.errors import CannotStart

HOST: Final = "127.0.0.1"
DRAIN_BUDGET_MS: Final = 3_000
"""A shorter drain than the default, because the user waits for it after Ctrl-C."""
_FOR_PEOPLE: Final = {
    "TIDEGATE_SHUTDOWN_TIMEOUT_MS": str(DRAIN_BUDGET_MS),
    "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",  # as in Kafka's quick-start configuration
}

_PR_SET_PDEATHSIG: Final = 1
_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach our loopback
_OF_ONE_BROKER: Final = ("TIDEGATE_NODE_ID", "TIDEGATE_HOST", "TIDEGATE_ADVERTISED_HOST", "TIDEGATE_ADVERTISED_PORT")


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


def dies_with_parent(number: int) -> Callable[[], None] | None:
    """A function for a child to run before exec: the kernel signals it when this process exits (Linux only)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return before_exec


def start_child(
    command: list[str],
    log: Path,
    *,
    parent_death_signal: int,
    env: dict[str, str] | None = None,
    cwd: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child process with its output in `log`, in its own session.

    Ctrl-C on the terminal therefore does not reach it: children are stopped in order, by pid.
    """
    with log.open("ab") as out:
        return subprocess.Popen(  # noqa: S603 - commands of our own making
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=dies_with_parent(parent_death_signal),
        )


def last_line(log: Path) -> str:
    """The last non-empty line, for an error message."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


class BrokerChild:
    def __init__(self, port: int, admin_port: int, log: Path) -> None:
        self.port = port
        self.admin_port = admin_port
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, redis_url: str) -> None:
        """Start the process; `ready` reports when it serves."""
        env = {name: value for name, value in os.environ.items() if name not in _OF_ONE_BROKER}
        env = {**_FOR_PEOPLE, **env}
        env.update(
            TIDEGATE_REDIS_URL=redis_url,
            TIDEGATE_HOST=HOST,
            TIDEGATE_PORT=str(self.port),
            TIDEGATE_ADMIN_PORT=str(self.admin_port),
        )
        self.log.write_bytes(b"")
        self.process = start_child(
            [sys.executable, "-m", "tidegate", "serve"],
            self.log,
            parent_death_signal=signal.SIGKILL,
            env=env,
            cwd=str(Path(tidegate.__file__).parent.parent),
        )

    @property
    def ended(self) -> int | None:
        """The exit code, or None while it runs."""
        return None if self.process is None else self.process.poll()

    def ready(self, brokers: int) -> bool:
        """Whether it is ready and lists every broker to a client. Raises CannotStart when it has exited."""
        if self.ended is not None:
            raise CannotStart(f"the broker on port {self.port} ended: {reason(self.log)} (log: {self.log})")
        url = f"http://{HOST}:{self.admin_port}/health/ready"
        try:
            with _DIRECT.open(url, timeout=1):
                return brokers_listed(HOST, self.port) >= brokers
        except OSError:
            return False


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
