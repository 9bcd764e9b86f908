"""The services of compose.yaml as processes: what a client finds inside their network, outside it, and with TLS."""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tests.support.compose import REPOSITORY, brokers, listeners, services
from tests.support.compose_network import GRACE_S, START_S, Network, running

PLAIN = ("broker-1", "broker-2", "broker-3")

pytestmark = pytest.mark.timeout(2 * START_S)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Valkey, what runs once, and all five brokers, as the profile tls starts them."""
    with running(services(), tmp_path_factory.mktemp("volumes")) as network:
        yield network


def connecting(network: Network, *names: str, listener: str) -> dict[str, Any]:
    """How a client of a listener connects to some brokers."""
    reported = [listeners(brokers()[name], "TIDEGATE_ADVERTISED_LISTENERS")[listener] for name in names]
    found: dict[str, Any] = {"bootstrap_servers": ",".join(network.reached(*address) for address in reported)}
    if listener == "TLS":
        authority = network.volumes / "certificates" / "ca.pem"
        found |= {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(cafile=str(authority))}
    return found


async def addresses_known_to(network: Network, *names: str, listener: str) -> set[str]:
    """The brokers that a client learns from each of these alone; it writes through them, and another one reads."""
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
    assert all(one == found[0] for one in found), "all brokers answer alike"
    return found[0]


def addresses(network: Network, *names: str, listener: str) -> set[str]:
    """Where those brokers listen."""
    return {f"127.0.0.1:{network.places[name, listeners(brokers()[name])[listener][1]]}" for name in names}


async def test_client_in_the_network_reaches_every_broker_by_its_service_name(network: Network) -> None:
    everyone = tuple(brokers())

    assert await addresses_known_to(network, *everyone, listener="INTERNAL") == addresses(
        network, *everyone, listener="INTERNAL"
    )


async def test_client_on_the_machine_reaches_all_three_by_published_ports(network: Network) -> None:
    assert await addresses_known_to(network, *PLAIN, listener="EXTERNAL") == addresses(
        network, *PLAIN, listener="EXTERNAL"
    )


async def test_client_with_the_authority_speaks_tls(network: Network) -> None:
    names = ("broker-tls-1", "broker-tls-2")

    assert await addresses_known_to(network, *names, listener="TLS") == addresses(network, *names, listener="TLS")


async def test_inside_and_outside_are_one_cluster(network: Network) -> None:
    async with AIOKafkaProducer(**connecting(network, "broker-1", listener="INTERNAL")) as producer:
        await producer.send_and_wait("shared", b"from inside")
    async with AIOKafkaConsumer(
        "shared", **connecting(network, "broker-3", listener="EXTERNAL"), auto_offset_reset="earliest"
    ) as consumer:
        assert (await consumer.getone()).value == b"from inside"


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not on the PATH")
async def test_demonstration_makes_traffic_and_a_group_reads_it(network: Network) -> None:
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
