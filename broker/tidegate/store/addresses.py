"""Parse `redis_url` into a topology, and the address and login of one server."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

Kind = Literal["standalone", "sentinel", "cluster"]

_PORTS: Final[dict[str, int]] = {"standalone": 6379, "sentinel": 26379, "cluster": 6379}
_FORMS: Final = (
    "redis://[user:password@]host:port/db, redis+sentinel://[user:password@]host:port,host:port/service/db, "
    "redis+cluster://[user:password@]host:port,host:port; rediss… is with TLS"
)
_CODED: Final = " (in a password / is %2F, ? is %3F, # is %23)"
_TLS_QUERY: Final = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"})


@dataclass(frozen=True, slots=True)
class Address:
    """The address and login of a Redis server. `tls` is None for a plain connection."""

    host: str
    port: int
    username: str | None = None
    password: str | None = None
    database: int = 0
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """The servers that an address names: one server; sentinels and the service they monitor; some nodes of a cluster.

    `tls_files` are the `ssl_…` parameters of the address, as the pipeline uses them.
    """

    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    service: str
    username: str | None
    password: str | None
    database: int
    tls: bool
    tls_files: tuple[tuple[str, str], ...] = ()

    def address(self, host: str, port: int, tls: ssl.SSLContext | None) -> Address:
        """A server of this topology, with the login of `redis_url`."""
        return Address(host, port, self.username, self.password, self.database, tls)


def parse_redis_url(url: str) -> Topology:
    """Parse `redis://`, `redis+sentinel://` or `redis+cluster://`; `rediss` adds TLS; `valkey` is a synonym of `redis`.

    Raises ValueError, whose text does not contain a password.
    """
    parts = urlsplit(url)
    base, _, flavour = parts.scheme.replace("valkey", "redis").partition("+")
    if base not in ("redis", "rediss") or flavour not in ("", "sentinel", "cluster") or not parts.netloc:
        raise ValueError(f"not a Redis address: {without_password(url)!r} ({_FORMS})")
    kind: Kind = "sentinel" if flavour == "sentinel" else "cluster" if flavour == "cluster" else "standalone"
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    service, database = _path(kind, parts.path, url)
    query = tuple(parse_qsl(parts.query))
    if {name for name, _ in query} - _TLS_QUERY or (query and base != "rediss"):
        raise ValueError(f"unknown parameters: {without_password(url)}; with rediss: {sorted(_TLS_QUERY)}{_CODED}")
    return Topology(
        kind,
        tuple(_host(host, _PORTS[kind], url) for host in hosts.split(",")),
        service,
        unquote(user) or None,
        unquote(password) or None,
        database,
        base == "rediss",
        query,
    )


def without_password(url: str) -> str:
    """The address without its password, for display."""
    credentials, at, rest = url.rpartition("@")
    scheme, separator, login = credentials.partition("://")
    user, colon, password = login.partition(":")
    return f"{scheme}{separator}{user}{colon}***{at}{rest}" if password else url


def _path(kind: Kind, path: str, url: str) -> tuple[str, int]:
    words = [word for word in path.split("/") if word]
    service = ""
    if kind == "sentinel":
        if not words:
            raise ValueError(f"{without_password(url)} names no service: redis+sentinel://host:port/<service>/<db>")
        service = unquote(words.pop(0))
    if len(words) > 1 or not all(word.isdecimal() for word in words):
        raise ValueError(f"{without_password(url)} has no Redis database number at its end{_CODED}")
    database = int(words[0]) if words else 0
    if kind == "cluster" and database:
        raise ValueError(f"{without_password(url)}: Redis Cluster has database 0 only")
    return service, database


def _host(host: str, port: int, url: str) -> tuple[str, int]:
    name, separator, number = host.rpartition(":")
    if not separator or host.endswith("]"):
        name, number = host, str(port)
    if not name.strip("[]") or not number.isdecimal() or not 0 < int(number) < 65_536:
        raise ValueError(f"not a Redis address: {without_password(url)!r} ({_FORMS})")
    return name.strip("[]"), int(number)
