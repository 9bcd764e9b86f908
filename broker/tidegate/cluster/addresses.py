"""The addresses advertised to clients of each listener, in the three address modes."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Final

from tidegate.cluster.listeners import Listener
from tidegate.startup import CannotStart

_ANY_ADDRESS: Final = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - to refuse them
_ORDINAL: Final = "{ordinal}"

Endpoints = dict[str, tuple[str, int]]
"""Listener -> host, port."""


def advertised_endpoints(listeners: Sequence[Listener], ports: Sequence[int], hostname: str | None = None) -> Endpoints:
    """Listener -> advertised host and port, given the port where each is bound. Raises CannotStart.

    direct and single: the advertised address, else the bound one. external: host and port are templates; {ordinal} is
    the number at the end of the pod's hostname, and a+{ordinal} is a sum.
    """
    hostname = hostname or socket.gethostname()
    reported = {one.name: _advertised(one, port, hostname) for one, port in zip(listeners, ports, strict=True)}
    if len(set(reported.values())) < len(reported):
        raise CannotStart("two listeners are advertised at one address: TIDEGATE_ADVERTISED_LISTENERS must differ")
    return reported


def _advertised(listener: Listener, port: int, hostname: str) -> tuple[str, int]:
    announced_host = listener.announced_host or listener.host
    announced_port = listener.announced_port or str(port)
    if listener.mode == "external":
        ordinal = str(_ordinal_of(hostname))
        announced_host, announced_port = (text.replace(_ORDINAL, ordinal) for text in (announced_host, announced_port))
    elif _ORDINAL in announced_host + announced_port:
        raise CannotStart("{ordinal} in an advertised address needs address_mode=external")
    if announced_host in _ANY_ADDRESS:
        raise CannotStart(
            f"{announced_host!r} cannot be advertised by {listener.name}: set "
            f"TIDEGATE_ADVERTISED_LISTENERS={listener.name}://host:{port}"
        )
    number = sum(int(part) for part in announced_port.split("+"))
    if not 1 <= number <= 65_535:
        raise CannotStart(f"advertised port {number} is not between 1 and 65535")
    return announced_host, number


def _ordinal_of(hostname: str) -> int:
    found = re.search(r"-(\d+)$", hostname.split(".")[0])
    if found is None:
        raise CannotStart(f"address_mode=external needs a hostname that ends in -<ordinal>, not {hostname!r}")
    return int(found.group(1))
