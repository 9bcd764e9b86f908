"""The doctor's findings for addresses, clusters and Redis that are expensive to set up."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.cli.client.stray_entries import Partition, Truncated
from tidegate.cli.doctor import address_checks, cluster_checks, probe_admin, redis_checks
from tidegate.cli.doctor.certificates import Certificate
from tidegate.cli.doctor.finding import KINDS, Finding, Severity, by_severity
from tidegate.cli.doctor.observations import Advertised, Lease, Observations
from tidegate.cli.doctor.probe import Answer, Probe, ReportedBroker, Trouble
from tidegate.cli.doctor.probe_redis import RedisProbe, Server
from tidegate.store.keys import LogKeys

MINE = "cluster-of-ours"


def probed(
    address: str, *nodes: int, ip: str = "10.0.0.1", reported: tuple[ReportedBroker, ...] = (), **others: Any
) -> Probe:
    """An address at which these nodes answered by turns, all of our cluster."""
    answers = tuple(Answer(ip, MINE, node, reported, 0.5) for node in nodes)
    return Probe(address, tls=False, ips=(ip,), answers=answers, **others)


def observations(*advertised: Advertised, bootstrap: Probe | None = None, **others: Any) -> Observations:
    """Every advertised address is answered by its own node, unless `probes` says otherwise."""
    probes = {one.address: probed(one.address, one.node_id) for one in advertised} | others.pop("probes", {})
    return Observations(False, [bootstrap or probed("kafka:9092", 1)], advertised, probes, **others)


def kinds(given: Observations) -> dict[str, Finding]:
    return {one.kind: one for one in [*address_checks.judge(given), *cluster_checks.judge(given)]}


def test_all_is_well() -> None:
    assert kinds(observations(Advertised(1, "b1:9092"), Advertised(2, "b2:9092"))) == {}


def test_loopback_address_is_a_problem_for_remote_clients_alone() -> None:
    reported = Advertised(1, "localhost:9092")
    far = kinds(observations(reported))["loopback-advertised"]
    near = kinds(observations(reported, bootstrap=probed("localhost:9092", 1, ip="127.0.0.1")))["loopback-advertised"]

    assert (far.severity, near.severity) == (Severity.PROBLEM, Severity.NOTE)
    assert "Clients that bootstrap from kafka:9092 receive localhost:9092 for node 1" in far.sentence
    by_name = {"b1:9092": probed("b1:9092", 1, ip="127.0.1.1")}
    assert "loopback-advertised" in kinds(observations(Advertised(1, "b1:9092"), probes=by_name))


def test_address_that_only_listens() -> None:
    assert kinds(observations(Advertised(1, "0.0.0.0:9092")))["wildcard-advertised"].severity is Severity.PROBLEM


@pytest.mark.parametrize(
    ("host", "hint"), [("kafka-0.kafka.prod.svc", "Kubernetes"), ("broker1", "no dot"), ("b.example.com", "")]
)
def test_names_that_are_known_elsewhere(host: str, hint: str) -> None:
    missing = Probe(f"{host}:9092", trouble=Trouble.UNRESOLVABLE, why="not known")
    found = kinds(observations(Advertised(1, missing.address), probes={missing.address: missing}))[
        "advertised-unresolvable"
    ]

    assert hint in " ".join(found.evidence)
    assert len(found.evidence) == (2 if hint else 1)


def test_dead_broker_is_reported_separately() -> None:
    silent = Probe("b1:9092", ips=("10.0.0.1",), trouble=Trouble.UNREACHABLE, why="refused")
    lease = Lease(1, "serving", 5_000, {})
    found = kinds(observations(Advertised(1, "b1:9092"), probes={"b1:9092": silent}, leases=[lease]))

    assert "Its lease was last renewed 5000 ms ago" in " ".join(found["advertised-unreachable"].evidence)
    assert found["broker-leaving"].severity is Severity.WARNING


def test_another_listener_may_be_for_another_network() -> None:
    silent = Probe("10.9.9.9:9093", ips=("10.9.9.9",), trouble=Trouble.UNREACHABLE, why="nothing in 5 s")
    found = kinds(observations(Advertised(1, "10.9.9.9:9093", "INTERNAL"), probes={silent.address: silent}))

    assert found["listener-unreachable"].severity is Severity.NOTE


def test_name_with_an_address_that_is_silent() -> None:
    two = Probe("b1:9092", False, ("10.0.0.1", "::1"), {"::1": "refused"}, answers=probed("b1:9092", 1).answers)

    assert (
        "2 addresses, and ::1 does not connect"
        in kinds(observations(Advertised(1, "b1:9092"), probes={"b1:9092": two}))["partly-unreachable"].sentence
    )


@pytest.mark.parametrize(
    ("code", "kind"), [(10, "certificate-expired"), (62, "certificate-name"), (20, "certificate-untrusted")]
)
def test_refused_certificates(code: int, kind: str) -> None:
    shown = Certificate(("kafka.example",), 0, 86_400, "CN=us")
    refused = Probe("b1:9092", True, ("10.0.0.1",), trouble=Trouble.CERTIFICATE, verify_code=code, certificate=shown)
    found = kinds(observations(Advertised(1, "b1:9092"), probes={"b1:9092": refused}))[kind]

    assert "for kafka.example; valid from 1970-01-01 to 1970-01-02; signed by CN=us" in found.evidence


def test_one_address_for_two_nodes_and_a_balancer_behind_it() -> None:
    reported = (Advertised(1, "lb:9092"), Advertised(2, "lb:9092"))
    found = kinds(observations(*reported, probes={"lb:9092": probed("lb:9092", 1, 2, 1, 2)}))

    assert found["shared-address"].sentence == "Nodes 1 and 2 advertise one address, lb:9092."
    assert "by turns (4 connections)" in found["wrong-node"].sentence


def test_brokers_with_different_broker_lists_are_reported() -> None:
    both, one = (ReportedBroker(1, "b1:9092"), ReportedBroker(2, "b2:9092")), (ReportedBroker(2, "b2:9092"),)
    probes = {"b1:9092": probed("b1:9092", 1, reported=both), "b2:9092": probed("b2:9092", 2, reported=one)}
    found = kinds(
        observations(Advertised(1, "b1:9092"), Advertised(2, "b2:9092"), bootstrap=probes["b1:9092"], probes=probes)
    )["brokers-differ"]

    assert "b2:9092: nodes 2" in found.evidence


def test_leases_not_advertised_and_address_mode_single() -> None:
    leases = [Lease(number, "serving", 10, {"PLAINTEXT": f"b{number}:9092"}) for number in (1, 2, 3)]
    bootstrap = probed("kafka:9092", 1, reported=(ReportedBroker(1, "kafka:9092"),))
    single = kinds(observations(Advertised(1, "kafka:9092"), bootstrap=bootstrap, leases=leases))
    missing = kinds(observations(Advertised(1, "b1:9092"), Advertised(2, "b2:9092"), leases=leases))

    assert single["single-node"].severity is Severity.NOTE
    assert "not-advertised" not in single
    assert missing["not-advertised"].where == "node 3"


GOOD = {
    "redis_version": "7.2.4",
    "role": "master",
    "maxmemory": "1000",
    "used_memory": "100",
    "maxmemory_policy": "noeviction",
    "aof_enabled": "1",
    "connected_slaves": "1",
    "min_slaves_good_slaves": "1",
    "slave0": "ip=10.0.0.2,state=online",
}


def redis_kinds(rights: str = "", latency_ms: float = 0.2, **info: str) -> dict[str, Finding]:
    server = Server("redis:6379", GOOD | info, rights, (latency_ms,) * 20)
    probe = RedisProbe("redis://redis", "tidegate", user="app", servers=(server,), cluster_id=MINE)
    return {one.kind: one for one in redis_checks.judge(probe, MINE)}


@pytest.mark.parametrize(
    ("info", "kind", "severity"),
    [
        ({"redis_version": "6.2.1"}, "redis-version", Severity.PROBLEM),
        ({"dragonfly_version": "1.0"}, "redis-version", Severity.WARNING),
        ({"role": "slave", "master_host": "p", "master_port": "1"}, "redis-replica", Severity.PROBLEM),
        ({"maxmemory_policy": "volatile-lru"}, "redis-eviction", Severity.PROBLEM),
        ({"maxmemory": "0"}, "redis-memory", Severity.WARNING),
        ({"used_memory": "850"}, "redis-memory", Severity.WARNING),
        ({"used_memory": "960"}, "redis-memory", Severity.PROBLEM),
        ({"aof_enabled": "0"}, "redis-persistence", Severity.WARNING),
        ({"aof_last_write_status": "err"}, "redis-persistence", Severity.PROBLEM),
        ({"cluster_enabled": "1"}, "redis-cluster", Severity.PROBLEM),
        ({"connected_slaves": "0"}, "redis-replicas", Severity.NOTE),
        ({"slave0": "ip=10.0.0.2,state=wait_bgsave"}, "redis-replicas", Severity.WARNING),
        ({"min_slaves_good_slaves": None}, "redis-min-replicas", Severity.WARNING),
        ({"rights": "NOPERM no eval"}, "redis-rights", Severity.PROBLEM),
        ({"rights": "Could not find scripting engine 'lua'"}, "redis-no-lua", Severity.PROBLEM),
        ({"modules": "[{'name': 'crdt', 'ver': 1}]"}, "redis-active-active", Severity.PROBLEM),
        ({"latency_ms": 12.0}, "redis-latency", Severity.WARNING),
        ({"latency_ms": 120.0}, "redis-latency", Severity.PROBLEM),
    ],
)
def test_redis_problems_are_reported(info: dict[str, Any], kind: str, severity: Severity) -> None:
    assert redis_kinds() == {}
    assert {name: one.severity for name, one in redis_kinds(**info).items()} == {kind: severity}


@pytest.mark.parametrize(
    ("libraries", "state", "kinds"),
    [
        ((), "serving", ["redis-functions"]),
        ((), "draining", []),
        (None, "serving", []),
        (("tidegate_1",), "serving", []),
    ],
)
def test_redis_without_functions_of_serving_brokers(
    libraries: tuple[str, ...] | None, state: str, kinds: list[str]
) -> None:
    server = Server("redis:6379", GOOD, "", (0.2,), libraries)
    lease = Lease(1, state, 10, {})
    probe = RedisProbe("redis://redis", "tidegate", servers=(server,), cluster_id=MINE, leases=(lease,))

    assert [one.kind for one in redis_checks.judge(probe, MINE)] == kinds


def _truncated(topic: str, index: int, *, end: int = 10, lost_records: int = 3, age_ms: int = 60_000) -> Truncated:
    keys = LogKeys.of("tidegate", "default", topic, index, "0" * 32)
    at_ms = 1_700_000_000_000
    return Truncated(Partition("default", topic, index, "0" * 32, keys), end, lost_records, at_ms, age_ms)


def test_truncated_logs_are_named_by_topic_the_largest_loss_first() -> None:
    day_ms = 86_400_000
    truncated = (
        _truncated("few", 0), _truncated("many", 1, end=5, lost_records=20), _truncated("many", 0),
        _truncated("old", 0, age_ms=8 * day_ms), _truncated("recent", 0, age_ms=6 * day_ms, lost_records=1),
    )  # fmt: skip
    found = list(redis_checks.judge(RedisProbe("redis://redis", "tidegate", truncated=truncated), None))

    assert [(one.kind, one.where) for one in found] == [
        ("log-truncated", "many"), ("log-truncated", "few"), ("log-truncated", "recent"),
    ]  # fmt: skip
    assert "lost 23 records" in found[0].sentence
    assert found[0].evidence[:2] == (
        "partition 0: 3 records from offset 10, at 2023-11-14 22:13:20 UTC",
        "partition 1: 20 records from offset 5, at 2023-11-14 22:13:20 UTC",
    )


def test_truncated_logs_many_partitions_are_counted() -> None:
    truncated = tuple(_truncated("wide", index) for index in range(100))
    (found,) = redis_checks.judge(RedisProbe("redis://redis", "tidegate", truncated=truncated), None)

    assert [one for one in found.evidence if "partitions" in one] == ["and 80 more partitions"]


def test_redis_of_another_cluster() -> None:
    empty = RedisProbe("redis://redis", "tidegate")

    assert [one.kind for one in redis_checks.judge(empty, MINE)] == ["redis-other-cluster"]
    assert list(redis_checks.judge(empty, None)) == []


def test_admin_http_of_another_cluster_is_a_problem() -> None:
    probe = probe_admin.AdminProbe("a:1", cluster_id="theirs")

    (finding,) = probe_admin.judge(probe, "ours")

    assert (finding.kind, finding.severity) == ("wrong-cluster", Severity.PROBLEM)
    assert not list(probe_admin.judge(probe, "theirs")) and not list(probe_admin.judge(probe, None))


def test_broker_that_is_not_ready() -> None:
    probe = probe_admin.AdminProbe("a:1,b:1", "refused", unready=(("a:1", "draining"),))

    assert [(one.kind, one.where) for one in probe_admin.judge(probe, None)] == [
        ("admin-unreachable", "a:1,b:1"),
        ("not-ready", "a:1"),
    ]


def test_worst_first_and_each_once() -> None:
    note, bad = Finding("redis-replicas", Severity.NOTE, "r", "n"), Finding("not-kafka", Severity.PROBLEM, "b", "p")

    assert by_severity([note, bad, note]) == [bad, note]
    assert len(KINDS) == len(set(KINDS))
