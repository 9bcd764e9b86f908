"""What the check at the start says of real servers, and of servers that only an answer describes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from tests.support.valkey import ValkeyServer
from tidegate.cluster import server_check
from tidegate.cluster.server_check import UnsuitedRedis, check_server
from tidegate.errors import StoreUnavailable
from tidegate.settings import Settings
from tidegate.startup import CannotStart
from tidegate.store.node import Node
from tidegate.store.store import Store


@pytest.fixture
async def own(store: Store) -> AsyncIterator[Store]:
    """The session's server, its settings put back afterwards."""
    yield store
    await store.command("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", 0)


async def test_server_that_suits(own: Store, settings: Settings) -> None:
    await own.command("CONFIG", "SET", "maxmemory", 1 << 30)
    (report,) = await check_server(own, settings)

    assert report.flavour in ("valkey", "redis")
    assert (report.maxmemory, report.maxmemory_policy, report.appendonly, report.replicas) == (
        1 << 30,
        "noeviction",
        False,
        0,
    )
    assert [warning.split()[0] for warning in report.warnings] == ["appendonly"]
    assert await own.command("KEYS", "*") == []


async def test_server_that_evicts_is_refused_unless_allowed(own: Store, settings: Settings) -> None:
    await own.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(UnsuitedRedis, match="maxmemory-policy is allkeys-lru"):
        await check_server(own, settings)
    (report,) = await check_server(own, settings.model_copy(update={"redis_allow_eviction": True}))

    assert "maxmemory-policy may evict keys: data will be lost" in report.warnings


async def test_no_bound_on_memory_is_a_warning(own: Store, settings: Settings) -> None:
    assert any("maxmemory is not set" in warning for warning in (await check_server(own, settings))[0].warnings)


async def test_durability_that_the_server_cannot_prove_is_refused(own: Store, settings: Settings) -> None:
    with pytest.raises(UnsuitedRedis, match="durability=fsynced needs"):
        await check_server(own, settings.model_copy(update={"durability": "fsynced"}))


async def test_full_server_still_passes(own: Store, settings: Settings) -> None:
    """Brokers must be able to start again on it."""
    await own.command("CONFIG", "SET", "maxmemory", 1)
    await check_server(own, settings)


@pytest.mark.parametrize(
    "rights",
    [
        ["~other:*", "+@all", "allchannels"],
        ["~tidegate:*", "+@all", "resetchannels"],
        ["~tidegate:*", "+@all", "-@scripting", "allchannels"],
        ["~tidegate:*", "+@all", "-info", "allchannels"],
    ],
)
async def test_missing_rights_are_reported_in_one_line(store: Store, valkey: ValkeyServer, rights: list[str]) -> None:
    await store.command("ACL", "SETUSER", "limited", "reset", "on", ">pw", *rights)
    limited = Store(Settings(redis_url=f"redis://limited:pw@127.0.0.1:{valkey.port}/0"))
    await limited.start()
    try:
        with pytest.raises(UnsuitedRedis, match="refused") as refusal:
            await check_server(limited, limited.settings)
        assert "\n" not in str(refusal.value)
    finally:
        await limited.close()
        await store.command("ACL", "DELUSER", "limited")


async def test_replica_is_refused(store: Store) -> None:
    replica = ValkeyServer(["--replicaof", "127.0.0.1", str(store.primary.address.port)])
    lagging = Store(Settings(redis_url=replica.url))
    try:
        with pytest.raises(StoreUnavailable, match="calls itself a replica"):
            await lagging.start()
    finally:
        await lagging.close()
        replica.stop()


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"redis_version": "6.2.14"}, "redis 6.2.14 is too old: redis 7.0 or newer"),
        ({"redis_version": "7.2.4", "valkey_version": "7.1.0"}, "valkey 7.1.0 is too old: valkey 7.2 or newer"),
        ({"redis_version": "7.4.0", "cluster_enabled": "1"}, "redis_url must begin with redis.cluster://"),
        ({"redis_version": "7.4.0", "role": "slave"}, "is a replica"),
        ({}, "too old"),
        ({"redis_version": "7.4.0", "modules": "name=crdt,ver=70402 name=search,ver=1"}, "Active-Active database"),
        ({"redis_version": "7.4.0", "crdt_replicas": "2"}, "Active-Active database"),
    ],
)
async def test_servers_that_do_not_suit(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, facts: dict[str, str], reason: str
) -> None:
    async def reported(_: Node) -> dict[str, str]:
        return facts

    monkeypatch.setattr(server_check, "_facts", reported)
    with pytest.raises(CannotStart, match=reason):
        await check_server(store, settings)


async def test_modules_of_the_server_are_read(own: Store) -> None:
    """Valkey has its Lua engine as a module."""
    facts = await server_check._facts(own.metadata_node)
    info = (await own.command("INFO", "modules")).decode()

    assert facts.get("modules", "").split() == [line[7:] for line in info.splitlines() if line.startswith("module:")]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ((b"again.err", b"false"), "takes one stream id twice"),
        ((b"#!lua", b"#!no-lua"), "has no Lua engine"),  # Valkey cannot unload its own: another engine is asked for
    ],
)
async def test_server_that_fails_the_probe_is_refused(
    own: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, changed: tuple[bytes, bytes], reason: str
) -> None:
    probe = server_check.PROBE_RIGHTS.source.replace(*changed)
    monkeypatch.setattr(server_check, "PROBE_RIGHTS", SimpleNamespace(source=probe))
    with pytest.raises(UnsuitedRedis, match=reason):
        await check_server(own, settings)


@pytest.mark.parametrize(
    ("facts", "flavour", "version"),
    [
        ({"redis_version": "7.0.0"}, "redis", "7.0.0"),
        ({"redis_version": "8.2.1"}, "redis", "8.2.1"),
        ({"redis_version": "7.2.4", "valkey_version": "9.0.0", "server_name": "valkey"}, "valkey", "9.0.0"),
        ({"redis_version": "7.4.0", "dragonfly_version": "df-v1.27.1"}, "dragonfly", "df-v1.27.1"),
    ],
)
async def test_flavours(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, facts: dict[str, str], flavour: str, version: str
) -> None:
    async def reported(_: Node) -> dict[str, str]:
        return facts

    monkeypatch.setattr(server_check, "_facts", reported)
    (report,) = await check_server(store, settings)

    assert (report.flavour, report.version) == (flavour, version)
    assert ("dragonfly was not tried by us" in report.warnings) == (flavour == "dragonfly")
