"""Primaries die under sentinels, with idempotent producers and two groups of real clients."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import AsyncExitStack

import pytest
from kio.schema.errors import ErrorCode

from bench.cluster import Cluster, free_port
from tests.kit.member import Member
from tests.kit.wire import RawClient
from tests.support.barriers import stabilize
from tests.support.broker_logs import tracebacks
from tests.support.load import Load
from tests.support.sentinels import Watched
from tidegate.app import App
from tidegate.server import sweeping
from tidegate.settings import Settings

PATIENCE_S = 120.0
AWAY = {ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress}
SETTINGS = {"TIDEGATE_DURABILITY": "replicated:2", "TIDEGATE_DURABILITY_TIMEOUT_MS": "20000"}
"""Of both replicas: a fail-over on request does not choose the one that has most."""
KEEPING = ("--appendonly", "yes")
"""A server that comes back empty may be the next primary where sentinels are slow: then all is lost."""


@pytest.mark.timeout(600)  # a server that returns is made a replica after 8 s and more, by each sentinel's own clock
@pytest.mark.parametrize(
    "harm",
    ["killed", pytest.param("stopped", marks=pytest.mark.slow), pytest.param("put down", marks=pytest.mark.slow)],
)
async def test_nothing_acknowledged_is_lost_over_fail_overs(rng: random.Random, harm: str) -> None:
    with (
        Watched(replicas=2, extra=KEEPING, down_after_ms=3_000) as watched,
        Cluster(brokers=3, settings=SETTINGS, redis_url=watched.url) as cluster,
    ):
        async with Load(cluster.bootstrap) as load:
            for _ in range(2):
                await asyncio.sleep(rng.uniform(3, 5))
                await asyncio.to_thread(watched.wait_in_sync)
                await harmed(watched, harm)
                await asyncio.to_thread(watched.wait_in_sync)
                await load.is_alive(cluster.brokers)
        print(await load.check())
        assert not tracebacks(cluster)


async def harmed(watched: Watched, harm: str) -> None:
    """The primary is gone, hangs for a while, or is put down by request; another one is in its place."""
    primary = watched.primary()
    assert primary.process is not None
    if harm == "put down":
        await asyncio.to_thread(watched.fail_over)
        return
    if harm == "killed":
        primary.kill()
    else:
        os.kill(primary.process.pid, signal.SIGSTOP)
    try:
        await asyncio.to_thread(watched.wait_for_another, primary.port)
        await asyncio.sleep(1)
    finally:
        if harm == "killed":
            await asyncio.to_thread(primary.start)
        else:
            os.kill(primary.process.pid, signal.SIGCONT)


async def test_members_survive_two_fail_overs_without_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "REBALANCE_WINDOW_MS", 0)  # the clients do not connect again
    with Watched(replicas=2, down_after_ms=3_000) as watched:
        async with AsyncExitStack() as stack:
            addresses = []
            for _ in range(2):
                settings = Settings(
                    redis_url=watched.url, port=free_port(), admin_port=0, group_initial_rebalance_delay_ms=0,
                    durability="replicated:1",
                )  # fmt: skip
                app = App(settings)
                stack.push_async_callback(app.close)
                await app.start()
                addresses.append(f"127.0.0.1:{settings.port}")
            clients = [await stack.enter_async_context(await RawClient.connect(address)) for address in addresses]
            members = [Member(client, "orders") for client in clients]
            await stabilize(*members)
            generation = members[0].generation

            taken: set[str] = set()
            runs = [asyncio.create_task(live(member, taken)) for member in members]
            await asyncio.to_thread(watched.fail_over)
            await asyncio.to_thread(watched.wait_in_sync)
            await all_taken(members, taken, runs)
            before = watched.primary()
            os.kill(before.process.pid, signal.SIGSTOP)  # type: ignore[union-attr]
            try:
                await asyncio.to_thread(watched.wait_for_another, before.port)
                await all_taken(members, taken, runs)
            finally:
                os.kill(before.process.pid, signal.SIGCONT)  # type: ignore[union-attr]
            for life in runs:
                life.cancel()
            assert {member.generation for member in members} == {generation}


async def live(member: Member, taken: set[str]) -> None:
    """Heartbeats until cancelled; ends at the first answer that is not retriable."""
    while (code := await member.heartbeat()) in AWAY or code is ErrorCode.none:
        if code is ErrorCode.none:
            taken.add(member.member_id)
        await asyncio.sleep(0.2)
    raise AssertionError(f"a heartbeat got {code}")


async def all_taken(members: list[Member], taken: set[str], runs: list[asyncio.Task[None]]) -> None:
    """From now on a heartbeat of every member is taken. Raises what ended a member's run."""
    taken.clear()
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < len(members):
            await asyncio.wait(runs, timeout=0.02, return_when=asyncio.FIRST_COMPLETED)
            for run in runs:
                if run.done():
                    run.result()
