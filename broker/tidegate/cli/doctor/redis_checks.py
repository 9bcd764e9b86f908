"""Findings about Redis. No I/O."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from typing import Final

from tidegate.cli.doctor import log_checks, probe_groups
from tidegate.cli.doctor.finding import Finding, Severity
from tidegate.cli.doctor.probe_redis import COVERAGE, RedisProbe, Server
from tidegate.cluster.server_check import (
    ACTIVE_ACTIVE,
    LEAST,
    flavour_of,
    is_active_active,
    why_scripts_fail,
)
from tidegate.diagnosis.formatting import size

_SLOW_MS: Final = 5.0
_VERY_SLOW_MS: Final = 100.0
_FULL_WARNING: Final = 0.8
_FULL_PROBLEM: Final = 0.95
_COLLECTED: Final = ("ok", "")


def judge(probe: RedisProbe, cluster_id: str | None) -> Iterator[Finding]:
    """All findings, unordered. `cluster_id` is the brokers' own, None when none answered."""
    if probe.failure:
        yield Finding(
            "redis-unreachable",
            Severity.PROBLEM,
            probe.where,
            f"Redis cannot be used from here: {probe.failure.rstrip('.')}.",
            ("Without Redis brokers answer retriable errors: clients wait, and lose nothing that was acknowledged.",),
            "Is it running, is the address right (TIDEGATE_REDIS_URL), are user and password?",
        )
        return
    for server in probe.servers:
        for rule in _RULES:
            yield from rule(server, probe)
    yield from log_checks.judge(probe.stopped, probe.truncated)
    yield from probe_groups.judge(probe.late_groups)
    if cluster_id is not None and probe.cluster_id != cluster_id:
        yield Finding(
            "redis-other-cluster",
            Severity.PROBLEM,
            probe.where,
            f"The brokers are of cluster {cluster_id}, and this Redis holds "
            + (f"cluster {probe.cluster_id}" if probe.cluster_id else f"none under prefix {probe.prefix}")
            + ".",
            (),
            "Compare --redis-url and --key-prefix with TIDEGATE_REDIS_URL and TIDEGATE_KEY_PREFIX of the brokers.",
        )


