"""The addresses that clients of each listener are told, in the three address modes."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from typing import Final

from tidegate.cluster.listeners import Listener
from tidegate.errors import CannotStart

_ANY_ADDRESS: Final = ("", "0.0.0.0", "::", "[::]")  # noqa: S104 - to refuse them
_ORDINAL: Final = "{ordinal}"

Endpoints = dict[str, tuple[str, int]]
"""Listener -> host, port."""


def advertised_endpoints(listeners: Sequence[Listener], ports: Sequence[int], hostname: str | None = None) -> Endpoints:
    """Listener -> host and port that its clients are told, given the port where each is bound. Raises CannotStart.

    direct and single: what is advertised, else the bound address. external: host and port are templates;
    {ordinal} is the number at the end of the pod's hostname, and a+{ordinal} is added up.
    """
    hostname = hostname or socket.gethostname()
    told = {one.name: _advertised(one, port, hostname) for one, port in zip(listeners, ports, strict=True)}
    if len(set(told.values())) < len(told):
        raise CannotStart("two listeners are advertised at one address: TIDEGATE_ADVERTISED_LISTENERS tells them apart")
    return told


def _advertised(listener: Listener, port: int, hostname: str) -> tuple[str, int]:
    told_host = listener.told_host or listener.host
    told_port = listener.told_port or str(port)
    if listener.mode == "external":
        ordinal = str(_ordinal_of(hostname))
        told_host, told_port = (text.replace(_ORDINAL, ordinal) for text in (told_host, told_port))
    elif _ORDINAL in told_host + told_port:
        raise CannotStart("{ordinal} in an advertised address needs address_mode=external")
    if told_host in _ANY_ADDRESS:
        setting = "advertised_host" if listener.setting == "TIDEGATE_PORT" else "advertised_listeners"
        raise CannotStart(f"clients of {listener.name} cannot be told to connect to {told_host!r}: set {setting}")
    number = sum(int(part) for part in told_port.split("+"))
    if not 1 <= number <= 65_535:
        raise CannotStart(f"advertised port {number} is not between 1 and 65535")
    return told_host, number


def _ordinal_of(hostname: str) -> int:
    found = re.search(r"-(\d+)$", hostname.split(".")[0])
    if found is None:
        raise CannotStart(f"address_mode=external needs a hostname that ends in -<ordinal>, not {hostname!r}")
    return int(found.group(1))
