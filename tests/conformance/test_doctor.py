"""`tidegate doctor` finds each thing that it is for, made for real: brokers, clusters, balancers, TLS, Redis."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner

from bench.cluster import BrokerProcess, Cluster, free_port
from tests.kit.forked_cluster import ForkedCluster
from tests.support.balancer import balancer
from tests.support.certificates import Authority
from tests.support.valkey import ValkeyServer
from tidegate.cli.failures import BAD_NEWS, DONE, FAILED
from tidegate.command_line import command_line

ELSEWHERE = "kafka-0.kafka.default.svc.cluster.invalid"


async def doctor(bootstrap: str, *words: str, code: int) -> dict[str, Any]:
    """Run it; its JSON, with `kinds` of what is worse than a note."""
    line = ["doctor", "--bootstrap", bootstrap, "-o", "json", *words]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, line)
    assert done.exit_code == code, (done.output, done.exception)
    reported: dict[str, Any] = json.loads(done.stdout)
    reported["kinds"] = [one["kind"] for one in reported["findings"] if one["severity"] != "note"]
    return reported


@pytest.fixture(scope="module")
def others(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Brokers of other clusters on the same Redis: one whose addresses are wrong, one that shares an address."""
    directory = tmp_path_factory.mktemp("brokers")
    shared, dead = free_port(), free_port()

    def made(prefix: str, name: str, **settings: str) -> BrokerProcess:
        values = {f"TIDEGATE_{key.upper()}": value for key, value in settings.items()}
        return BrokerProcess(cluster.redis_url, directory, name, {"TIDEGATE_KEY_PREFIX": prefix, **values})

    reported = {
        "dead": made("astray", "dead", advertised_listeners=f"PLAINTEXT://127.0.0.1:{dead}"),
        "unknown": made("astray", "unknown", advertised_listeners=f"PLAINTEXT://{ELSEWHERE}:9092"),
        "first": made("same", "first", advertised_listeners=f"PLAINTEXT://127.0.0.1:{shared}"),
        "second": made("same", "second", advertised_listeners=f"PLAINTEXT://127.0.0.1:{shared}"),
    }
    with ExitStack() as stack:
        for one in reported.values():
            stack.callback(one.kill)
            one.start()
        for one in reported.values():
            one.wait_ready()
        yield {**reported, "shared": shared, "dead_port": dead}


def authority() -> tuple[trustme.CA, ssl.SSLContext]:
    ca = trustme.CA()
    return ca, _server(ca.issue_cert("127.0.0.1"))


def _server(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


async def test_nothing_is_wrong(cluster: Cluster) -> None:
    reported = await doctor(cluster.bootstrap, "--no-redis", code=DONE)

    assert reported["kinds"] == []
    assert [one["answering_nodes"] for one in reported["addresses"]] == [
        [one["node_id"]] * 4 for one in reported["addresses"]
    ]
    assert len(reported["addresses"]) == 3
    assert len(reported["cluster_id"]) == 22


async def test_table_for_people(cluster: Cluster) -> None:
    line = ["doctor", "--bootstrap", cluster.brokers[0].address, "--redis-url", cluster.redis_url]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, line)

    assert done.exit_code == BAD_NEWS  # a test's Redis writes nothing to disk
    assert f"Bootstrap address {cluster.brokers[0].address}: answers without TLS." in done.output
    assert "with 3 brokers; it connects to each:" in done.output
    assert "WARNING  appendonly is off" in done.output


async def test_advertised_addresses_that_lead_nowhere(others: dict[str, Any]) -> None:
    reported = await doctor(others["dead"].address, "--no-redis", code=FAILED)

    found = {one["kind"]: one for one in reported["findings"]}
    assert set(reported["kinds"]) == {"advertised-unreachable", "advertised-unresolvable"}
    assert found["advertised-unreachable"]["where"] == f"127.0.0.1:{others['dead_port']}"
    assert "Connection refused" in found["advertised-unreachable"]["sentence"]
    assert "a Kubernetes cluster" in "".join(found["advertised-unresolvable"]["evidence"])
    assert "TIDEGATE_ADVERTISED_LISTENERS" in found["advertised-unresolvable"]["advice"]


async def test_two_ids_on_one_address(others: dict[str, Any]) -> None:
    async with balancer([others["first"].port, others["second"].port], port=others["shared"]) as port:
        reported = await doctor(f"127.0.0.1:{port}", "--no-redis", code=FAILED)

    (found,) = [one for one in reported["findings"] if one["kind"] == "shared-address"]
    first, second = sorted(one["node_id"] for one in reported["addresses"])
    assert found["sentence"] == f"Nodes {first} and {second} advertise one address, 127.0.0.1:{port}."
    assert first < second
    assert "TIDEGATE_ADDRESS_MODE=single" in found["advice"]