def _version(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    flavour, version = flavour_of(dict(server.info))
    least = LEAST.get(flavour)
    if least is None:
        severity, sentence = Severity.WARNING, f"{flavour} {version} was not tried by us."
    elif tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < least:
        severity, sentence = Severity.PROBLEM, f"{flavour} {version} is too old: brokers refuse to start on it."
    else:
        return
    wanted = " or ".join(f"{name} {first}.{second}" for name, (first, second) in LEAST.items())
    yield Finding("redis-version", severity, server.address, sentence, (), f"Take {wanted}, or newer.")


def _cluster(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    if server.info.get("cluster_enabled") != "1":
        return
    if "+cluster://" not in probe.where:
        yield Finding(
            "redis-cluster",
            Severity.PROBLEM,
            server.address,
            f"{server.address} is a node of a Redis Cluster, and the address names one server: brokers refuse.",
            (),
            "Begin TIDEGATE_REDIS_URL with redis+cluster:// (rediss+cluster:// with TLS).",
        )
    if server.info.get(COVERAGE) == "yes":
        yield Finding(
            "redis-cluster",
            Severity.WARNING,
            server.address,
            "While one shard has no primary every node refuses every key: a fail-over stops all groups and partitions.",
            (f"{COVERAGE} yes",),
            f"Set {COVERAGE} no: only the shard that fails over waits then.",
        )


def _role(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    if server.info.get("role", "master") != "master":
        primary = f"{server.info.get('master_host')}:{server.info.get('master_port')}"
        yield Finding(
            "redis-replica",
            Severity.PROBLEM,
            server.address,
            f"{server.address} is a replica of {primary}: nothing can be written there.",
            (),
            "TIDEGATE_REDIS_URL is to name the primary, or the sentinels that know it "
            "(redis+sentinel://host:port/service).",
        )


def _eviction(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    policy = server.info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return
    evicted = int(server.info.get("evicted_keys", 0))
    volatile = policy.startswith("volatile-")
    yield Finding(
        "redis-eviction",
        Severity.PROBLEM,
        server.address,
        f"maxmemory-policy is {policy}: when memory is full, Redis throws away keys that are groups, offsets or logs.",
        (
            f"evicted since its start: {evicted:,} keys (of all that use this server)",
            *(
                ("few of our keys have an expiry, which this policy asks for; brokers refuse it all the same",)
                if volatile
                else ("an evicted log is a topic whose records are gone; an evicted group starts again from nothing",)
            ),
            "brokers refuse to start on it, unless TIDEGATE_REDIS_ALLOW_EVICTION=true",
        ),
        "CONFIG SET maxmemory-policy noeviction, and in redis.conf (managed services: the parameter group). A cache "
        "and Tidegate do not go into one server.",
    )


def _memory(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    limit, used = int(server.info.get("maxmemory", 0)), int(server.info.get("used_memory", 0))
    if limit == 0:
        yield Finding(
            "redis-memory",
            Severity.WARNING,
            server.address,
            "maxmemory is not set: when the machine's memory runs out, the kernel kills Redis.",
            (
                f"used now: {size(used)}",
                f"memory of the machine: {size(int(server.info.get('total_system_memory', 0)))}",
            ),
            "Set maxmemory to about two thirds of the machine's (the rest is for copy-on-write); Tidegate then answers "
            "producers with an error that they repeat.",
        )
    elif used / limit >= _FULL_WARNING:
        yield Finding(
            "redis-memory",
            Severity.PROBLEM if used / limit >= _FULL_PROBLEM else Severity.WARNING,
            server.address,
            f"Memory is {used / limit:.0%} full: {size(used)} of {size(limit)}.",
            ("When it is full, producers are refused until something is deleted; groups and commits continue.",),
            "See what takes it (`tidegate redis memory`); shorten retention.ms or retention.bytes, move old offsets to "
            "the archive (remote.storage.enable), or raise maxmemory.",
        )


def _persistence(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    info = server.info
    if info.get("aof_enabled") != "1":
        yield Finding(
            "redis-persistence",
            Severity.WARNING,
            server.address,
            "appendonly is off: a restart of Redis loses what was acknowledged since the last snapshot, or all.",
            (f"last snapshot: {info.get('rdb_changes_since_last_save', '?')} changes ago",),
            "CONFIG SET appendonly yes (and in redis.conf); a replica does not replace it.",
        )
    for name, what in (
        ("aof_last_write_status", "The last write of the append-only file"),
        ("aof_last_bgrewrite_status", "The last rewrite of the append-only file"),
        ("rdb_last_bgsave_status", "The last snapshot"),
    ):
        if info.get(name, "ok") not in _COLLECTED:
            yield Finding(
                "redis-persistence",
                Severity.PROBLEM,
                server.address,
                f"{what} failed ({name}={info[name]}).",
                (),
                "Is the disk full, or memory short for a fork (vm.overcommit_memory=1)? Redis's log says it.",
            )


def _replicas(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    count = int(server.info.get("connected_slaves", 0))
    cut_off = [text for name, text in server.info.items() if re.fullmatch(r"slave\d+", name) and "online" not in text]
    if count == 0:
        yield Finding(
            "redis-replicas",
            Severity.NOTE,
            server.address,
            "No replica: while this server is away, nothing continues.",
            (),
            "A replica with Sentinel or Cluster takes over within seconds (docs/operations.md).",
        )
    elif cut_off:
        yield Finding(
            "redis-replicas",
            Severity.WARNING,
            server.address,
            f"{len(cut_off)} of {count} replicas are not in step.",
            tuple(cut_off),
            "A fail-over to one of them loses what it has not got.",
        )
    if count and server.info.get("min_slaves_good_slaves") is None:  # INFO has the field unless the setting is 0
        yield Finding(
            "redis-min-replicas",
            Severity.WARNING,
            server.address,
            "min-replicas-to-write is 0: this server takes writes that no replica has, even when it is cut off from "
            "all of them and another one was put in its place.",
            (
                "lost then: what brokers on its side committed and joined until they find the other one, and with "
                "durability=memory records too",
                "the price of setting it: with fewer replicas in step, writes are refused, and clients wait",
            ),
            "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 10 on every server (and in redis.conf); below "
            "the number of replicas, or the loss of one stops writes.",
        )


def _rights(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    if is_active_active(server.info):
        yield Finding("redis-active-active", Severity.PROBLEM, server.address, f"{ACTIVE_ACTIVE}.".capitalize(), ())
    elif why := why_scripts_fail(server.rights):
        yield Finding("redis-no-lua", Severity.PROBLEM, server.address, f"{why}.".capitalize(), (server.rights,))
    elif server.rights and not server.rights.startswith("OOM"):
        yield Finding(
            "redis-rights",
            Severity.PROBLEM,
            server.address,
            f"User {probe.user or 'default'} may not do what brokers do: {server.rights}.",
            (f"tried: a script that writes and publishes on {probe.prefix}:*",),
            "`tidegate redis acl` prints the user that brokers need.",
        )


def _latency(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    median, worst = statistics.median(server.latencies_ms), max(server.latencies_ms)
    if median > _SLOW_MS:
        yield Finding(
            "redis-latency",
            Severity.PROBLEM if median > _VERY_SLOW_MS else Severity.WARNING,
            server.address,
            f"Redis answers a PING in {median:.1f} ms from here (worst of {len(server.latencies_ms)}: {worst:.1f} ms).",
            ("Every append, commit and heartbeat of a broker waits for at least one such answer.",),
            "Measure where the brokers are; keep them in Redis's own zone, and look at its slow log (SLOWLOG GET).",
        )


def _functions(server: Server, probe: RedisProbe) -> Iterator[Finding]:
    if server.libraries == () and any(lease.state == "serving" for lease in probe.leases):
        yield Finding(
            "redis-functions",
            Severity.NOTE,
            server.address,
            f"No functions of brokers are on {server.address}: joins, syncs and leaves run by EVALSHA there.",
            ("each costs Redis about 10 µs more; nothing else differs",),
            "The brokers' user may lack the rights FUNCTION and FCALL (`tidegate redis acl`); their log event "
            "redis_functions_refused says why. After FUNCTION FLUSH the next join loads them again.",
        )


_RULES: Final[tuple[Callable[[Server, RedisProbe], Iterator[Finding]], ...]] = (
    _version, _cluster, _role, _eviction, _memory, _persistence, _replicas, _rights, _functions, _latency,
)  # fmt: skip
