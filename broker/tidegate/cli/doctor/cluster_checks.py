"""Findings about all addresses of a cluster together: which broker of which cluster answers where. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tidegate.cli.doctor.finding import Finding, Severity
from tidegate.cli.doctor.observations import Advertised, Observations
from tidegate.cli.doctor.probe import Answer, Probe, ReportedBroker
from tidegate.diagnosis.formatting import listed

_LATE_MS: Final = 1_000


def judge(observed: Observations) -> Iterator[Finding]:
    """All findings, unordered."""
    for place in observed.advertised:
        yield from _node(place, observed.probes[place.address])
    yield from _shared(observed)
    yield from _clusters(observed)
    yield from _views(observed)
    yield from _leases(observed)


def _shared(observed: Observations) -> Iterator[Finding]:
    nodes = defaultdict(set)
    for place in observed.advertised:
        nodes[place.address].add(place.node_id)
    for address, ids in nodes.items():
        if len(ids) > 1:
            yield Finding(
                "shared-address",
                Severity.PROBLEM,
                address,
                f"Nodes {listed([str(one) for one in sorted(ids)])} advertise one address, {address}.",
                (
                    "A client takes them for different machines: librdkafka opens one connection for both and mixes up "
                    "their answers, Java sends requests for one to the other.",
                ),
                "Behind one load-balanced address set TIDEGATE_ADDRESS_MODE=single, and clients see one node; else "
                "give each broker its own TIDEGATE_ADVERTISED_LISTENERS (TIDEGATE_ADDRESS_MODE=external makes them "
                "from the pod's ordinal).",
            )


def _node(place: Advertised, one: Probe) -> Iterator[Finding]:
    found = sorted({answer.node_id for answer in one.answers if answer.node_id is not None})
    if found in ([], [place.node_id]):
        return
    varying = f" by turns ({len(one.answers)} connections)" if len(found) > 1 else ""
    yield Finding(
        "wrong-node",
        Severity.PROBLEM if place.advertised_here else Severity.WARNING,
        place.address,
        f"At {place.address}, advertised for node {place.node_id}, {listed([f'node {one}' for one in found])} "
        f"answered{varying}.",
        (
            "Any broker of Tidegate serves every request, so it seems to work; but load, fetch sessions and drains go "
            "astray, and clients see a broker leave that is still there.",
        ),
        "A load balancer or proxy stands there: set TIDEGATE_ADDRESS_MODE=single if it is meant to, else point "
        f"{place.address} at node {place.node_id} alone.",
    )


def _clusters(observed: Observations) -> Iterator[Finding]:
    for one in observed.every():
        others = sorted({str(answer.cluster_id) for answer in one.answers} - {str(observed.cluster_id)})
        if not others:
            continue
        mixed = len({answer.cluster_id for answer in one.answers}) > 1
        yield Finding(
            "wrong-cluster",
            Severity.PROBLEM,
            one.address,
            f"{one.address} leads to {'two clusters by turns' if mixed else 'another cluster'}: {listed(others)}, "
            f"where the bootstrap answered {observed.cluster_id}.",
            tuple(_numbered(number, answer) for number, answer in enumerate(one.answers, 1)),
            "A client that meets both mixes up topics, offsets and groups of two clusters. Point the address (DNS, "
            "Service selector, load-balancer target group) at one; two clusters in one Redis need different "
            "TIDEGATE_KEY_PREFIX, and one cluster the same TIDEGATE_REDIS_URL and prefix on all brokers.",
        )


def _numbered(number: int, answer: Answer) -> str:
    node = "" if answer.node_id is None else f", node {answer.node_id}"
    return f"connection {number} ({answer.ip}): cluster {answer.cluster_id}{node}"


def _views(observed: Observations) -> Iterator[Finding]:
    """All brokers must report the same node ids; their addresses differ by listener."""
    views: dict[frozenset[int], list[str]] = defaultdict(list)
    for one in observed.every():
        for answer in one.answers[:1]:
            if answer.cluster_id == observed.cluster_id:
                views[frozenset(reported.node_id for reported in answer.brokers)].append(one.address)
    if len(views) > 1:
        yield Finding(
            "brokers-differ",
            Severity.WARNING,
            listed(sorted(address for addresses in views.values() for address in addresses)),
            "Brokers of this cluster list different brokers.",
            tuple(
                f"{listed(addresses)}: nodes {listed([str(one) for one in sorted(nodes)])}"
                for nodes, addresses in views.items()
            ),
            "A second check confirmed it: a broker has no connection to Redis, or two Redis share a cluster id. "
            "Compare /health/ready of each broker.",
        )
    single = {reported for one in observed.bootstrap for answer in one.answers for reported in answer.brokers}
    if len(single) == 1 and len(observed.leases) > 1:
        yield _single(next(iter(single)), observed)


def _single(reported: ReportedBroker, observed: Observations) -> Finding:
    return Finding(
        "single-node",
        Severity.NOTE,
        reported.address,
        f"One node is advertised, at {reported.address}, for {len(observed.leases)} live brokers: address mode single.",
        (),
        "As it should be behind a load balancer that spreads connections; without one, all clients meet one broker.",
    )


def _leases(observed: Observations) -> Iterator[Finding]:
    reported = {place.node_id for place in observed.advertised if place.advertised_here}
    for lease in observed.leases:
        if lease.state != "serving" or lease.age_ms > _LATE_MS:
            how = (
                f"is {lease.state}" if lease.state != "serving" else f"has not renewed its lease for {lease.age_ms} ms"
            )
            yield Finding(
                "broker-leaving",
                Severity.NOTE if lease.state != "serving" else Severity.WARNING,
                f"node {lease.node_id}",
                f"Node {lease.node_id} {how}.",
                (),
                "Metadata lists it until its lease ends; the others serve its clients.",
            )
        elif reported and lease.node_id not in reported and len(reported) > 1:
            yield Finding(
                "not-advertised",
                Severity.WARNING,
                f"node {lease.node_id}",
                f"Node {lease.node_id} has a lease, and Metadata does not list it.",
                tuple(f"{name}: {address}" for name, address in lease.listeners.items()),
                "A second check confirmed it: the brokers that answered use another Redis, or it has another listener.",
            )
