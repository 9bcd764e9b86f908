"""Reads the certificate of a TLS port, trusted or not."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_TIMEOUT_S: Final = 5.0
_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python's ssl module lacks."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Subject names and addresses, validity in seconds since 1970, issuer."""

    names: tuple[str, ...]
    not_before_s: float
    not_after_s: float
    issuer: str


def shown_at(address: str, port: int, server_name: str) -> Certificate | None:
    """The server's certificate, None if it sends none; blocks for some seconds at most.

    Python decodes verified certificates only, so this one is added as a trust anchor and its validity time ignored.
    """
    try:
        der = _handshake(address, port, server_name, None)
        return _read(_handshake(address, port, server_name, der)) if der else None
    except (OSError, ValueError):
        return None


def _handshake(address: str, port: int, server_name: str, trusted: Any) -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if trusted is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=trusted)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    with (
        socket.create_connection((address, port), _TIMEOUT_S) as raw,
        context.wrap_socket(raw, server_hostname=server_name) as wrapped,
    ):
        return wrapped.getpeercert(binary_form=trusted is None)


def _read(decoded: Mapping[str, Any]) -> Certificate:
    names = tuple(value for _, value in decoded.get("subjectAltName", ()))
    return Certificate(
        names,
        ssl.cert_time_to_seconds(decoded["notBefore"]),
        ssl.cert_time_to_seconds(decoded["notAfter"]),
        ", ".join(value for part in decoded.get("issuer", ()) for _, value in part),
    )
