"""Findings of the doctor: their kinds, severity and effect on clients."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final


class Severity(enum.IntEnum):
    """Worst first."""

    PROBLEM = 0
    """Clients fail, or data is lost."""
    WARNING = 1
    """Works from here now, but will fail from elsewhere or later."""
    NOTE = 2
    """Information only."""


KINDS: Final = {
    "bootstrap-unreachable": "a bootstrap address does not resolve or connect",
    "advertised-unresolvable": "an advertised host does not resolve here",
    "advertised-unreachable": "an advertised address does not connect",
    "partly-unreachable": "a name has several addresses, and some do not connect",
    "listener-unreachable": "an address of another listener does not connect from here",
    "not-kafka": "a server that does not speak the Kafka protocol answers",
    "tls-required": "a client without TLS at a TLS port",
    "tls-not-spoken": "a TLS client at a port without TLS",
    "sasl-required": "an address requires SASL: behind it nothing is checked",
    "certificate-name": "the certificate is for other names",
    "certificate-expired": "the certificate is out of date, or not valid yet",
    "certificate-expires": "the certificate ends within 30 days",
    "certificate-untrusted": "no authority that is trusted here signed the certificate",
    "client-certificate": "the port requires a client certificate and accepted none",
    "shared-address": "two node ids advertise one address",
    "wrong-node": "another broker answers at a broker's address",
    "wrong-cluster": "addresses of one cluster lead to different ones",
    "loopback-advertised": "a loopback address is advertised to clients elsewhere",
    "wildcard-advertised": "a wildcard address is advertised",
    "brokers-differ": "brokers of one cluster list different brokers",
    "not-advertised": "a broker has a lease, and Metadata does not list it",
    "broker-leaving": "a broker drains, or has not renewed its lease",
    "single-node": "one node id is advertised for several brokers (address mode single)",
    "admin-unreachable": "the admin HTTP does not answer, or refuses",
    "not-ready": "a broker reports that it is not ready",
    "redis-unreachable": "Redis does not answer, or refuses the login",
    "redis-other-cluster": "this Redis holds another cluster, or none",
    "redis-version": "the server is too old, or untested",
    "redis-replica": "the address leads to a replica",
    "redis-eviction": "maxmemory-policy may evict keys",
    "redis-memory": "memory is nearly full, or without a limit",
    "redis-persistence": "a restart of Redis loses data, or its files cannot be written",
    "redis-replicas": "no replica, or a replica that is not connected",
    "redis-min-replicas": "replicas, but `min-replicas-to-write` is 0: a fail-over may lose writes",
    "redis-cluster": "a Redis Cluster, and the address does not say so, or one shard's fail-over would stop them all",
    "redis-rights": "the user may not do what brokers do",
    "redis-no-lua": "the server has no Lua engine (a module of Valkey 9.1)",
    "redis-active-active": "an Active-Active database, which Tidegate cannot use",
    "redis-functions": "the scripts of groups run by EVALSHA, not as functions",
    "redis-latency": "Redis answers slowly from here",
    "group-not-stable": "members of a KIP-848 group have not reached their assignment for 5 minutes",
    "dead-letters-late": "failed records of a share group have waited for their dead-letter topic for a minute",
    "log-stray-entry": "an entry that no broker appended stops appends to a partition",
    "log-truncated": "Redis lost the last records of a topic within the last 7 days",
}
"""Every kind of finding and its meaning. The names are stable, because scripts rely on them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding: `where` is an address or a node; then a sentence, the evidence, the remedy."""

    kind: str
    severity: Severity
    where: str
    sentence: str
    evidence: tuple[str, ...] = ()
    advice: str = ""

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind

    def described(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "severity": self.severity.name.lower(), "evidence": list(self.evidence)}


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first, otherwise in order of detection; without duplicates."""
    return sorted(dict.fromkeys(findings), key=lambda one: one.severity)
