"""Probes one address: name resolution, connection to each IP address, TLS or plaintext, the answering brokers."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidegate.cli.client.kafka_wire import Connection, request
from tidegate.cli.doctor.certificates import Certificate, shown_at
from tidegate.cli.failures import CommandFailed, describe_os_error
from tidegate.cli.places import Tls
from tidegate.diagnosis.formatting import listed
from tidegate.protocol.api_keys import ApiKey

CLIENT_ID: Final = "tidegate-doctor"
_TIMEOUT_S: Final = 5.0
_ADDRESSES_MAX: Final = 8
"""Maximum resolved addresses of one name; the others are not probed."""
_BROKER: Final = 4
"""Kafka's config resource type of a broker."""
_MECHANISM: Final = "SCRAM-SHA-512"
"""The answer to any mechanism lists those of the listener."""
_CLIENT_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE")
"""TLS alerts of a server that requires a client certificate, or a different one."""


class Trouble(enum.StrEnum):
    """Why a correctly configured client gets no reply."""

    UNRESOLVABLE = "the name does not resolve"
    UNREACHABLE = "nothing connects"
    TLS_REQUIRED = "it requires TLS"
    TLS_NOT_SPOKEN = "it does not use TLS"
    CERTIFICATE = "its certificate is refused"
    CLIENT_CERTIFICATE = "it requires a client certificate, or refuses this one"
    SASL_REQUIRED = "it requires SASL"
    NOT_KAFKA = "the server does not speak the Kafka protocol"


class SaslRequired(CommandFailed):
    """The server answers ApiVersions and SaslHandshake, and closes the connection at any other request."""


