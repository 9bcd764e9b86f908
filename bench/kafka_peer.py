"""Apache Kafka as a peer: one KRaft node on loopback, from Maven's jars, as its own scripts start it."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from bench.cluster import free_port
from bench.jars import KAFKA_VERSION, PeerUnavailable, classpath

_START_TIMEOUT_S: Final = 60.0
_JVM: Final = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{listeners}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
log.dirs={logs}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.segment.delete.delay.ms=1000
"""
_DEFAULTS: Final = {"group.initial.rebalance.delay.ms": "0"}


class KafkaPeer:
    """One server as a context manager. Default threads, no fsync (Kafka's default), replication 1.

    `properties` are added to those of its server.properties; `listeners` are more of them, name -> (protocol, port).
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        version: str = KAFKA_VERSION,
        listeners: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        self._version = version
        self._properties = _DEFAULTS | dict(properties or {})
        self._listeners = dict(listeners or {})
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="tidegate-kafka-"))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """host:port as a client takes it."""
        return f"127.0.0.1:{self.port}"

    @property
    def pids(self) -> list[int]:
        """The server's process id."""
        assert self.process is not None
        return [self.process.pid]

    def __enter__(self) -> KafkaPeer:
        try:
            self._start(classpath(self._version))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, jars: str) -> None:
        config = self.directory / "server.properties"
        fixed = _PROPERTIES.format(
            port=self.port, controller=free_port(), logs=self.directory / "logs",
            listeners="".join(f",{name}://127.0.0.1:{port}" for name, (_, port) in self._listeners.items()),
            protocols="".join(f",{name}:{protocol}" for name, (protocol, _) in self._listeners.items()),
        )  # fmt: skip
        config.write_text(fixed + "".join(f"{name}={value}\n" for name, value in self._properties.items()))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        format_command = ["java", "-Xmx256m", "-cp", jars, "kafka.tools.StorageTool", "format", "-c", str(config)]
        formatted = subprocess.run(
            [*format_command, f"--cluster-id={cluster_id}"], capture_output=True, text=True, check=False
        )
        if formatted.returncode != 0:
            raise PeerUnavailable(f"Kafka's storage could not be formatted: {formatted.stderr.strip()[-200:]}")
        with (self.directory / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["java", *_JVM, "-cp", jars, "kafka.Kafka", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                for port in (self.port, *(port for _, port in self._listeners.values())):
                    socket.create_connection(("127.0.0.1", port), 0.5).close()
                return
            except OSError:
                time.sleep(0.1)
        raise PeerUnavailable(f"Kafka did not start: {(self.directory / 'server.log').read_text()[-200:]}")

    def stop(self) -> None:
        """End the server and remove its data."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)
