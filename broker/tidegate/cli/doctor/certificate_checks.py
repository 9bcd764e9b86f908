"""Findings about TLS certificates: of a listener, and of the user."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from tidegate.cli.doctor.certificates import Certificate
from tidegate.cli.doctor.finding import Finding, Severity
from tidegate.cli.doctor.probe import Probe, Trouble, split
from tidegate.diagnosis.formatting import listed

_DAY_S: Final = 86_400
_SOON_S: Final = 30 * _DAY_S
_NOT_YET, _EXPIRED, _NAMES = 9, 10, (62, 64)
"""OpenSSL's X509_V_ERR_* codes of validity time, host name and address; the others concern trust."""


def of_probe(one: Probe, now_s: float) -> Iterator[Finding]:
    """Verification errors of a client that checks certificates, and warnings before the certificate expires."""
    if one.trouble is Trouble.CLIENT_CERTIFICATE:
        yield Finding(
            "client-certificate",
            Severity.PROBLEM,
            one.address,
            f"{one.address} requires a client certificate and accepts none of those offered ({one.why}).",
            (),
            "Clients need ssl.keystore (ssl.certificate.location, ssl.key.location) with a certificate that "
            "TIDEGATE_SSL_CLIENT_CA_FILE of the brokers signed. Here: --cert-file and --key-file.",
        )
    elif one.trouble is Trouble.CERTIFICATE:
        yield _refused(one)
    elif one.certificate is not None and (left_s := one.certificate.not_after_s - now_s) < _SOON_S:
        yield Finding(
            "certificate-expires",
            Severity.WARNING,
            one.address,
            f"The certificate of {one.address} ends in {max(int(left_s / _DAY_S), 0)} days.",
            _reported(one.certificate),
            "Renew it and restart the brokers one after the other: clients refuse it from then on.",
        )


def _refused(one: Probe) -> Finding:
    evidence = (one.why, *(_reported(one.certificate) if one.certificate else ()))
    host, _ = split(one.address)
    if one.verify_code in (_NOT_YET, _EXPIRED):
        kind, what = "certificate-expired", "is not valid now"
        advice = "Give the brokers a valid one (TIDEGATE_SSL_CERTIFICATE_FILE), and see that clocks are right."
    elif one.verify_code in _NAMES:
        kind, what = "certificate-name", f"is not for {host}"
        advice = (
            f"Advertise a name that it is for, or have it made again with {host} among its names (subjectAltName). "
            "Clients that must do without: ssl.endpoint.identification.algorithm= (empty)."
        )
    else:
        kind, what = "certificate-untrusted", "is not signed by an authority that is trusted here"
        advice = (
            "Clients need the authority's certificate: ssl.truststore.location, ssl.ca.location; here --ca-file. A "
            "chain that lacks the intermediate authority looks the same: TIDEGATE_SSL_CERTIFICATE_FILE holds all of it."
        )
    return Finding(
        kind,
        Severity.PROBLEM,
        one.address,
        f"The certificate of {one.address} {what}: clients refuse it.",
        evidence,
        advice,
    )


def _reported(certificate: Certificate) -> tuple[str, ...]:
    def day(seconds: float) -> str:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"

    return (
        f"for {listed(certificate.names) if certificate.names else 'no name at all'}; valid from "
        f"{day(certificate.not_before_s)} to {day(certificate.not_after_s)}; signed by {certificate.issuer}",
    )