@dataclass(frozen=True, slots=True)
class ReportedBroker:
    """A broker as listed in Metadata."""

    node_id: int
    address: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The broker behind one connection. `node_id` is None if unknown; `took_ms` is the duration of one request."""

    ip: str
    cluster_id: str | None
    node_id: int | None
    brokers: tuple[ReportedBroker, ...]
    took_ms: float


@dataclass(frozen=True, slots=True)
class Probe:
    """All results of one address. `trouble` is a client's failure; `answers` may exist in spite of it."""

    address: str
    tls: bool | None = None
    """Whether the port uses TLS; None when nothing answers."""
    ips: tuple[str, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    """Addresses that do not connect -> reason."""
    trouble: Trouble | None = None
    why: str = ""
    verify_code: int = 0
    """OpenSSL's verification error of the certificate, X509_V_*; 0 for none."""
    certificate: Certificate | None = None
    answers: tuple[Answer, ...] = ()


def split(address: str) -> tuple[str, int]:
    """Host and port. Raises CommandFailed."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= 65_535:
        raise CommandFailed(f"not an address: {address!r} (host:port)")
    return host.strip("[]"), int(port)


async def probe(address: str, tls: Tls | None, expected: bool | None, tries: int) -> Probe:
    """Probe an address over TLS, plaintext, or (None) either; `tries` connections, over its IP addresses in turn."""
    host, port = split(address)
    try:
        ips = await _resolve(host, port)
    except OSError as error:
        return Probe(address, trouble=Trouble.UNRESOLVABLE, why=error.strerror or str(error))
    silent = {
        ip: why
        for ip, why in zip(ips, await asyncio.gather(*(_connect_error(ip, port) for ip in ips)), strict=True)
        if why
    }
    observed = Probe(address, ips=ips, silent=silent)
    open_ips = [ip for ip in ips if ip not in silent]
    if not open_ips:
        return replace(
            observed, trouble=Trouble.UNREACHABLE, why="; ".join(f"{ip}: {why}" for ip, why in silent.items())
        )
    return await _speak(_Port(host, port, tls), observed, open_ips, expected, max(tries, len(open_ips)))


async def _resolve(host: str, port: int) -> tuple[str, ...]:
    async with asyncio.timeout(_TIMEOUT_S):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(one[4][0]) for one in found))[:_ADDRESSES_MAX]


async def _connect_error(ip: str, port: int) -> str:
    """The reason why the address does not connect; "" if it does."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(ip, port)
    except TimeoutError:
        return f"no reply within {_TIMEOUT_S:g} s"
    except OSError as error:
        return describe_os_error(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


@dataclass(frozen=True, slots=True)
class _Port:
    host: str
    number: int
    tls: Tls | None

    def connection(self, ip: str, tls: bool, verify: bool = True) -> Connection:
        access = self.tls or Tls(verify=False)  # a plaintext user has given no CA file
        context = replace(access, verify=access.verify and verify).context() if tls else None
        return Connection(f"[{ip}]:{self.number}", CLIENT_ID, context, self.host)


async def _speak(port: _Port, observed: Probe, ips: Sequence[str], expected: bool | None, tries: int) -> Probe:
    refused: dict[bool, CommandFailed] = {}
    for tls in (False, True) if expected is None else (expected, not expected):
        try:
            answers = await _answers(port, ips, tls, expected in (None, tls), tries)
            reported = replace(observed, tls=tls, answers=answers)
        except SaslRequired as required:
            reported = replace(observed, tls=tls, trouble=Trouble.SASL_REQUIRED, why=str(required))
        except CommandFailed as failure:
            refused[tls] = failure
            if tls and (trouble := _of_certificates(failure)):
                return await _behind_a_certificate(port, observed, ips, trouble, failure, tries)
            continue
        if tls:
            certificate = await asyncio.to_thread(shown_at, ips[0], port.number, port.host)
            reported = replace(reported, certificate=certificate)
        if expected is None or tls == expected:
            return reported
        trouble = Trouble.TLS_REQUIRED if tls else Trouble.TLS_NOT_SPOKEN
        return replace(reported, trouble=trouble, why=str(refused[expected]))
    why = str(refused[bool(expected)])
    certificate = await asyncio.to_thread(shown_at, ips[0], port.number, port.host)
    if certificate is None:
        return replace(observed, trouble=Trouble.NOT_KAFKA, why=why)
    # It closes after the handshake: so most servers with TLS 1.3, asyncio's too, reject a client certificate.
    trouble = Trouble.TLS_REQUIRED if expected is False else Trouble.CLIENT_CERTIFICATE
    return replace(observed, tls=True, trouble=trouble, why=why, certificate=certificate)


def _of_certificates(failure: CommandFailed) -> Trouble | None:
    cause = failure.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Trouble.CERTIFICATE
    reason = (cause.reason or "") if isinstance(cause, ssl.SSLError) else ""
    return Trouble.CLIENT_CERTIFICATE if any(part in reason for part in _CLIENT_CERTIFICATE) else None


async def _behind_a_certificate(
    port: _Port, observed: Probe, ips: Sequence[str], trouble: Trouble, failure: CommandFailed, tries: int
) -> Probe:
    """Probe again without verification, so that the other brokers can be examined too."""
    certificate = await asyncio.to_thread(shown_at, ips[0], port.number, port.host)
    code = getattr(failure.__cause__, "verify_code", 0)
    answers: tuple[Answer, ...] = ()
    with contextlib.suppress(CommandFailed):
        answers = await _answers(port, ips, True, False, tries)
    return replace(
        observed,
        tls=True,
        trouble=trouble,
        why=str(failure),
        verify_code=code,
        certificate=certificate,
        answers=answers,
    )


async def _answers(port: _Port, ips: Sequence[str], tls: bool, verify: bool, tries: int) -> tuple[Answer, ...]:
    found = []
    for ip in itertools.islice(itertools.cycle(ips), tries):
        connection = port.connection(ip, tls, verify)
        await connection.open()
        try:
            found.append(await _who(connection, ip))
        except CommandFailed as failure:
            if isinstance(failure.__cause__, asyncio.IncompleteReadError | ConnectionError):
                await _check_sasl(port.connection(ip, tls, verify))
            raise
        finally:
            await connection.close()
    return tuple(found)


async def _check_sasl(connection: Connection) -> None:
    """Raises SaslRequired if the server takes part in SASL (KIP-43), which it does before authentication alone."""
    try:
        await connection.open()
        reply = await connection.ask(ApiKey.SASL_HANDSHAKE, mechanism=_MECHANISM)
    except CommandFailed:
        return
    finally:
        await connection.close()
    if reply.mechanisms:  # none with ILLEGAL_SASL_STATE, which a listener without SASL answers
        raise SaslRequired(f"it offers {listed(sorted(reply.mechanisms))}")


async def _who(connection: Connection, ip: str) -> Answer:
    started = perf_counter()
    reported = await connection.ask(
        ApiKey.METADATA,
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    took_ms = (perf_counter() - started) * 1000
    brokers = tuple(ReportedBroker(int(one.node_id), f"{one.host}:{one.port}") for one in reported.brokers)
    return Answer(ip, reported.cluster_id, await _own_node_id(connection, brokers), brokers, took_ms)


async def _own_node_id(connection: Connection, brokers: Sequence[ReportedBroker]) -> int | None:
    """The connected broker's node id: a broker describes only its own configs (Kafka's ConfigHelper)."""
    part: Any = request(ApiKey.DESCRIBE_CONFIGS).DescribeConfigsResource
    asked = tuple(
        part(resource_type=_BROKER, resource_name=str(one.node_id), configuration_keys=("node.id",)) for one in brokers
    )
    try:
        answer = await connection.ask(
            ApiKey.DESCRIBE_CONFIGS, resources=asked, include_synonyms=False, include_documentation=False
        )
    except CommandFailed:
        return None
    owned = [int(one.resource_name) for one in answer.results if one.error_code is ErrorCode.none]
    return owned[0] if len(owned) == 1 else None
