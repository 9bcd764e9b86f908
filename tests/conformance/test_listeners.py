"""Several listeners: each client gets addresses of the listener that it uses, over TLS where that has it."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from bench.cluster import BrokerProcess, Cluster, free_port
from tests.kit.forked_cluster import ForkedCluster
from tests.support.certificates import Authority
from tidegate.command_line import command_line

TIMEOUT_S = 60.0
ONE_LINE_S = 10
"""Within this time an event at a listener is logged once."""


@dataclass
class Secured:
    """A cluster whose brokers listen INTERNAL in plaintext and EXTERNAL in TLS, at the ports of each."""

    cluster: Cluster
    authority: Authority
    internal: list[int]
    external: list[int]

    def librdkafka(self, listener: str, **options: Any) -> dict[str, Any]:
        """Settings of a confluent-kafka client."""
        ports = self.internal if listener == "INTERNAL" else self.external
        own = {"bootstrap.servers": f"localhost:{ports[0]}", "socket.timeout.ms": 10_000}
        if listener == "EXTERNAL":
            own |= {"security.protocol": "ssl", "ssl.ca.location": str(self.authority.file)}
        return {**own, **{name.replace("_", "."): value for name, value in options.items()}}

    def aiokafka(self, listener: str, **options: Any) -> dict[str, Any]:
        """Settings of an aiokafka client."""
        ports = self.internal if listener == "INTERNAL" else self.external
        own: dict[str, Any] = {"bootstrap_servers": f"localhost:{ports[0]}"}
        if listener == "EXTERNAL":
            own |= {"security_protocol": "SSL", "ssl_context": self.authority.client()}
        return {**own, **options}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Two brokers; a certificate for localhost, by which EXTERNAL is advertised."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    certificate = str(authority.issue("broker", "localhost"))
    internal, external = ([free_port() for _ in range(2)] for _ in range(2))
    with ForkedCluster(brokers=0, settings={"TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "100"}) as cluster:
        for inside, outside in zip(internal, external, strict=True):
            cluster.settings |= {
                "TIDEGATE_LISTENERS": f"INTERNAL://127.0.0.1:{inside},EXTERNAL://127.0.0.1:{outside}",
                "TIDEGATE_ADVERTISED_LISTENERS": f"INTERNAL://127.0.0.1:{inside},EXTERNAL://localhost:{outside}",
                "TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP": "INTERNAL:PLAINTEXT,EXTERNAL:SSL",
                "TIDEGATE_SSL_CERTIFICATE_FILE": certificate,
            }
            cluster.add_broker()
        yield Secured(cluster, authority, internal, external)


def log_of(broker: BrokerProcess, event: str) -> list[str]:
    return [line for line in broker.log_path.read_text().splitlines() if event in line]


@pytest.mark.parametrize(("listener", "host"), [("INTERNAL", "127.0.0.1"), ("EXTERNAL", "localhost")])
def test_metadata_gives_addresses_of_the_listener_in_use(secured: Secured, listener: str, host: str) -> None:
    admin = AdminClient(secured.librdkafka(listener))
    expected = {(host, port) for port in (secured.internal if listener == "INTERNAL" else secured.external)}

    ends = time.monotonic() + TIMEOUT_S
    reported: set[tuple[str, int]] = set()
    while reported != expected and time.monotonic() < ends:  # a broker learns of another with its next renewal
        reported = {(one.host, one.port) for one in admin.list_topics(timeout=TIMEOUT_S).brokers.values()}
    assert reported == expected
    described = admin.describe_cluster(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
    assert {(one.host, one.port) for one in described.nodes} == expected
    found = admin.describe_consumer_groups(["who"], request_timeout=TIMEOUT_S)["who"].result(TIMEOUT_S)
    assert (found.coordinator.host, found.coordinator.port) in expected


async def test_aiokafka_produces_inside_and_consumes_outside(secured: Secured) -> None:
    producer = AIOKafkaProducer(**secured.aiokafka("INTERNAL"))
    await producer.start()
    await producer.send_and_wait("over-tls", b"from inside")
    await producer.stop()
    consumer = AIOKafkaConsumer(
        "over-tls", **secured.aiokafka("EXTERNAL", group_id="outside", auto_offset_reset="earliest")
    )
    await consumer.start()
    async with asyncio.timeout(TIMEOUT_S):
        record = await consumer.getone()
    await consumer.commit()
    await consumer.stop()

    assert record.value == b"from inside"


def test_librdkafka_produces_outside_and_consumes_inside(secured: Secured) -> None:
    producer = Producer(secured.librdkafka("EXTERNAL", enable_idempotence=True))
    value = bytes(500_000)
    for _ in range(8):
        producer.produce("large", value)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(secured.librdkafka("EXTERNAL", group_id="inside", auto_offset_reset="earliest"))
    consumer.subscribe(["large"])
    deadline, values = time.monotonic() + TIMEOUT_S, []
    while len(values) < 8:
        assert time.monotonic() < deadline
        record = consumer.poll(1)
        if record is not None and record.error() is None:
            values.append(record.value())
    consumer.close()

    assert values == [value] * 8


def test_wrong_protocol_is_reported_at_both_ends(secured: Secured) -> None:
    [one, *_] = secured.cluster.brokers
    plain_on_tls = {"bootstrap.servers": f"localhost:{secured.external[0]}"}
    tls_on_plain = {**secured.librdkafka("EXTERNAL"), "bootstrap.servers": f"localhost:{secured.internal[0]}"}
    for options, event in ((plain_on_tls, "plaintext_on_tls_listener"), (tls_on_plain, "tls_on_plaintext_listener")):
        reported: list[str] = []
        before, began_s = len(log_of(one, event)), time.monotonic()
        admin = AdminClient({**options, "error_cb": lambda error, reported=reported: reported.append(str(error))})
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=3)
        while not reported or len(log_of(one, event)) == before:
            assert time.monotonic() < began_s + TIMEOUT_S
            admin.poll(0.2)
        periods = 1 + (time.monotonic() - began_s) // ONE_LINE_S
        assert len(log_of(one, event)) - before <= periods, "again and again within ten seconds: one line"
    with urllib.request.urlopen(f"http://127.0.0.1:{one.admin_port}/health/ready", timeout=TIMEOUT_S) as response:
        assert json.load(response)["ready"]


def diagnosed(bootstrap: str, *words: str) -> tuple[int, dict[str, Any], set[str]]:
    """`tidegate doctor`: its exit code, its JSON, the kinds of findings that are no notes."""
    done = CliRunner().invoke(command_line, ["doctor", "--bootstrap", bootstrap, "-o", "json", *words])
    reported = json.loads(done.stdout)
    return done.exit_code, reported, {one["kind"] for one in reported["findings"] if one["severity"] != "note"}


async def test_doctor_at_both_listeners(secured: Secured) -> None:
    inside, outside = f"localhost:{secured.internal[0]}", f"localhost:{secured.external[0]}"
    trusting = ("--no-redis", "--ca-file", str(secured.authority.file))
    admin = ("--admin", f"127.0.0.1:{secured.cluster.brokers[0].admin_port}")

    _, plain, plain_kinds = await asyncio.to_thread(diagnosed, outside, "--no-redis")
    code, trusted, kinds = await asyncio.to_thread(diagnosed, outside, *trusting)
    _, _, untrusted_kinds = await asyncio.to_thread(diagnosed, outside, "--no-redis", "--tls")
    _, _, tls_to_plain = await asyncio.to_thread(diagnosed, f"127.0.0.1:{secured.internal[0]}", *trusting)
    _, every, inside_kinds = await asyncio.to_thread(diagnosed, inside, "--no-redis", *admin)

    assert plain_kinds == {"tls-required"}
    assert (code, kinds, len(trusted["addresses"])) == (0, set(), 2)
    assert untrusted_kinds == {"certificate-untrusted"}
    assert tls_to_plain == {"tls-not-spoken"}
    assert plain["cluster_id"] == trusted["cluster_id"]
    assert inside_kinds == set()
    assert sorted((one["listener"] or "", one["tls"], one["answers"]) for one in every["addresses"]) == [
        ("", False, "yes"), ("", False, "yes"), ("EXTERNAL", True, "yes"), ("EXTERNAL", True, "yes"),
    ]  # fmt: skip
