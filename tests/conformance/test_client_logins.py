"""Seven client libraries over TLS by each mechanism and by certificate: right, wrong and expired credentials.

Each program of tests/clients logs in and produces one record, or names the error. What was refused is in the audit;
no secret is in it or in the brokers' logs.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from jwt.algorithms import RSAAlgorithm

from bench.clients import Command, go_program, java_program, node_program, python_program
from bench.cluster import Cluster
from bench.jars import PeerUnavailable
from tests.conformance.test_security import Secured
from tests.kit.forked_cluster import ForkedCluster
from tests.support.certificates import Authority

PASSWORD, WRONG = "alice-login-s3cret", "wr0ng-login-s3cret"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
CERTIFICATE = "CERTIFICATE"
RUN_S = 120
PROGRAMS: dict[str, Callable[[], Command]] = {
    "librdkafka": python_program("confluent_login.py"),
    "aiokafka": python_program("aiokafka_login.py"),
    "kafka-python": python_program("kafka_python_login.py"),
    "java": java_program("Login"),
    "franz-go": go_program("franz_login"),
    "sarama": go_program("sarama_login"),
    "kafkajs": node_program("login.js"),
}
CLIENTS = [
    pytest.param(name, marks=() if name in ("librdkafka", "aiokafka", "kafka-python") else pytest.mark.peer)
    for name in PROGRAMS
]

pytestmark = pytest.mark.one_server


class Login(Secured):
    """A broker with one TLS listener, by SASL or by certificate, and the programs that log in to it."""

    def __init__(self, cluster: Cluster, key: rsa.RSAPrivateKey, authority: Authority) -> None:
        super().__init__(cluster, key)
        self.authority = authority

    def run(self, client: str, mechanism: str, **secrets: str) -> dict[str, Any]:
        """What a client's program reports: `offset`, or `error`."""
        try:
            command = PROGRAMS[client]()
        except PeerUnavailable as error:
            pytest.skip(f"{client}: {error}")
        topic = f"t-{uuid4().hex[:8]}"
        done = subprocess.run(
            [*command, self.address, topic, str(self.authority.file), mechanism, "alice"],
            env=os.environ | {f"LOGIN_{name.upper()}": value for name, value in secrets.items()},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, done.stderr[-2_000:]
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def refusals(self) -> list[dict[str, Any]]:
        """The refused authentications in the audit."""
        events = json.loads(self.command("audit", "-n", "10000", "--failed", "--output", "json"))
        return [event for event in events if event["class_uid"] == 3002]

    def await_refusal(self, before: int, mechanism: str) -> dict[str, Any]:
        """The next refusal of a mechanism in the audit; equal ones within 200 ms are one, so counts are summed."""
        deadline = time.monotonic() + 30
        while True:
            found = [event for event in self.refusals() if event["auth_protocol"] == mechanism]
            if sum(event.get("count", 1) for event in found) > before:
                return found[-1]
            assert time.monotonic() < deadline, "the refusal is not in the audit"
            time.sleep(0.2)

    def refused_count(self, mechanism: str) -> int:
        return sum(event.get("count", 1) for event in self.refusals() if event["auth_protocol"] == mechanism)

    def leaks_nothing(self) -> None:
        logs = "".join(broker.log_path.read_text() for broker in self.cluster.brokers)
        audit = self.command("audit", "-n", "10000", "--output", "json")
        assert not [secret for secret in (PASSWORD, WRONG, "eyJ") if secret in logs + audit]


def started(directory: Path, **settings: str) -> tuple[Cluster, rsa.RSAPrivateKey, Authority]:
    authority, key = Authority(directory), rsa.generate_private_key(public_exponent=65537, key_size=2048)
    keys = directory / "keys.json"
    keys.write_text(json.dumps({"keys": [RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "k"}]}))
    given = {
        "TIDEGATE_SSL_CERTIFICATE_FILE": str(authority.issue("broker", "127.0.0.1", "localhost")),
        "TIDEGATE_AUDIT_STREAM_BYTES": str(16 << 20),
        "TIDEGATE_LOG_LEVEL": "debug",
        "TIDEGATE_SASL_OAUTHBEARER_JWKS_ENDPOINT_URL": keys.as_uri(),
    } | {f"TIDEGATE_{name.upper()}": value for name, value in settings.items()}
    return ForkedCluster(brokers=1, settings=given), key, authority


@pytest.fixture(scope="module")
def sasl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    cluster, key, authority = started(
        tmp_path_factory.mktemp("sasl"),
        listener_security_protocol_map="PLAINTEXT:SASL_SSL",
        sasl_enabled_mechanisms=",".join(MECHANISMS),
    )
    with cluster:
        login = Login(cluster, key, authority)
        login.command("user", "create", "alice", "--password-file", "-", "--yes", stdin=f"{PASSWORD}\n")
        yield login


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    directory = tmp_path_factory.mktemp("certified")
    cluster, key, authority = started(
        directory,
        listener_security_protocol_map="PLAINTEXT:SSL",
        ssl_client_ca_file=str(directory / "ca.pem"),
        ssl_principal_mapping_rules="RULE:^.*CN=([a-z]+).*$/$1/",
    )
    with cluster:
        yield Login(cluster, key, authority)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_client_logs_in_over_tls(sasl: Login, client: str, mechanism: str) -> None:
    secret = sasl.token("alice") if mechanism == "OAUTHBEARER" else PASSWORD
    assert sasl.run(client, mechanism, secret=secret) == {"offset": 0}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("client", CLIENTS)
def test_client_with_wrong_or_expired_credentials_is_refused(sasl: Login, client: str, mechanism: str) -> None:
    before = sasl.refused_count(mechanism)
    expired = sasl.token("alice", exp=time.time() - 600)
    reported = sasl.run(client, mechanism, secret=expired if mechanism == "OAUTHBEARER" else WRONG)

    assert "offset" not in reported and reported["error"]
    assert sasl.await_refusal(before, mechanism)["status_detail"]
    sasl.leaks_nothing()


def files_of(certificate: Path) -> dict[str, str]:
    """A certificate and its key in two files, the key as Java reads it (PKCS #8)."""
    own, key = certificate.with_suffix(".crt"), certificate.with_suffix(".key")
    text = certificate.read_bytes()
    start = text.index(b"-----BEGIN CERTIFICATE")
    own.write_bytes(text[start:])
    private = load_pem_private_key(text[:start], None)
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {"certificate": str(own), "key": str(key)}


@pytest.mark.parametrize("client", CLIENTS)
def test_client_with_a_certificate_is_its_subject(certified: Login, client: str) -> None:
    files = files_of(certified.authority.issue("alice"))
    assert certified.run(client, CERTIFICATE, **files) == {"offset": 0}

    deadline, events = time.monotonic() + 30, []
    while not events and time.monotonic() < deadline:  # it is written up to 200 ms later
        events = json.loads(certified.command("audit", "-n", "1", "--user", "User:alice", "--output", "json"))
    assert [(event["status"], event["auth_protocol"]) for event in events] == [("Success", "TLS")]


@pytest.mark.parametrize("client", CLIENTS)
def test_client_with_an_expired_certificate_is_refused(certified: Login, client: str) -> None:
    before = certified.refused_count("TLS")
    yesterday = datetime.now(UTC) - timedelta(days=1)
    files = files_of(certified.authority.issue("expired", not_after=yesterday))
    reported = certified.run(client, CERTIFICATE, **files)

    assert "offset" not in reported and reported["error"]
    assert "expired" in certified.await_refusal(before, "TLS")["status_detail"]
