"""The listeners of a broker from its settings: Kafka's syntax, or host and port for a single one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidegate.process_settings import AddressMode
from tidegate.settings import Settings
from tidegate.startup import CannotStart

_LISTENER: Final = re.compile(r"(?P<name>[\w-]+)://(?P<host>\[[^\]]*\]|[^:/\[\]]*):(?P<port>[^/\s]+)")
_PAIR: Final = re.compile(r"(?P<name>[\w-]+):(?P<value>\w+)")
_TEMPLATE: Final = re.compile(r"\d+|\d*\{ordinal\}|\d+\+\{ordinal\}")
_PROTOCOLS: Final = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
"""Security protocol -> whether it is TLS, whether clients authenticate by SASL."""
_MODES: Final[dict[str, AddressMode]] = {"direct": "direct", "single": "single", "external": "external"}


@dataclass(frozen=True, slots=True)
class Listener:
    """One port: its bind address (port 0 takes a free one), protocol and advertised address."""

    name: str
    host: str
    port: int
    tls: bool
    mode: AddressMode
    announced_host: str | None
    """Template of the advertised host; None: the bound one."""
    announced_port: str | None
    setting: str
    """The variable to name in an error about this listener."""
    sasl: bool = False
    """Whether clients authenticate by SASL."""


def listeners_of(settings: Settings) -> list[Listener]:
    """Every listener, in the order of the settings; the first is the primary one. Raises CannotStart."""
    found = list(_listed(settings))
    if settings.ssl_certificate_file and not any(one.tls for one in found):
        raise CannotStart(
            "TIDEGATE_SSL_CERTIFICATE_FILE is set and no listener uses it: "
            f"TIDEGATE_LISTENERS=SSL://{found[0].host}:{found[0].port}"
        )
    for one in found:
        if one.tls and not settings.ssl_certificate_file:
            raise CannotStart(f"listener {one.name} speaks TLS: set TIDEGATE_SSL_CERTIFICATE_FILE")
    return found


def single_listeners(settings: Settings) -> frozenset[str]:
    """Names of listeners with one load-balanced address for all brokers."""
    return frozenset(one.name for one in listeners_of(settings) if one.mode == "single")


def address_mode_of(settings: Settings, name: str) -> AddressMode:
    """The address mode of the listener of this name. Raises CannotStart."""
    return _mode(name.upper(), *_modes(settings.address_mode))


def _listed(settings: Settings) -> Iterator[Listener]:
    bound, setting = {"PLAINTEXT": (settings.host, str(settings.port))}, "TIDEGATE_PORT"
    if settings.listeners:
        bound, setting = _addresses(settings.listeners, "LISTENERS"), "TIDEGATE_LISTENERS"
    reported = _addresses(settings.advertised_listeners or "", "ADVERTISED_LISTENERS")
    protocols = _pairs(settings.listener_security_protocol_map, "LISTENER_SECURITY_PROTOCOL_MAP")
    common, modes = _modes(settings.address_mode)
    for name in [*reported, *modes]:
        if name not in bound:
            raise CannotStart(f"{name} is advertised or has an address mode, and is none of {', '.join(bound)}")
    for name, (host, port) in bound.items():
        if not port.isdecimal() or int(port) > 65_535:
            raise CannotStart(f"TIDEGATE_LISTENERS: port {port} of {name} is not between 0 and 65535")
        announced_host, announced_port = reported.get(name, (None, None))
        (tls, sasl), mode = _protocol(name, protocols), _mode(name, common, modes)
        yield Listener(name, host, int(port), tls, mode, announced_host, announced_port, setting, sasl)


def _addresses(text: str, setting: str) -> dict[str, tuple[str, str]]:
    """Parse `NAME://host:port,...` into name -> host, port."""
    found: dict[str, tuple[str, str]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _LISTENER.fullmatch(part)
        if match is None or _TEMPLATE.fullmatch(match["port"]) is None:
            raise CannotStart(f"TIDEGATE_{setting}: {part!r} is not NAME://host:port")
        name = match["name"].upper()
        address = match["host"].strip("[]"), match["port"]
        if name in found or (address in found.values() and address[1] != "0"):
            raise CannotStart(f"TIDEGATE_{setting}: {part!r} has the name or the address of another listener")
        found[name] = address
    return found


def _pairs(text: str | None, setting: str) -> dict[str, str]:
    """Parse `NAME:value,...` into name -> value."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        match = _PAIR.fullmatch(part)
        if match is None or match["name"].upper() in found:
            raise CannotStart(f"TIDEGATE_{setting}: {part!r} is not NAME:value, or names a listener twice")
        found[match["name"].upper()] = match["value"]
    return found


def _protocol(name: str, protocols: dict[str, str]) -> tuple[bool, bool]:
    protocol = protocols.get(name, name).upper()
    if protocol not in _PROTOCOLS:
        raise CannotStart(
            f"listener {name} speaks {', '.join(_PROTOCOLS)}, not {protocol}: "
            f"TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP={name}:PLAINTEXT"
        )
    return _PROTOCOLS[protocol]


def _modes(text: str) -> tuple[str, dict[str, str]]:
    """Parse `mode,NAME:mode,...` into the mode of all listeners (default: direct), and listener -> its own mode."""
    parts = [part.strip() for part in text.split(",")]
    common = [part for part in parts if ":" not in part]
    if len(common) > 1:
        raise CannotStart(f"TIDEGATE_ADDRESS_MODE: {', '.join(common)} are several modes for all listeners")
    return next(iter(common), "direct"), _pairs(",".join(part for part in parts if ":" in part), "ADDRESS_MODE")


def _mode(name: str, common: str, modes: dict[str, str]) -> AddressMode:
    mode = modes.get(name, common).lower()
    if mode not in _MODES:
        raise CannotStart(f"TIDEGATE_ADDRESS_MODE: {name}:{mode} is not direct, single or external")
    return _MODES[mode]
