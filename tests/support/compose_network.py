"""The services of a Compose file as processes.

No container engine is needed. Commands and environments are those that Compose renders; each container's port becomes a
free one of loopback, and an address leads to a process only where Docker would: a service's name to the port that it
listens on, a published port to the container port behind it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cluster import BrokerProcess
from tests.support.compose import REPOSITORY, Services, brokers, listeners, published
from tests.support.valkey import ValkeyServer, free_port

GRACE_S = 30.0
START_S = 180.0
"""For what runs once, and for all brokers to be ready beside other tests."""


class Network:
    """Where the ports of containers are on loopback."""

    def __init__(self, services: Services, server: ValkeyServer, volumes: Path) -> None:
        self.services = services
        self.volumes = volumes
        self.places = {("valkey", 6379): server.port}
        for name, broker in brokers(services).items():
            self.places |= {(name, port): free_port() for _, port in listeners(broker).values()}
        self.outside = {
            address: (name, port)
            for name, broker in brokers(services).items()
            for port, address in published(broker).items()
            if (name, port) in self.places
        }

    def reached(self, host: str, port: int) -> str:
        """Where host:port leads, by the network's names or by what is published. Raises KeyError: nowhere."""
        return f"127.0.0.1:{self.places[self.outside.get((host, port), (host, port))]}"

    def here(self, text: str) -> str:
        """Every address and every folder of a volume in a text, as it is on this machine."""
        moved = re.sub(r"([\w.-]+):(\d+)", lambda found: self.reached(found[1], int(found[2])), text)
        return re.sub(r"^/(secrets|certificates|archive)", lambda found: f"{self.volumes}/{found[1]}", moved)

    def environment(self, name: str) -> dict[str, str]:
        """What a broker is given."""
        given: dict[str, str] = self.services[name]["environment"]
        moved = {variable: self.here(value.replace("0.0.0.0", name)) for variable, value in given.items()}
        return {**moved, "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}

    def run_once(self, name: str) -> None:
        """Run a service that ends, with this environment's commands on its PATH."""
        once = self.services[name]
        given = dict(once.get("environment") or {})
        if "TIDEGATE_REDIS_URL" in given:
            given["TIDEGATE_REDIS_URL"] = self.here(given["TIDEGATE_REDIS_URL"])
        folders = {"SECRETS": str(self.volumes / "secrets"), "CERTIFICATES": str(self.volumes / "certificates")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        script = str(REPOSITORY / once["entrypoint"][1].lstrip("/"))
        done = subprocess.run(
            [once["entrypoint"][0], script], env={**os.environ, "PATH": path, **folders, **given}, check=False,
            capture_output=True, text=True, timeout=START_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


@contextmanager
def running(services: Services, volumes: Path) -> Iterator[Network]:
    """Valkey, what runs once, and all brokers; each broker drains at the end."""
    for name in ("secrets", "certificates", "archive"):
        (volumes / name).mkdir()
    server = ValkeyServer(extra=services["valkey"]["command"][1:])
    network = Network(services, server, volumes)
    started = [BrokerProcess(server.url, volumes, name, network.environment(name)) for name in brokers(services)]
    try:
        for name in ("setup", "certificates", "users"):
            if name in services:
                network.run_once(name)
        for broker in started:
            broker.start()
        for broker in started:
            broker.wait_ready(START_S)
        yield network
        codes = [broker.drain(GRACE_S) for broker in started]
    finally:
        for broker in started:
            broker.kill()
        server.stop()
    assert codes == [0] * len(started), "drained within the grace period"
