"""Connections of the pipeline to Redis: one server, Sentinel or Cluster; scripts; patience while it is away.

Executors make their own from the address; nothing here is pickled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import redis
from redis.cluster import RedisCluster

from tidegate.store import clients
from tidegate.store.addresses import parse_redis_url
from tidegate.store.scripts import Script
from tidegate_pipeline.errors import PipelineError, UsageError

Client = Any
"""`redis.Redis` or `redis.cluster.RedisCluster`, with replies as bytes."""

Outcome = TypeVar("Outcome")

AWAY: Final = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.RedisClusterException,
)
"""What may pass: a restart, a fail-over, a load, slots on the move."""
REFUSED: Final = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
"""What does not, though redis-py counts it with lost connections."""

_SOCKET_TIMEOUT_S: Final = 10.0
_TLS_VARIABLES: Final = {
    "ssl_ca_certs": "TIDEGATE_REDIS_CA_FILE",
    "ssl_certfile": "TIDEGATE_REDIS_CLIENT_CERT_FILE",
    "ssl_keyfile": "TIDEGATE_REDIS_CLIENT_KEY_FILE",
}
"""Parameters of an address -> the brokers' variables, which count where the address has none."""
_KEPT: Final[dict[tuple[int, str, str], Client]] = {}
_KEPT_MAX: Final = 8
"""Connections that a process keeps, of as many addresses; the one that was used longest ago goes."""
_PAUSE_S: Final = 0.2
_PAUSE_MAX_S: Final = 2.0


def connect(url: str, password_variable: str = "") -> Client:
    """A client for an address: `redis://`, `rediss://` (`valkey…` too), `redis+cluster://`, `redis+sentinel://`.

    `redis+sentinel://[user:password@]host:port,host:port/service[/db]` asks the sentinels for the primary. TLS and the
    sentinels' own login are as the brokers' variables say: TIDEGATE_REDIS_CA_FILE, TIDEGATE_REDIS_SENTINEL_PASSWORD, ….
    `password_variable` is the environment variable, or the path of the file, that holds the password, so that the
    address can be shown. Nothing is sent yet, but to a cluster. Raises UsageError.
    """
    try:
        topology = parse_redis_url(url)
    except ValueError as error:
        raise UsageError(str(error)) from None
    password = read_secret(password_variable, "of Redis") if password_variable else topology.password
    files = _tls(dict(topology.tls_files)) if topology.tls else None
    options = clients.login(topology.username, password, _SOCKET_TIMEOUT_S, files)
    if topology.kind == "cluster":
        return clients.cluster_client(topology, options)
    if topology.kind == "sentinel":
        return clients.primary_client(topology, options, _sentinel_login(files))
    return clients.server_client(*topology.hosts[0], topology.database, options)


def _tls(named: dict[str, str]) -> dict[str, Any]:
    """What redis-py calls `ssl…`; `named` are the parameters of the address."""
    found = {name: os.environ[variable] for name, variable in _TLS_VARIABLES.items() if os.environ.get(variable)}
    found |= named
    return {**found, "ssl_check_hostname": _yes(found.get("ssl_check_hostname", "true"))}


def _sentinel_login(files: dict[str, Any] | None) -> dict[str, Any]:
    """Connection options of sentinels: TLS if the servers use it."""
    return clients.login(
        os.environ.get("TIDEGATE_REDIS_SENTINEL_USERNAME"),
        os.environ.get("TIDEGATE_REDIS_SENTINEL_PASSWORD"),
        _SOCKET_TIMEOUT_S,
        files,
    )


def _yes(text: str) -> bool:
    return text.lower() not in ("false", "0", "no", "off")


def read_secret(name: str, whose: str) -> str:
    """The password in an environment variable, or in a file if the name has a slash. Raises UsageError."""
    if "/" not in name:
        if name not in os.environ:
            raise UsageError(f"the password {whose} is to be in the environment variable {name}, which is not set")
        return os.environ[name]
    try:
        return Path(name).read_text().strip()
    except OSError as error:
        raise UsageError(f"the password {whose} is to be in the file {name}: {error.strerror}") from None


def _configured_url() -> str:
    from tidegate_pipeline.settings import load  # a sixteenth of a worker's start; tasks have an address

    return load().redis.url


def connect_by_option(url: str, password_variable: str = "") -> Client:
    """As `connect`; without an address, to that of this process's settings, which may hold a password."""
    return connect(url or _configured_url(), password_variable)


def kept_client(url: str, password_variable: str = "") -> Client:
    """As `connect_by_option`, once for a process: Spark gives a worker many short tasks. It stays open."""
    key = (os.getpid(), url or _configured_url(), password_variable)
    client = _KEPT.pop(key, None) or connect_by_option(url, password_variable)
    _KEPT[key] = client
    while len(_KEPT) > _KEPT_MAX:
        _KEPT.pop(next(iter(_KEPT))).close()
    return client


def replid_at(client: Client, key: str) -> str:
    """`master_replid` of the server that has a key."""
    if isinstance(client, RedisCluster):
        node = client.get_node_from_key(key)
        return str(client.info("replication", target_nodes=node)["master_replid"])
    return str(client.info("replication")["master_replid"])


def replids(client: Client) -> frozenset[str]:
    """`master_replid` of every primary."""
    if isinstance(client, RedisCluster):
        replies = client.info("replication", target_nodes=RedisCluster.PRIMARIES)
        # of a single node redis-py returns the fields themselves
        infos = [replies] if "master_replid" in replies else replies.values()
    else:
        infos = [client.info("replication")]
    return frozenset(str(info["master_replid"]) for info in infos)


def run(client: Client, script: Script, keys: Sequence[str], *args: str | int | bytes) -> Any:
    """Call a script by its SHA; sends the source if the server does not have it."""
    try:
        return client.evalsha(script.sha, len(keys), *keys, *args)
    except redis.exceptions.NoScriptError:
        return client.eval(script.source, len(keys), *keys, *args)


def with_whole_entries(client: Client) -> Client:
    """The client, whose XRANGE and XREVRANGE answer `[[id, [field, value, ...]], ...]`: redis-py would make a dict of
    the fields, and lose all batches of an entry but one."""
    nodes = client.get_nodes() if isinstance(client, RedisCluster) else ()
    for node in [client.get_redis_connection(node) for node in nodes] or [client]:
        for command in ("XRANGE", "XREVRANGE"):
            node.set_response_callback(command, _unchanged)
    return client


def _unchanged(reply: Any, **_: Any) -> Any:
    return reply


def retry_while_unavailable(
    action: Callable[[], Outcome], retry_s: float, note: Callable[[str], None] | None = None
) -> Outcome:
    """Call `action`; while Redis is unavailable, retry for `retry_s` seconds with growing pauses.

    Raises PipelineError, UsageError.

    `note` is called once, when the first retry is needed.
    """
    deadline, pause_s = time.monotonic() + retry_s, _PAUSE_S
    while True:
        try:
            return action()
        except REFUSED as error:
            raise UsageError(f"Redis refuses the login: {error}") from error
        except AWAY as error:
            if time.monotonic() + pause_s > deadline:
                raise PipelineError(f"Redis is away for {retry_s:g} s: {error}") from error
            if note is not None:
                note(f"Redis is away, waiting for it up to {retry_s:g} s")
                note = None
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_MAX_S)
