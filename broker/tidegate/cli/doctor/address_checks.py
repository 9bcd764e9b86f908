"""Findings about single addresses: reachable, the right protocol, usable by clients elsewhere. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final

from tidegate.cli.doctor import certificate_checks
from tidegate.cli.doctor.finding import Finding, Severity
from tidegate.cli.doctor.observations import Advertised, Observations
from tidegate.cli.doctor.probe import Probe, Trouble, split
from tidegate.diagnosis.formatting import either, listed

_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 - to warn of them


def judge(observed: Observations) -> Iterator[Finding]:
    """All findings, unordered."""
    for one in observed.bootstrap:
        yield from _bootstrap(one, observed)
    for place in observed.advertised:
        yield from _advertised(place, observed)
    for one in observed.every():
        yield from _partly(one)
        yield from certificate_checks.of_probe(one, observed.now_s)
        yield from _sasl(one, observed)
    yield from _protocols(observed)
    yield from _loopbacks(observed)


def _bootstrap(one: Probe, observed: Observations) -> Iterator[Finding]:
    others = any(probe.answers and not probe.trouble for probe in observed.bootstrap)
    severity = Severity.WARNING if others else Severity.PROBLEM
    if one.trouble in (Trouble.UNRESOLVABLE, Trouble.UNREACHABLE):
        yield Finding(
            "bootstrap-unreachable",
            severity,
            one.address,
            f"The bootstrap address {one.address} cannot be used: {one.trouble} ({one.why}).",
            ips_of(one),
            "Other bootstrap addresses answer: take this one out, or bring it back."
            if others
            else "Is a broker running there, and may this machine reach it (firewall, security group, port mapping)?",
        )


def _advertised(place: Advertised, observed: Observations) -> Iterator[Finding]:
    one = observed.probes[place.address]
    if one.trouble in (Trouble.UNRESOLVABLE, Trouble.UNREACHABLE):
        yield _unreachable(place, one, observed)
    if place.advertised_here and split(place.address)[0] in _ANY:
        yield _wildcard(place)


def _unreachable(place: Advertised, one: Probe, observed: Observations) -> Finding:
    if not place.advertised_here:
        return Finding(
            "listener-unreachable",
            Severity.NOTE,
            place.address,
            f"Listener {place.listener} advertises {place.address} for node {place.node_id}; from here "
            f"{one.trouble} ({one.why}).",
            (),
            "Nothing to do if that listener is not meant for this network; else run `tidegate doctor` with its "
            "bootstrap address where its clients run.",
        )
    resolvable = one.trouble is not Trouble.UNRESOLVABLE
    gone = next((lease for lease in observed.leases if lease.node_id == place.node_id and lease.age_ms > 1_000), None)
    return Finding(
        "advertised-unreachable" if resolvable else "advertised-unresolvable",
        Severity.PROBLEM,
        place.address,
        f"{place.address} is advertised for node {place.node_id}; from here {one.trouble} ({one.why}).",
        (
            f"A client bootstraps well, learns this address, and then times out wherever node {place.node_id} leads a "
            "partition or coordinates a group: it seems to hang, or works for some topics and groups only.",
            *_name_hint(place.address, resolvable),
            *ips_of(one),
            *((f"Its lease was last renewed {gone.age_ms} ms ago: the broker is most likely gone.",) if gone else ()),
        ),
        f"If node {place.node_id} runs, set its TIDEGATE_ADVERTISED_LISTENERS to what clients in this network can "
        "reach; if it is down, it is not advertised after broker_lease_timeout_ms without a lease renewal.",
    )


def _name_hint(address: str, resolvable: bool) -> Iterator[str]:
    host, _ = split(address)
    if resolvable:
        return
    if host.endswith((".svc", ".cluster.local")) or ".svc." in host:
        yield f"{host} is a name inside a Kubernetes cluster: it means nothing outside of it."
    elif "." not in host:
        yield f"{host} has no dot: most likely the name of a container or pod, known inside its own network alone."


def _wildcard(place: Advertised) -> Finding:
    return Finding(
        "wildcard-advertised",
        Severity.PROBLEM,
        place.address,
        f"{place.address} is advertised for node {place.node_id}: an address to listen on, not to connect to.",
        ("A client connects to itself by it.",),
        "Set TIDEGATE_ADVERTISED_LISTENERS to an address that clients can reach.",
    )


def _loopback(host: str, ips: Sequence[str]) -> bool:
    return host == "localhost" or _is_loopback(host) or (bool(ips) and all(map(_is_loopback, ips)))


def _is_loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _partly(one: Probe) -> Iterator[Finding]:
    if one.silent and len(one.silent) < len(one.ips):
        yield Finding(
            "partly-unreachable",
            Severity.WARNING,
            one.address,
            f"{one.address} resolves to {len(one.ips)} addresses, and {listed(one.silent)} "
            f"{'does' if len(one.silent) == 1 else 'do'} not connect.",
            tuple(f"{ip}: {why}" for ip, why in one.silent.items()),
            "Clients try one address after the other and lose a connection timeout each time: correct the name, or "
            "listen on all of them (a name with an IPv6 address needs TIDEGATE_HOST=::).",
        )


def ips_of(one: Probe) -> tuple[str, ...]:
    """The resolved addresses of a name, unless they equal the name."""
    host, _ = split(one.address)
    return (f"{host} is {listed(one.ips)} here",) if one.ips and one.ips != (host,) else ()


def _sasl(one: Probe, observed: Observations) -> Iterator[Finding]:
    if one.trouble is not Trouble.SASL_REQUIRED:
        return
    where = f"{one.address} requires SASL, which this command does not use"
    if any(place.address == one.address and place.advertised_here for place in observed.advertised):
        severity, sentence = Severity.PROBLEM, f"{where}; it is advertised to clients without SASL."
        advice = "Advertise an address of the same listener: TIDEGATE_ADVERTISED_LISTENERS."
    elif any(bootstrap.address == one.address for bootstrap in observed.bootstrap):
        severity, sentence = Severity.WARNING, f"{where}: no broker behind it was checked."
        advice = "Run `tidegate doctor` with the bootstrap address of a listener without SASL."
    else:
        severity, sentence = Severity.NOTE, f"{where}: it is not checked who answers there."
        advice = "Clients need sasl.mechanism and credentials."
    yield Finding("sasl-required", severity, one.address, sentence, (one.why,), advice)


def _protocols(observed: Observations) -> Iterator[Finding]:
    for trouble, (kind, sentence, evidence, advice) in _PROTOCOLS.items():
        if found := [one for one in observed.every() if one.trouble is trouble]:
            where = listed([one.address for one in found])
            verbs = [either(len(found), f"{verb}s", verb) for verb in ("require", "accept")]
            reported = sentence.format(where, *verbs, either(len(found), "does", "do"))
            yield Finding(kind, Severity.PROBLEM, where, reported, (evidence or found[0].why,), advice)


_PROTOCOLS: Final = {
    Trouble.TLS_REQUIRED: (
        "tls-required",
        "{0} {1} TLS; the client does not use it.",
        "The connections of a client without TLS are closed at once: Java says `disconnected`, librdkafka "
        "`Disconnected while requesting ApiVersion`.",
        "Clients: security.protocol=SSL (and ssl.truststore or ssl.ca.location); here --tls and --ca-file. Or take the "
        "address of a PLAINTEXT listener.",
    ),
    Trouble.TLS_NOT_SPOKEN: (
        "tls-not-spoken",
        "{0} {3} not use TLS; the client does.",
        "The server answers without TLS; the handshake of a TLS client fails: Java says `SSL handshake failed`, "
        "librdkafka `SSL handshake failed: wrong version number`.",
        "Clients: security.protocol=PLAINTEXT, or the address of an SSL listener. Brokers: "
        "TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP names what each listener speaks.",
    ),
    Trouble.NOT_KAFKA: (
        "not-kafka",
        "{0} {2} connections, but {3} not speak the Kafka protocol.",
        "",
        "Is that another service's port (the admin HTTP, Redis, a load balancer without a backend)?",
    ),
}
"""Kind, sentence, evidence ("" for the error text of the probe), remedy."""


def _loopbacks(observed: Observations) -> Iterator[Finding]:
    reported = [
        place
        for place in observed.advertised
        if place.advertised_here and _loopback(split(place.address)[0], observed.probes[place.address].ips)
    ]
    if not reported:
        return
    afar = [one.address for one in observed.bootstrap if one.answers and not all(map(_is_loopback, one.ips))]
    where = listed([place.address for place in reported])
    whose = f"{either(len(reported), 'node', 'nodes')} {listed([str(place.node_id) for place in reported])}"
    yield Finding(
        "loopback-advertised",
        Severity.PROBLEM if afar else Severity.NOTE,
        where,
        f"Clients that bootstrap from {listed(afar)} receive {where} for {whose}: their own machine."
        if afar
        else f"{where} {either(len(reported), 'is', 'are')} advertised for {whose}: the client's own machine.",
        ("They connect to themselves: refused, or another broker altogether.",) if afar else (),
        "Set TIDEGATE_ADVERTISED_LISTENERS to an address that clients can reach."
        if afar
        else "Fine for clients on this machine; others need TIDEGATE_ADVERTISED_LISTENERS.",
    )
