"""The addresses that clients are told, in the three modes of `address_mode`."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Final

from broker.errors import CannotStart
from broker.settings import Settings

_ANY_ADDRESS: Final = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - to refuse them
_ORDINAL: Final = "{ordinal}"

Endpoints = Mapping[str, tuple[str, int]]
"""Listener -> host, port."""


def advertised_endpoints(
    settings: Settings, bound: Endpoints, hostname: str | None = None
) -> dict[str, tuple[str, int]]:
    """What clients of each listener are told, given where it is bound. Raises CannotStart.

    direct and single: advertised_host and advertised_port where set, else the bound ones. external: both are
    templates; {ordinal} is the number at the end of the pod's hostname, and a+{ordinal} is added up.
    """
    ordinal = _ordinal_of(hostname or socket.gethostname()) if settings.address_mode == "external" else None
    return {name: _advertised(settings, host, port, ordinal) for name, (host, port) in bound.items()}


def _advertised(settings: Settings, host: str, port: int, ordinal: int | None) -> tuple[str, int]:
    told_host = settings.advertised_host or host
    told_port = settings.advertised_port or str(port)
    if ordinal is not None:
        told_host, told_port = (text.replace(_ORDINAL, str(ordinal)) for text in (told_host, told_port))
    elif _ORDINAL in told_host + told_port:
        raise CannotStart("{ordinal} in an advertised address needs address_mode=external")
    if told_host in _ANY_ADDRESS:
        raise CannotStart(f"clients cannot be told to connect to {told_host!r}: set advertised_host")
    number = sum(int(part) for part in told_port.split("+"))
    if not 1 <= number <= 65_535:
        raise CannotStart(f"advertised port {number} is not between 1 and 65535")
    return told_host, number


def _ordinal_of(hostname: str) -> int:
    found = re.search(r"-(\d+)$", hostname.split(".")[0])
    if found is None:
        raise CannotStart(f"address_mode=external needs a hostname that ends in -<ordinal>, not {hostname!r}")
    return int(found.group(1))
