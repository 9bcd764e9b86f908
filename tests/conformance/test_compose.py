"""The services of compose.yaml as processes: what a client finds inside their network, outside it, and with TLS.

No container engine is needed. Commands and environments are those that Compose renders; each container's port becomes a
free one of loopback, and an address leads to a process only where Docker would: a service's name to the port that it
listens on, a published port to the container port behind it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from bench.cluster import BrokerProcess
from tests.support.compose import REPOSITORY, brokers, listeners, published, services
from tests.support.valkey import ValkeyServer, free_port

PLAIN = ("broker-1", "broker-2", "broker-3")
GRACE_S = 30.0


class Network:
    """Where the ports of containers are on loopback."""

    def __init__(self, server: ValkeyServer, volumes: Path) -> None:
        self.volumes = volumes
        self.places = {("valkey", 6379): server.port}
        for name, broker in brokers().items():
            self.places |= {(name, port): free_port() for _, port in listeners(broker).values()}
        self.outside = {
            address: (name, port)
            for name, broker in brokers().items()
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
        """What a service is given."""
        given: dict[str, str] = services()[name]["environment"]
        moved = {variable: self.here(value.replace("0.0.0.0", name)) for variable, value in given.items()}
        return {**moved, "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Valkey, what runs once, and all five brokers, as the profile tls starts them."""
    volumes = tmp_path_factory.mktemp("volumes")
    for name in ("secrets", "certificates", "archive"):
        (volumes / name).mkdir()
    variables = {"SECRETS": str(volumes / "secrets"), "CERTIFICATES": str(volumes / "certificates")}
    for name in ("setup", "certificates"):
        once = services()[name]
        own = {**os.environ, **variables, **(once.get("environment") or {})}
        script = str(REPOSITORY / once["entrypoint"][1].lstrip("/"))
        subprocess.run([once["entrypoint"][0], script], env=own, check=True, capture_output=True, timeout=60)
    command = services()["valkey"]["command"]
    server = ValkeyServer(extra=command[1:])
    made = Network(server, volumes)
    started = [BrokerProcess(server.url, volumes, name, made.environment(name)) for name in brokers()]
    try:
        for broker in started:
            broker.start()
        for broker in started:
            broker.wait_ready()
        yield made
        codes = [broker.drain(GRACE_S) for broker in started]
    finally:
        for broker in started:
            broker.kill()
        server.stop()
    assert codes == [0] * 5, "drained within the grace period"


def connecting(network: Network, *names: str, listener: str) -> dict[str, Any]:
    """How a client of a listener is told to connect to some brokers."""
    reported = [listeners(brokers()[name], "TIDEGATE_ADVERTISED_LISTENERS")[listener] for name in names]
    found: dict[str, Any] = {"bootstrap_servers": ",".join(network.reached(*address) for address in reported)}
    if listener == "TLS":
        authority = network.volumes / "certificates" / "ca.pem"
        found |= {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(cafile=str(authority))}
    return found


async def seen_by(network: Network, *names: str, listener: str) -> set[str]:
    """The brokers that a client hears of from each of these alone; it writes through them, and another one reads."""
    found = []
    for name in names:
        async with AIOKafkaProducer(**connecting(network, name, listener=listener)) as producer:
            for number in range(12):
                await producer.send_and_wait(f"{listener}-{name}", str(number).encode(), partition=number % 6)
            reported = producer.client.cluster.brokers()
            found.append({f"{one.host}:{one.port}" for one in reported})
    async with AIOKafkaConsumer(
        *(f"{listener}-{name}" for name in names),
        **connecting(network, *names, listener=listener),
        group_id=f"of-{listener}",
        auto_offset_reset="earliest",
    ) as consumer:
        read = [int((await consumer.getone()).value) for _ in range(12 * len(names))]
    assert sorted(read) == sorted([*range(12)] * len(names))
    assert all(one == found[0] for one in found), "all brokers tell the same"
    return found[0]


def addresses(network: Network, *names: str, listener: str) -> set[str]:
    """Where those brokers listen."""
    return {f"127.0.0.1:{network.places[name, listeners(brokers()[name])[listener][1]]}" for name in names}


async def test_a_client_in_the_network_reaches_every_broker_by_its_service_name(network: Network) -> None:
    everyone = tuple(brokers())

    assert await seen_by(network, *everyone, listener="INTERNAL") == addresses(network, *everyone, listener="INTERNAL")


async def test_a_client_on_the_machine_reaches_all_three_by_published_ports(network: Network) -> None:
    assert await seen_by(network, *PLAIN, listener="EXTERNAL") == addresses(network, *PLAIN, listener="EXTERNAL")


async def test_a_client_with_the_authority_speaks_tls(network: Network) -> None:
    names = ("broker-tls-1", "broker-tls-2")

    assert await seen_by(network, *names, listener="TLS") == addresses(network, *names, listener="TLS")


async def test_inside_and_outside_are_one_cluster(network: Network) -> None:
    async with AIOKafkaProducer(**connecting(network, "broker-1", listener="INTERNAL")) as producer:
        await producer.send_and_wait("shared", b"from inside")
    async with AIOKafkaConsumer(
        "shared", **connecting(network, "broker-3", listener="EXTERNAL"), auto_offset_reset="earliest"
    ) as consumer:
        assert (await consumer.getone()).value == b"from inside"


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not on the PATH")
async def test_the_demonstration_makes_traffic_and_a_group_reads_it(network: Network) -> None:
    def start(name: str) -> subprocess.Popen[bytes]:
        service = services()[name]
        own = {"PATH": os.environ["PATH"], "HOSTNAME": name, **service["environment"]}
        own["BOOTSTRAP"] = network.here(own["BOOTSTRAP"])
        script = str(REPOSITORY / service["entrypoint"][1].lstrip("/"))
        return subprocess.Popen(
            ["sh", script], env=own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )

    started = [start("demo-producer"), start("demo-consumer")]
    try:
        with started[1].stdout as reported:  # type: ignore[union-attr]
            line = reported.readline().decode()
    finally:
        for one in started:
            os.killpg(one.pid, signal.SIGTERM)
            one.communicate(timeout=GRACE_S)

    assert re.fullmatch(r'orders \[\d\] offset \d+: customer-\d+ \{"order": \d+, "cents": \d+\}\n', line)
