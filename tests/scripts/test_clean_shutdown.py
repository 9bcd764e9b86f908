"""An orderly stop of all brokers: Redis keeps a note of it over a restart, and a crash never brings a note back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.support.valkey import ValkeyServer
from tests.support.waitaof import needs_waitaof
from tidegate.cluster import clean_shutdown
from tidegate.cluster.broker_lease import NODE_ID_QUARANTINE_MS, BrokerLease
from tidegate.cluster.clean_shutdown import BEGIN_SERVING, begin_serving, can_note
from tidegate.errors import StoreUnavailable
from tidegate.groups.generation_guard import bump_all_generations
from tidegate.settings import Settings
from tidegate.store.store import Store

pytestmark = [pytest.mark.one_server, needs_waitaof]

EPOCH = 7
Make = Callable[..., BrokerLease]


@pytest.fixture
async def server() -> AsyncIterator[ValkeyServer]:
    started = ValkeyServer(["--appendonly", "yes"])
    yield started
    started.stop()


@pytest.fixture
async def kept(server: ValkeyServer) -> AsyncIterator[Store]:
    """The store of a server with an append-only file, in failover epoch 7."""
    opened = Store(Settings(redis_url=server.url))
    await opened.start()
    await opened.command("HSET", opened.cluster_keys.info, "incarnation", EPOCH, "groups_incarnation", EPOCH)
    yield opened
    await opened.close()


@pytest.fixture
async def brokers(kept: Store) -> AsyncIterator[Make]:
    made: list[BrokerLease] = []

    def make(port: int) -> BrokerLease:
        made.append(BrokerLease(kept, kept.settings, {"PLAINTEXT": ("127.0.0.1", port)}, None))
        return made[-1]

    yield make
    for lease in made:
        await lease._loops.close()


async def start(*leases: BrokerLease) -> None:
    """Start without the loop of renewals."""
    for lease in leases:
        await lease.start()
        await lease._loops.close()


async def noted(store: Store) -> bytes | None:
    found: bytes | None = await store.command("HGET", store.cluster_keys.info, "clean_shutdown")
    return found


async def expire(store: Store, lease: BrokerLease, ms: int) -> None:
    """The lease was last renewed so long ago, by either clock."""
    lease._renewed_s -= ms / 1000
    await store.command("ZINCRBY", store.cluster_keys.leases, -ms, lease.node_id)


async def crash(server: ValkeyServer, store: Store) -> None:
    """Kill the server, start it on its file, and wait until every lane is connected again."""
    server.kill()
    while store.available:
        await asyncio.sleep(0.01)
    server.start()
    while not store.available:
        await asyncio.sleep(0.01)


async def test_last_broker_that_stops_notes_a_clean_shutdown(kept: Store, brokers: Make) -> None:
    one, two = brokers(9092), brokers(9093)
    await start(one, two)

    await one.close()
    assert await noted(kept) is None, "another broker serves"
    await two.close()

    assert await noted(kept) == b"7"
    assert await bump_all_generations(kept, EPOCH + 1) == 0
    assert await noted(kept) is None
    assert await kept.command("HGET", kept.cluster_keys.info, "groups_incarnation") == b"8"


async def test_killed_broker_prevents_the_note_until_it_is_replaced(kept: Store, brokers: Make) -> None:
    killed, other = brokers(9092), brokers(9093)
    await start(killed, other)
    await expire(kept, killed, 20_000)
    await other.close()
    assert await noted(kept) is None, "it may only stand still"

    replaced, other = brokers(9092), brokers(9093)
    await start(replaced, other)
    await replaced.close()
    await other.close()

    assert await noted(kept) == b"7", "its port is another process's now"


async def test_forgotten_lease_prevents_the_note_in_its_failover_epoch(kept: Store, brokers: Make) -> None:
    killed, other = brokers(9092), brokers(9093)
    await start(killed)
    await expire(kept, killed, 20_000 + NODE_ID_QUARANTINE_MS)
    await start(other)
    assert other.node_id == killed.node_id

    await other.close()
    assert await noted(kept) is None

    await kept.command("HSET", kept.cluster_keys.info, "incarnation", EPOCH + 1)
    after = brokers(9093)
    await start(after)
    await after.close()
    assert await noted(kept) == b"8"


async def test_crash_of_a_broker_that_began_to_serve_skips_generations(kept: Store) -> None:
    info = kept.cluster_keys.info
    await kept.command("HSET", info, "clean_shutdown", EPOCH)

    replies = [await kept.run(BEGIN_SERVING, [info], EPOCH + 1) for _ in range(2)]

    assert replies == [[0, 1], [0, 1]], "nothing is lost, and each start has to prove its change"
    assert await kept.run(BEGIN_SERVING, [info], EPOCH + 2) == [1, 1], "a later epoch: it may have served"


async def test_broker_that_takes_its_lease_again_ends_the_note(kept: Store, brokers: Make) -> None:
    paused = brokers(9092)
    await start(paused)
    await expire(kept, paused, 20_000)
    await kept.command("HSET", kept.cluster_keys.info, "clean_shutdown", EPOCH)

    await paused.keep_once()

    assert paused.held
    assert await noted(kept) is None


async def test_lease_is_missing_until_the_end_of_the_note_is_on_disk(
    kept: Store, brokers: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = brokers(9092)
    await start(paused)
    await expire(kept, paused, 20_000)
    await kept.command("HSET", kept.cluster_keys.info, "clean_shutdown", EPOCH)
    late: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    late.set_result([0, 0])

    with monkeypatch.context() as patched, pytest.raises(StoreUnavailable, match="not synced"):
        patched.setattr(clean_shutdown, "_synced", lambda *_: late)
        await paused.keep_once()
    assert not paused.held
    assert await noted(kept) == b"starting"

    await paused.keep_once()
    assert paused.held
    assert await noted(kept) is None


async def test_note_survives_a_restart_of_redis_and_its_end_survives_a_kill(
    server: ValkeyServer, kept: Store, brokers: Make
) -> None:
    one = brokers(9092)
    await start(one)
    await one.close()
    await kept.command("WAITAOF", 1, 0, 10_000)
    await crash(server, kept)

    assert await noted(kept) == b"7"
    assert not await begin_serving(kept, EPOCH + 1)
    await crash(server, kept)

    assert await noted(kept) != b"7"
    assert await begin_serving(kept, EPOCH + 2), "generations were opened meanwhile, and may be lost"


async def test_note_needs_an_append_only_file_and_no_replicas(kept: Store, store: Store, server: ValkeyServer) -> None:
    assert await can_note(kept)
    assert not await can_note(store), "without an append-only file"

    replica = ValkeyServer(["--replicaof", f"127.0.0.1 {server.port}"])
    try:
        while b"connected_slaves:1" not in await kept.command("INFO", "replication"):
            await asyncio.sleep(0.01)
        assert not await can_note(kept)
    finally:
        replica.stop()


async def test_note_without_provable_end_causes_a_warning(kept: Store, capsys: pytest.CaptureFixture[str]) -> None:
    await kept.command("HSET", kept.cluster_keys.info, "clean_shutdown", EPOCH)
    await kept.command("CONFIG", "SET", "appendonly", "no")

    assert not await begin_serving(kept, EPOCH + 1)

    assert await noted(kept) is None
    assert "clean_shutdown_not_forgotten" in capsys.readouterr().out
