"""compose.secure.yaml as processes: SASL_SSL alone, users of the first start, and rights by rules alone."""

from __future__ import annotations

import asyncio
import ssl
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.compose import brokers, listeners, secure_services
from tests.support.compose_network import START_S, Network, running

WAIT_S = 60
CONNECT_S = 10
pytestmark = pytest.mark.timeout(2 * START_S)
EVERY_BROKER = tuple(brokers(secure_services()))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """What `docker compose -f compose.yaml -f compose.secure.yaml up` starts first."""
    with running(secure_services(), tmp_path_factory.mktemp("volumes")) as network:
        yield network


def bootstrap(network: Network, listener: str) -> str:
    """Where clients outside or inside find the brokers."""
    every = brokers(network.services).values()
    advertised = [listeners(one, "TIDEGATE_ADVERTISED_LISTENERS")[listener] for one in every]
    return ",".join(network.reached(*address) for address in advertised)


def password(network: Network, user: str) -> str:
    return (network.volumes / "secrets" / f"{user}-password").read_text().strip()


def of_librdkafka(network: Network, user: str, **options: Any) -> dict[str, Any]:
    """How a client outside connects."""
    return {
        "bootstrap.servers": bootstrap(network, "EXTERNAL"), "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(network.volumes / "certificates" / "ca.pem"), "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user, "sasl.password": password(network, user), **options,
    }  # fmt: skip


def test_librdkafka_of_app_uses_its_own_topics_and_groups(network: Network) -> None:
    topic, group, reported = f"app-{uuid.uuid4().hex[:8]}", f"app-{uuid.uuid4().hex[:8]}", []
    producer = Producer(of_librdkafka(network, "app", **{"enable.idempotence": True}))
    producer.produce(topic, b"one", on_delivery=lambda error, _: reported.append(error))
    assert producer.flush(WAIT_S) == 0
    assert reported == [None]

    options = of_librdkafka(network, "app", **{"group.id": group, "auto.offset.reset": "earliest"})
    with closing(Consumer(options)) as consumer:
        consumer.subscribe([topic])
        (message,) = consumer.consume(1, WAIT_S)
        assert (message.error(), message.value()) == (None, b"one")


@pytest.mark.parametrize("listener", ["INTERNAL", "EXTERNAL"])
async def test_aiokafka_of_app_is_refused_elsewhere(network: Network, listener: str) -> None:
    authority = str(network.volumes / "certificates" / "ca.pem")
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap(network, listener), security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512",
        ssl_context=ssl.create_default_context(cafile=authority), sasl_plain_username="app",
        sasl_plain_password=password(network, "app"),
    )  # fmt: skip
    async with asyncio.timeout(WAIT_S), producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait("orders", b"one")
        assert (await producer.send_and_wait(f"app-{listener}", b"one")).offset == 0


def test_admin_lists_every_broker_and_topic(network: Network) -> None:
    admin, topic = AdminClient(of_librdkafka(network, "admin")), uuid.uuid4().hex
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WAIT_S)

    until_s = time.monotonic() + WAIT_S
    while topic not in (listed := admin.list_topics(timeout=WAIT_S)).topics:  # by a broker that learns of it later
        assert time.monotonic() < until_s, listed.topics
    assert len(listed.brokers) == len(EVERY_BROKER) == 3
    assert topic not in AdminClient(of_librdkafka(network, "app")).list_topics(timeout=WAIT_S).topics


@pytest.mark.parametrize(
    "changed",
    [
        {"sasl.password": "wrong"},
        {"sasl.username": "nobody"},
        {"security.protocol": "PLAINTEXT"},
        {"security.protocol": "SSL"},
    ],
    ids=["password", "user", "plaintext", "without-authentication"],
)
def test_client_without_credentials_is_refused(network: Network, changed: dict[str, str]) -> None:
    client = AdminClient(of_librdkafka(network, "admin", **changed, log_level=0))

    with pytest.raises(KafkaException) as refused:
        client.list_topics(timeout=CONNECT_S)

    assert refused.value.args[0].code() in (KafkaError._TRANSPORT, KafkaError._AUTHENTICATION, KafkaError._TIMED_OUT)


def test_second_start_leaves_users_and_rules_as_they_are(network: Network) -> None:
    before = {user: password(network, user) for user in ("admin", "app")}

    network.run_once("setup")
    network.run_once("users")

    assert {user: password(network, user) for user in before} == before
    assert AdminClient(of_librdkafka(network, "app")).list_topics(timeout=WAIT_S).brokers
