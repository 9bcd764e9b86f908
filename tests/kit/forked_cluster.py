"""A cluster whose brokers are forked from one process with warm imports, where the process is not the point of a test.

A broker that starts by itself takes 0.9 s of CPU, 0.8 s of them for imports. `python -m tests.kit.forked_cluster` forks
them, one for each process of pytest, with which it and its brokers end.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from functools import cache
from typing import IO, Any, cast

from bench.broker_with_constants import replace_constant
from bench.cluster import REPOSITORY, BrokerProcess, Cluster
from tidegate import fork_server


class ForkedProcess:
    """A forked broker, with what `subprocess.Popen` has for it."""

    def __init__(self, server: ForkServer, name: str, pid: int) -> None:
        self._server, self._name, self.pid = server, name, pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._server.wait_for(self._name, "code", 0)

    def poll(self) -> int | None:
        """As `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        code = self._server.wait_for(self._name, "code", timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self._name, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        self._server.request(signal=number, name=self._name)

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        self.send_signal(9)


class ForkServer:
    """The process that forks, and what it has reported."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.forked_cluster"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reports: dict[tuple[str, str], int] = {}
        self._reported = threading.Condition()
        self._has_ended = False
        self._count = 0
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        atexit.register(self.stop)

    def _read(self, reports: IO[str]) -> None:
        for line in reports:
            report = json.loads(line)
            name = report.pop("name")
            with self._reported:
                self._reports.update({(name, field): value for field, value in report.items()})
                self._reported.notify_all()
        with self._reported:
            self._has_ended = True
            self._reported.notify_all()

    def request(self, **values: object) -> None:
        """Send a request, see `tidegate.fork_server`."""
        assert self._process.stdin is not None
        with self._reported:
            self._process.stdin.write(json.dumps(values) + "\n")
            self._process.stdin.flush()

    def wait_for(self, name: str, field: str, timeout_s: float | None) -> int | None:
        """A field that is reported of a broker, None if it is not within the time."""
        with self._reported:
            self._reported.wait_for(lambda: self._has_ended or (name, field) in self._reports, timeout_s)
            return self._reports.get((name, field))

    def start(self, environment: dict[str, str], log: str, constants: dict[str, int]) -> ForkedProcess:
        """Fork a broker, whose output goes to the file `log`."""
        self._count += 1
        name = str(self._count)
        self.request(start=name, environment=environment, log=log, constants=constants)
        pid = self.wait_for(name, "pid", 60)
        if pid is None:
            raise RuntimeError("no broker was forked")
        return ForkedProcess(self, name, pid)

    def stop(self) -> None:
        """Kill the brokers that remain, and reap the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()


@cache
def fork_server_of_tests() -> ForkServer:
    """The one of this process, which starts with the first broker."""
    return ForkServer()


class ForkedBroker(BrokerProcess):
    """A broker that is forked."""

    def start(self) -> None:
        """Start without waiting; see `wait_ready`."""
        forked = fork_server_of_tests().start(self._environment, str(self.log_path), self._constants)
        self.process = cast("subprocess.Popen[bytes]", forked)


class ForkedCluster(Cluster):
    """As `Cluster`."""

    broker_class = ForkedBroker


def become_broker(request: dict[str, Any]) -> None:
    """Replace the constants of a request, then become its broker."""
    for name, value in request["constants"].items():
        replace_constant(name, value)
    os.chdir(REPOSITORY)
    fork_server.become_broker(request)


if __name__ == "__main__":
    fork_server.main(become_broker)
