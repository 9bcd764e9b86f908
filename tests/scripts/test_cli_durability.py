"""Changes that commands write to Redis are acknowledged when they are as durable as `durability` says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
from typer.testing import CliRunner

from tests.scripts.test_log_stray_entries import STRAY
from tests.support.logs import TOPIC, append, broker, given_log
from tests.support.many_servers import cluster
from tests.support.valkey import ValkeyServer
from tests.support.waitaof import needs_waitaof
from tidegate.cli.client.redis_access import connected, durable_change, servers
from tidegate.cli.failures import DONE, FAILED
from tidegate.cli.main import command_line
from tidegate.cli.places import RedisServer
from tidegate.settings import Settings
from tidegate.store.store import Store

UNCONFIRMED = "the change is stored, but not as durable as TIDEGATE_DURABILITY=replicated:1"


@pytest.fixture
async def primary(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ValkeyServer]:
    """A server of its own, which may have a replica."""
    server = ValkeyServer(["--repl-diskless-sync-delay", "0"])
    monkeypatch.setenv("TIDEGATE_REDIS_URL", server.url)
    monkeypatch.setenv("TIDEGATE_DURABILITY", "replicated:1")
    monkeypatch.setenv("TIDEGATE_DURABILITY_TIMEOUT_MS", "100")
    yield server
    server.stop()


def run(*words: object) -> tuple[int, str]:
    """A command: its exit code and what it printed."""
    done = CliRunner().invoke(command_line, list(map(str, words)))
    return done.exit_code, done.output


CHANGES = {
    "user": ("user", "create", "ann", "--password-file", "{secret}", "--yes"),
    "acl": ("acl", "add", "User:ann", "read", "topic:orders", "--yes"),
    "quota": ("quota", "set", "user=ann", "producer_byte_rate", "1000", "--yes"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_without_a_replica_is_not_acknowledged(primary: ValkeyServer, tmp_path: Path, change: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")

    code, printed = run(*(word.format(secret=secret) for word in CHANGES[change]))

    assert (code, UNCONFIRMED in printed) == (FAILED, True), printed


def test_change_that_a_replica_has_is_acknowledged(primary: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_DURABILITY_TIMEOUT_MS", "60000")
    replica = ValkeyServer(["--replicaof", f"127.0.0.1 {primary.port}"])
    try:
        code, printed = run(*CHANGES["acl"])
    finally:
        replica.stop()
    assert code == DONE, printed


async def test_repair_without_a_replica_is_not_acknowledged(primary: ValkeyServer) -> None:
    store = Store(Settings(redis_url=primary.url, durability="memory"))
    await store.start()
    try:
        await given_log(store)
        record = {"id": TOPIC.topic_hex, "partitions": 1, "wanted": 1, "format": "batch", "state": "ready", "config": 0}
        await store.command("HSET", store.cluster_keys.topics, "default/orders", json.dumps(record))
        async with broker(store.settings) as logs:
            await append(logs.partition(TOPIC, 0))
        entry_id, fields = next(iter(STRAY.values()))
        await store.command("XADD", logs.partition(TOPIC, 0).keys.log, entry_id, *fields)

        assert (await asyncio.to_thread(run, "topic", "repair", "orders", "--dry-run"))[0] == DONE
        code, printed = await asyncio.to_thread(run, "topic", "repair", "orders", "--yes")

        assert (code, UNCONFIRMED in printed) == (FAILED, True), printed
    finally:
        await store.close()


@needs_waitaof
def test_change_of_every_server_of_redis_cluster_is_proved_at_each() -> None:
    with cluster() as url:
        server = RedisServer(Settings(redis_url=url, durability="fsynced", durability_timeout_ms=60_000))
        with connected(server) as client:
            for name, one in servers(client).items():
                if name != next(iter(servers(client))):
                    one.config_set("appendonly", "yes")
            with pytest.raises(redis.RedisError, match="appendonly"), durable_change(client, server, everywhere=True):
                client.set("tidegate:{a}:x", 1)
            for one in servers(client).values():
                one.config_set("appendonly", "yes")
            with durable_change(client, server, everywhere=True):
                client.set("tidegate:{a}:x", 1)
            with durable_change(client, server):
                client.set("tidegate:{cluster}:x", 1)