async def test_two_clusters_behind_one_address(cluster: Cluster, others: dict[str, Any]) -> None:
    async with balancer([cluster.brokers[0].port, others["first"].port]) as port:
        reported = await doctor(f"127.0.0.1:{port}", "--no-redis", code=FAILED)

    found = [one for one in reported["findings"] if one["kind"] == "wrong-cluster"]
    assert f"127.0.0.1:{port} leads to two clusters by turns" in " ".join(one["sentence"] for one in found)
    assert any("connection 2 (127.0.0.1): cluster" in line for one in found for line in one["evidence"])


async def test_another_broker_at_an_address(cluster: Cluster, others: dict[str, Any]) -> None:
    async with balancer([others["dead"].port], port=others["dead_port"]):
        fine = await doctor(others["dead"].address, "--no-redis", code=FAILED)
    async with balancer([others["unknown"].port], port=others["dead_port"]):
        reported = await doctor(others["dead"].address, "--no-redis", code=FAILED)

    assert "wrong-node" not in fine["kinds"]
    assert "wrong-node" in reported["kinds"]


async def test_plain_client_at_a_tls_port_and_the_other_way_round(cluster: Cluster, tmp_path: Path) -> None:
    ca, context = authority()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trusting = ("--tls", "--ca-file", str(tmp_path / "ca.pem"))
    async with balancer([cluster.brokers[0].port], tls=context) as port:
        plain = await doctor(f"127.0.0.1:{port}", "--no-redis", code=FAILED)
        through_tls = await doctor(f"127.0.0.1:{port}", "--no-redis", *trusting, code=FAILED)
    tls_to_plain = await doctor(cluster.brokers[0].address, "--no-redis", *trusting, code=FAILED)

    assert plain["kinds"] == ["tls-required", "tls-not-spoken"]  # it is sent on to addresses without TLS
    assert plain["cluster_id"] == tls_to_plain["cluster_id"]  # seen all the same
    assert through_tls["bootstrap"][0]["trouble"] is None
    assert tls_to_plain["kinds"] == ["tls-not-spoken"]


