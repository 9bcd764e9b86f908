"""Probes the admin HTTP: advertised addresses of all listeners, brokers that are not ready and why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidegate.cli.client import admin_client
from tidegate.cli.doctor.finding import Finding, Severity
from tidegate.cli.doctor.observations import Lease
from tidegate.cli.failures import CommandFailed
from tidegate.cli.places import AdminHttp


@dataclass(frozen=True, slots=True)
class AdminProbe:
    """`unready` maps addresses to reasons; a broker that no answer lists is missing from the leases."""

    where: str
    failure: str = ""
    cluster_id: str | None = None
    leases: tuple[Lease, ...] = ()
    unready: tuple[tuple[str, str], ...] = ()


async def probe(admin: AdminHttp) -> AdminProbe:
    """Fetch the brokers, and the readiness at each named address."""
    addresses = [one.strip() for one in admin.addresses.split(",")]
    reasons = await asyncio.gather(*(_reasons(replace(admin, addresses=one)) for one in addresses))
    unready = tuple((address, why) for address, why in zip(addresses, reasons, strict=True) if why)
    try:
        found = await admin_client.brokers(admin)
    except CommandFailed as failure:
        return AdminProbe(admin.addresses, str(failure), unready=unready)
    leases = (
        Lease(
            one["node_id"],
            one["state"],
            0,
            {listener["name"]: f"{listener['host']}:{listener['port']}" for listener in one["listeners"]},
        )
        for one in found["brokers"]
    )
    return AdminProbe(admin.addresses, cluster_id=found.get("cluster_id"), leases=tuple(leases), unready=unready)


async def _reasons(admin: AdminHttp) -> str:
    """Why the broker is not ready; "" if it is, or if it does not answer, which is reported once for all."""
    try:
        found = await admin_client.readiness(admin)
    except CommandFailed:
        return ""
    return "; ".join(found["reasons"])


def judge(probe: AdminProbe, cluster_id: str | None) -> Iterator[Finding]:
    """Findings; `cluster_id` is the brokers' own, None when none answered. No I/O."""
    if None not in (cluster_id, probe.cluster_id) and probe.cluster_id != cluster_id:
        yield Finding(
            "wrong-cluster",
            Severity.PROBLEM,
            probe.where,
            f"The admin HTTP is of cluster {probe.cluster_id}, where the bootstrap answered {cluster_id}.",
            (),
            "What it reports is left out here. Name addresses of one cluster with --bootstrap and --admin.",
        )
    if probe.failure:
        yield Finding(
            "admin-unreachable",
            Severity.WARNING,
            probe.where,
            f"The admin HTTP does not answer: {probe.failure}.",
            (),
            "It listens on TIDEGATE_ADMIN_HOST, 127.0.0.1 unless set; --token where it asks for one. Clients do not "
            "need it; probes, metrics, the console and `group explain` do.",
        )
    for address, why in probe.unready:
        yield Finding(
            "not-ready",
            Severity.PROBLEM,
            address,
            f"The broker of {address} is not ready: {why}.",
            (),
            "Kubernetes and load balancers leave it out meanwhile. Its log says since when.",
        )
