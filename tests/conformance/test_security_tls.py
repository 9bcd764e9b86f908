"""Each SASL mechanism over TLS with three libraries; wrong, expired and revoked credentials; and what leaks of them."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiokafka
import kafka
import pytest
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from bench.cluster import Cluster
from tests.conformance.test_security import MECHANISMS, WAIT_S, Secured, Tokens, code_of
from tests.support.certificates import Authority

PASSWORD, WRONG, ADMIN_TOKEN = "alice-tls-s3cret", "wr0ng-tls-s3cret", "admin-t0ken-tls-s3cret"
EVERY = (*MECHANISMS, "OAUTHBEARER")
SESSION_MS = 3_000

pytestmark = pytest.mark.one_server


class OverTls(Secured):
    """A broker whose listener is SASL_SSL, with the user alice."""

    def __init__(self, cluster: Cluster, key: rsa.RSAPrivateKey, authority: Authority) -> None:
        super().__init__(cluster, key)
        self.authority = authority

    def librdkafka(self, mechanism: str, password: str = PASSWORD, name: str = "alice") -> dict[str, Any]:
        tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.authority.file)}
        expires = time.time() + (300 if password == PASSWORD else -120)
        own: dict[str, Any] = {}
        if mechanism == "OAUTHBEARER":
            own = {"oauth_cb": lambda _: (self.token(name, exp=expires), time.time() + 300)}
        return self.options(name, mechanism, password) | tls | own

    def aiokafka(self, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        expires = time.time() + (300 if password == PASSWORD else -120)
        token = Tokens(self.token("alice", exp=expires)) if mechanism == "OAUTHBEARER" else None
        return {
            "bootstrap_servers": self.address, "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism,
            "ssl_context": self.authority.client(), "sasl_plain_username": "alice", "sasl_plain_password": password,
            "sasl_oauth_token_provider": token, "retry_backoff_ms": 200,
        }  # fmt: skip


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverTls]:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keys = directory / "keys.json"
    keys.write_text(json.dumps({"keys": [RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "k"}]}))
    settings = {
        "TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:SASL_SSL",
        "TIDEGATE_SSL_CERTIFICATE_FILE": str(authority.issue("broker", "127.0.0.1", "localhost")),
        "TIDEGATE_SASL_ENABLED_MECHANISMS": ",".join(EVERY),
        "TIDEGATE_SASL_OAUTHBEARER_JWKS_ENDPOINT_URL": keys.as_uri(),
        "TIDEGATE_CONNECTIONS_MAX_REAUTH_MS": str(SESSION_MS),
        "TIDEGATE_AUDIT_STREAM_BYTES": str(16 << 20),
        "TIDEGATE_ADMIN_OPERATOR_TOKEN": ADMIN_TOKEN,
        "TIDEGATE_LOG_LEVEL": "debug",
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    with Cluster(brokers=1, settings=settings) as cluster:
        running = OverTls(cluster, key, authority)
        running.command("user", "create", "alice", "--password-file", "-", "--yes", stdin=f"{PASSWORD}\n")
        yield running


@pytest.mark.parametrize("mechanism", EVERY)
def test_librdkafka_over_tls(secured: OverTls, mechanism: str) -> None:
    client = AdminClient(secured.librdkafka(mechanism))
    client.poll(0.1)
    assert client.list_topics(timeout=WAIT_S).brokers


@pytest.mark.parametrize("mechanism", EVERY)
def test_librdkafka_over_tls_with_wrong_credentials(secured: OverTls, mechanism: str) -> None:
    errors: list[KafkaError] = []
    client = AdminClient({**secured.librdkafka(mechanism, WRONG), "error_cb": errors.append})
    deadline = time.monotonic() + WAIT_S
    while KafkaError._AUTHENTICATION not in {error.code() for error in errors} and time.monotonic() < deadline:
        client.poll(0.2)
    assert KafkaError._AUTHENTICATION in {error.code() for error in errors}


@pytest.mark.parametrize("mechanism", EVERY)
async def test_aiokafka_over_tls(secured: OverTls, mechanism: str) -> None:
    topic = f"t-{uuid4().hex[:8]}"
    async with aiokafka.AIOKafkaProducer(**secured.aiokafka(mechanism)) as producer:
        assert (await producer.send_and_wait(topic, b"value")).offset == 0


@pytest.mark.parametrize("mechanism", EVERY)
async def test_aiokafka_over_tls_with_wrong_credentials(secured: OverTls, mechanism: str) -> None:
    producer = aiokafka.AIOKafkaProducer(**secured.aiokafka(mechanism, WRONG))
    with pytest.raises(AiokafkaError):
        await producer.start()
    await producer.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_over_tls(secured: OverTls, mechanism: str) -> None:
    options = {
        "bootstrap_servers": secured.address, "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism,
        "ssl_cafile": str(secured.authority.file), "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD,
    }  # fmt: skip
    producer = kafka.KafkaProducer(**options)
    try:
        assert producer.send(f"t-{uuid4().hex[:8]}", b"value").get(WAIT_S).offset == 0
    finally:
        producer.close()


async def test_user_is_served_over_sessions_until_it_is_deleted(secured: OverTls) -> None:
    """librdkafka authenticates again before each session of SESSION_MS ends; once its user is deleted it cannot."""
    name = f"user-{uuid4().hex[:8]}"
    words = ("user", "create", name, "--password-file", "-", "--yes")
    await asyncio.to_thread(secured.command, *words, stdin=f"{PASSWORD}\n")
    client = AdminClient(secured.librdkafka("SCRAM-SHA-256", name=name))
    ends = time.monotonic() + 3 * SESSION_MS / 1_000
    while time.monotonic() < ends:
        assert await asyncio.to_thread(lambda: client.list_topics(timeout=WAIT_S).brokers)
        await asyncio.sleep(0.3)
    await asyncio.to_thread(secured.command, "user", "delete", name, "--yes")
    deadline = time.monotonic() + WAIT_S
    while code_of(lambda: client.list_topics(timeout=1)) == 0:
        assert time.monotonic() < deadline, "a revoked user is served for longer than its session"
        await asyncio.sleep(0.3)


def test_no_output_has_a_secret(secured: OverTls) -> None:
    """Logs at debug, metrics, REST, audit, help, every key of Redis, and command lines of processes."""
    for mechanism in EVERY:
        for password in (PASSWORD, WRONG):
            client = AdminClient(secured.librdkafka(mechanism, password))
            client.poll(0.1)
            right = password == PASSWORD
            with nullcontext() if right else pytest.raises(KafkaException):
                client.list_topics(timeout=WAIT_S if right else 2)
    outputs = {
        "log": "".join(broker.log_path.read_text() for broker in secured.cluster.brokers),
        "audit": secured.command("audit", "-n", "10000", "--output", "json"),
        "help": secured.command("user", "create", "--help"),
        "users": secured.command("user", "list"),
        "processes": command_lines(secured.cluster.pids),
    }
    base = f"http://127.0.0.1:{secured.cluster.brokers[0].admin_port}"
    for path in ("/metrics", "/api/v1/overview", "/api/v1/brokers", "/api/v1/redis", "/api/v1/audit", "/console/"):
        with urllib.request.urlopen(f"{base}{path}", timeout=WAIT_S) as answer:
            outputs[path] = answer.read().decode()
    refused = urllib.request.Request(f"{base}/api/v1/groups", headers={"Authorization": f"Bearer {WRONG}"})
    with pytest.raises(urllib.error.HTTPError) as answered:
        urllib.request.urlopen(refused, timeout=WAIT_S)
    outputs["refusal"] = answered.value.read().decode()
    assert "authentication_failed" in outputs["log"] and "Failure" in outputs["audit"]
    for name, text in outputs.items():
        assert text
        for secret in (PASSWORD, WRONG, ADMIN_TOKEN, "eyJ"):
            assert secret not in text, name


def command_lines(pids: list[int]) -> str:
    """Of processes, as `ps` shows them to everybody."""
    return "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)
