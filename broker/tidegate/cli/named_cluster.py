"""Selects the cluster of a command: the named addresses, or a running `tidegate dev` when none is named.

Addresses are named by options, by `TIDEGATE_CLI_*`, or by the setting `redis_url`, however it is given. Addresses that
are not named come from a running `tidegate dev` if nothing is named, or if all named addresses belong to that
`tidegate dev`. Otherwise the defaults of a broker on this machine apply, unless a `tidegate dev` listens there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tidegate.cli.dev import running

VARIABLES: Final = "TIDEGATE_CLI_"
Parameter = Literal["bootstrap", "admin", "redis_url"]
DEFAULTS: Final[Mapping[Parameter, str]] = {
    "bootstrap": "127.0.0.1:9092",
    "admin": "http://127.0.0.1:8080",
    "redis_url": "redis://127.0.0.1:6379/0",
}
_OPTIONS: Final[Mapping[Parameter, str]] = {
    "bootstrap": "--bootstrap",
    "admin": "--admin",
    "redis_url": "--redis-url",
}
_OF_SETTINGS: Final = ("TIDEGATE_REDIS_URL", "TIDEGATE_REDIS_URL_FILE", "TIDEGATE_SECRETS_DIR")
"""Variables that may give the setting `redis_url`."""


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """The named addresses, and the running `tidegate dev` that they belong to, or None."""

    named: Mapping[Parameter, str]
    dev: running.DevCluster | None
    others: tuple[running.DevCluster, ...] = ()
    """Other running `tidegate dev` clusters."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> NamedCluster:
        """From a command's options and the environment. Raises CannotStart."""
        named: dict[Parameter, str] = {}
        for parameter in ("bootstrap", "admin"):
            if value := options.get(parameter) or os.environ.get(f"{VARIABLES}{parameter.upper()}"):
                named[parameter] = value
        if value := options.get("redis_url") or _redis_url_of_settings():
            named["redis_url"] = value
        clusters = running.every()
        dev = next((one for one in clusters if all(_is_of(one, *item) for item in named.items())), None)
        return cls(named, dev, tuple(one for one in clusters if one is not dev))

    def address(self, parameter: Parameter) -> str:
        """The address to connect to."""
        if parameter in self.named:
            return self.named[parameter]
        return DEFAULTS[parameter] if self.dev is None else _address(self.dev, parameter)

    def missing(self, parameter: Parameter) -> str:
        """Why there is no address; "" when there is one."""
        if parameter in self.named or self.dev is not None:
            return ""
        default = DEFAULTS[parameter]
        other = next((one for one in self.others if _is_of(one, parameter, default)), None)
        if other is None:
            return ""
        return (
            f"{default} is of the running `tidegate dev` (pid {other.pid}), and another cluster is named by "
            f"{' and '.join(_shown(*item) for item in self.named.items())}: {_OPTIONS[parameter]} names its address"
        )


def _redis_url_of_settings() -> str | None:
    if not any(name.upper() in _OF_SETTINGS for name in os.environ):
        return None  # importing the settings is slower than most commands
    from tidegate.cli import options

    settings = options.load()
    return settings.redis_url if "redis_url" in settings.model_fields_set else None


def _address(cluster: running.DevCluster, parameter: Parameter) -> str:
    if parameter == "admin":
        return ",".join(cluster.admin)
    return cluster.bootstrap if parameter == "bootstrap" else cluster.redis_url


def _is_of(cluster: running.DevCluster, parameter: Parameter, address: str) -> bool:
    """Whether every address of a comma-separated list belongs to the cluster."""
    return _places(parameter, address) <= _places(parameter, _address(cluster, parameter))


def _places(parameter: Parameter, addresses: str) -> set[str]:
    """Normalised addresses, `host:port`, for Redis with the database number, so that equal ones compare equal."""
    if parameter == "redis_url":
        from tidegate.store.addresses import parse_redis_url

        try:
            topology = parse_redis_url(addresses)
        except ValueError:
            return {addresses}  # reported when connecting
        return {f"{_host(host)}:{port}/{topology.service}/{topology.database}" for host, port in topology.hosts}
    found = (one.strip().rpartition("://")[2].partition("/")[0] for one in addresses.split(","))
    return {f"{_host(host)}:{port}" for host, _, port in (one.rpartition(":") for one in found)}


def _host(name: str) -> str:
    return "127.0.0.1" if name.lower() in ("localhost", "[::1]", "::1") else name.lower()


def _shown(parameter: Parameter, address: str) -> str:
    from tidegate.store.addresses import without_password

    return f"{_OPTIONS[parameter]} {without_password(address) if parameter == 'redis_url' else address}"
