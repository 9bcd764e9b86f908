"""One run of the doctor: probe all addresses and Redis, and derive the findings."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.cli.doctor import address_checks, cluster_checks, probe, probe_admin, probe_redis, redis_checks
from tidegate.cli.doctor.finding import Finding, Severity, by_severity
from tidegate.cli.doctor.observations import Advertised, Observations
from tidegate.cli.doctor.probe import Probe
from tidegate.cli.places import AdminHttp, Brokers, RedisServer
from tidegate.cli.progress import Progress
from tidegate.diagnosis.formatting import counted, listed

_PASSING: Final = ("brokers-differ", "not-advertised")
_PAUSE_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class Report:
    """Observations and findings, worst first."""

    observed: Observations
    redis: probe_redis.RedisProbe | None
    findings: Sequence[Finding]

    @property
    def worst(self) -> Severity | None:
        """The worst severity; None when there are only notes."""
        return min((one.severity for one in self.findings if one.severity is not Severity.NOTE), default=None)


@dataclass(frozen=True, slots=True)
class Asked:
    """What to probe; `tries` connections to each broker address."""

    brokers: Brokers
    admin: AdminHttp | None
    redis: RedisServer | None
    tries: int


async def run_checks(asked: Asked, progress: Progress) -> Report:
    """Probe everything; `progress` is called with the number of finished and of all addresses. Raises CommandFailed.

    Findings that a joining or leaving broker would explain are probed again after a delay, and reported if they
    persist.
    """
    report = await _once(asked, progress)
    if any(one.kind in _PASSING for one in report.findings):
        await asyncio.sleep(_PAUSE_S)
        report = await _once(asked, progress)
    return report


async def _once(asked: Asked, progress: Progress) -> Report:
    brokers, redis, tries = asked.brokers, asked.redis, asked.tries
    tls = brokers.tls is not None
    redis_probe = asyncio.create_task(asyncio.to_thread(probe_redis.probe, redis)) if redis is not None else None
    addresses = list(dict.fromkeys(one.strip() for one in brokers.bootstrap.split(",")))
    bootstrap = await _probes(brokers, [(one, tls) for one in addresses], tries, progress)
    redis_observed = await redis_probe if redis_probe is not None else None
    admin_observed = await probe_admin.probe(asked.admin) if asked.admin else None
    reported = _reported(bootstrap)
    cluster_id = next((answer.cluster_id for one in bootstrap for answer in one.answers), None)
    leases = next(
        (
            one.leases
            for one in (redis_observed, admin_observed)
            if one is not None and one.leases and cluster_id in (None, one.cluster_id)
        ),
        (),
    )
    here = {place.address for place in reported}
    elsewhere = [
        Advertised(lease.node_id, address, name)
        for lease in leases
        for name, address in lease.listeners.items()
        if address not in here
    ]
    spoken = next((one.tls for one in bootstrap if one.answers), tls)
    wanted = [(place.address, spoken) for place in reported] + [(place.address, None) for place in elsewhere]
    known = {one.address: one for one in bootstrap}
    fresh = [one for one in dict.fromkeys(wanted) if one[0] not in known]
    probes = {one.address: one for one in await _probes(brokers, fresh, tries, progress)} | known
    observed = Observations(tls, bootstrap, [*reported, *elsewhere], probes, leases, time.time())
    findings = [*address_checks.judge(observed), *cluster_checks.judge(observed)]
    if admin_observed is not None:
        findings += probe_admin.judge(admin_observed, cluster_id)
    if redis_observed is not None:
        findings += redis_checks.judge(redis_observed, observed.cluster_id)
    return Report(observed, redis_observed, by_severity(findings))


async def _probes(
    brokers: Brokers, wanted: Sequence[tuple[str, bool | None]], tries: int, progress: Progress
) -> list[Probe]:
    done = 0

    async def one(address: str, expected: bool | None) -> Probe:
        nonlocal done
        found = await probe.probe(address, brokers.tls, expected, tries)
        done += 1
        progress(done, len(wanted))
        return found

    return await asyncio.gather(*(one(*each) for each in wanted))


def _reported(bootstrap: Iterable[Probe]) -> list[Advertised]:
    """The brokers that clients of the bootstrap addresses are sent to; those of a second cluster too."""
    every = (reported for one in bootstrap for answer in one.answers for reported in answer.brokers)
    return [Advertised(*one) for one in sorted({(reported.node_id, reported.address) for reported in every})]


# -- output for people and programs


def rebalances(report: Report) -> list[str]:
    """The steps of a client's connection, in order."""
    observed, lines = report.observed, []
    answering = [one for one in observed.bootstrap if one.answers]
    for one in observed.bootstrap:
        ways = f" ({listed(one.ips)})" if one.ips and listed(one.ips) not in one.address else ""
        outcome = f"{one.trouble}: {one.why}" if one.trouble else f"answers {'over TLS' if one.tls else 'without TLS'}"
        lines.append(f"Bootstrap address {one.address}{ways}: {outcome}.")
    reported = [place for place in observed.advertised if place.advertised_here]
    if not answering:
        return [*lines, "Nothing else can be checked."]
    lines.append(
        f"Metadata lists cluster {observed.cluster_id} with {counted(len(reported), 'broker')}; it connects to each:"
    )
    return lines


def address_rows(report: Report) -> list[dict[str, Any]]:
    """A row per advertised address: node, listener, result."""
    rows = []
    for place in report.observed.advertised:
        one = report.observed.probes[place.address]
        nodes = [answer.node_id for answer in one.answers]
        rows.append(
            {
                "node_id": place.node_id,
                "listener": place.listener or None,
                "address": place.address,
                "ips": list(one.ips),
                "tls": one.tls,
                "answers": _outcome(place, one),
                "answering_nodes": nodes,
                "cluster_ids": sorted({str(answer.cluster_id) for answer in one.answers}),
                "median_ms": round(statistics.median(a.took_ms for a in one.answers), 2) if one.answers else None,
            }
        )
    return rows


def _outcome(place: Advertised, one: Probe) -> str:
    if one.trouble:
        return str(one.trouble)
    found = sorted({answer.node_id for answer in one.answers if answer.node_id is not None})
    if not found:
        return "yes, does not say who it is"
    return "yes" if found == [place.node_id] else f"node {listed([str(node_id) for node_id in found])}"


def as_json(report: Report) -> dict[str, Any]:
    """Everything as JSON, with stable names."""
    redis = report.redis
    return {
        "cluster_id": report.observed.cluster_id,
        "worst": report.worst.name.lower() if report.worst is not None else None,
        "bootstrap": [
            {"address": one.address, "ips": list(one.ips), "tls": one.tls, "trouble": one.trouble, "why": one.why}
            for one in report.observed.bootstrap
        ],
        "addresses": address_rows(report),
        "redis": None
        if redis is None
        else {
            "url": redis.where,
            "cluster_id": redis.cluster_id,
            "user": redis.user or None,
            "servers": [probe_redis.facts(one) for one in redis.servers],
        },
        "findings": [one.described() for one in report.findings],
    }