async def test_certificates(cluster: Cluster, tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    now = datetime.now(UTC)
    shown = {
        "certificate-name": (ca.issue_cert("kafka.example"), "kafka.example"),
        "certificate-expired": (ca.issue_cert("127.0.0.1", not_after=now - timedelta(days=1)), "valid from"),
        "certificate-untrusted": (trustme.CA().issue_cert("127.0.0.1"), "signed by"),
        "certificate-expires": (ca.issue_cert("127.0.0.1", not_after=now + timedelta(days=9, hours=1)), "127.0.0.1"),
    }

    for kind, (certificate, evidence) in shown.items():
        async with balancer([cluster.brokers[0].port], tls=_server(certificate)) as port:
            reported = await doctor(
                f"127.0.0.1:{port}", "--no-redis", "--ca-file", str(tmp_path / "ca.pem"), "--tries", "1", code=FAILED
            )
        (found,) = [one for one in reported["findings"] if one["kind"].startswith("certificate")]
        assert found["kind"] == kind
        assert evidence in " ".join(found["evidence"])


async def test_port_that_asks_for_a_client_certificate(cluster: Cluster, tmp_path: Path) -> None:
    ca, context = authority()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ca.issue_cert("doctor").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    trusting = ("--no-redis", "--ca-file", str(tmp_path / "ca.pem"))
    async with balancer([cluster.brokers[0].port], tls=context) as port:
        without = await doctor(f"127.0.0.1:{port}", *trusting, code=FAILED)
        shown = await doctor(f"127.0.0.1:{port}", *trusting, "--cert-file", str(tmp_path / "own.pem"), code=FAILED)

    assert without["kinds"] == ["client-certificate"]
    assert shown["bootstrap"][0]["trouble"] is None


async def test_redis_that_evicts(cluster: Cluster) -> None:
    server = ValkeyServer(["--maxmemory-policy", "allkeys-lru", "--maxmemory", "50mb", "--appendonly", "yes"])
    try:
        reported = await doctor(cluster.bootstrap, "--redis-url", server.url, code=FAILED)
    finally:
        server.stop()

    found = {one["kind"]: one for one in reported["findings"]}
    # Measured here: on a machine with too much to do it is true, and tests/unit/app/test_doctor_judging.py judges it.
    assert set(reported["kinds"]) - {"redis-latency"} == {"redis-eviction", "redis-other-cluster"}
    assert "CONFIG SET maxmemory-policy noeviction" in found["redis-eviction"]["advice"]
    assert "redis-replicas" in found


async def test_redis_that_is_away_and_a_user_without_rights(cluster: Cluster) -> None:
    server = ValkeyServer(["--user", "doctor", "on", ">secret", "+@read", "+info", "+ping", "+acl|whoami", "~*"])
    try:
        url = server.url.replace("redis://", "redis://doctor:secret@")
        poor = await doctor(cluster.bootstrap, "--redis-url", url, code=FAILED)
    finally:
        server.stop()
    away = await doctor(cluster.bootstrap, "--redis-url", server.url, code=FAILED)

    assert "redis-rights" in poor["kinds"]
    assert "secret" not in json.dumps(poor)
    assert away["kinds"] == ["redis-unreachable"]


async def test_addresses_of_other_listeners_are_known_from_redis(others: dict[str, Any], cluster: Cluster) -> None:
    words = ("--redis-url", cluster.redis_url, "--key-prefix", "astray")
    reported = await doctor(others["dead"].address, *words, code=FAILED)

    assert "redis-other-cluster" not in reported["kinds"]
    assert {one["node_id"] for one in reported["addresses"]} == {1, 2}


async def test_doctor_unreachable_address(cluster: Cluster) -> None:
    reported = await doctor(f"127.0.0.1:{free_port()},no-such-host.invalid:9092", "--no-redis", code=FAILED)

    assert reported["kinds"] == ["bootstrap-unreachable", "bootstrap-unreachable"]
    assert reported["cluster_id"] is None


async def test_doctor_server_is_not_kafka(cluster: Cluster) -> None:
    reported = await doctor(f"127.0.0.1:{cluster.brokers[0].admin_port}", "--no-redis", code=FAILED)

    assert reported["kinds"] == ["not-kafka"]


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """A broker with a listener without SASL and two with it, and the address of each."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    addresses = {name: f"127.0.0.1:{free_port()}" for name in ("INTERNAL", "SECURE", "SPLAIN")}
    written = ",".join(f"{name}://{address}" for name, address in addresses.items())
    settings = {
        "TIDEGATE_LISTENERS": written,
        "TIDEGATE_ADVERTISED_LISTENERS": written,
        "TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP": "INTERNAL:PLAINTEXT,SECURE:SASL_SSL,SPLAIN:SASL_PLAINTEXT",
        "TIDEGATE_SSL_CERTIFICATE_FILE": str(authority.issue("broker", "127.0.0.1")),
        "TIDEGATE_SASL_ENABLED_MECHANISMS": "PLAIN,SCRAM-SHA-256",
    }
    with ForkedCluster(brokers=0, settings=settings) as cluster:
        cluster.add_broker()
        yield cluster, addresses


async def test_doctor_listeners_with_sasl_are_noted(listeners: tuple[Cluster, dict[str, str]]) -> None:
    cluster, addresses = listeners
    admin = ("--admin", f"127.0.0.1:{cluster.brokers[0].admin_port}")
    reported = await doctor(addresses["INTERNAL"], "--no-redis", *admin, code=DONE)

    notes = [one for one in reported["findings"] if one["kind"] == "sasl-required"]
    assert {one["where"] for one in notes} == {addresses["SECURE"], addresses["SPLAIN"]}
    assert all("PLAIN and SCRAM-SHA-256" in "".join(one["evidence"]) for one in notes)
    answers = {one["listener"]: (one["answers"], one["tls"]) for one in reported["addresses"]}
    assert answers["SECURE"] == ("it requires SASL", True)
    assert answers["SPLAIN"] == ("it requires SASL", False)


async def test_doctor_bootstrap_with_sasl_is_not_checked(listeners: tuple[Cluster, dict[str, str]]) -> None:
    _, addresses = listeners
    reported = await doctor(addresses["SPLAIN"], "--no-redis", code=BAD_NEWS)
    without_tls = await doctor(addresses["SECURE"], "--no-redis", code=FAILED)

    assert reported["kinds"] == ["sasl-required"]
    assert without_tls["kinds"] == ["tls-required"]


async def test_doctor_advertised_address_with_sasl(listeners: tuple[Cluster, dict[str, str]]) -> None:
    """Clients without SASL are sent to a port that requires it."""
    _, addresses = listeners
    settings = {"TIDEGATE_ADVERTISED_LISTENERS": f"PLAINTEXT://{addresses['SPLAIN']}"}
    with ForkedCluster(brokers=1, settings=settings) as cluster:
        reported = await doctor(cluster.brokers[0].address, "--no-redis", code=FAILED)

    assert reported["kinds"] == ["sasl-required"]
