"""`tidegate topic compact`: a stored request, served by whichever broker takes it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import redis
import typer
from typer.testing import CliRunner

from tests.scripts.test_compaction import add, records, topic_of
from tests.support.built import ENDPOINTS
from tests.support.logs import TOPIC, broker, given_log
from tests.support.whole_broker import WholeBroker
from tidegate.broker import build
from tidegate.cli.client import compaction_requests as command
from tidegate.cli.client.stray_entries import Partition
from tidegate.cli.commands import topics
from tidegate.command_line import command_line
from tidegate.log import compaction_requests, compactor
from tidegate.log.compaction_requests import TAKE_COMPACTION, UPDATE_COMPACTION, CompactionRequests
from tidegate.log.logs import Logs
from tidegate.log.upkeep import no_refresh
from tidegate.settings import Settings
from tidegate.store.keys import LogKeys
from tidegate.store.store import Store

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def outcomes_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for appends of unknown outcome is 60 s otherwise."""
    monkeypatch.setattr(compactor, "OUTCOME_KNOWN_S", 0.0)
    monkeypatch.setattr(compactor, "_COMMAND_TIMEOUTS", 0)


def partition(store: Store, topic: Any = TOPIC, index: int = 0) -> Partition:
    """A partition as the command lists it."""
    keys = LogKeys.of(store.prefix, topic.org, topic.name, index, topic.topic_hex)
    return Partition(topic.org, topic.name, index, topic.topic_hex, keys)


def requests_of(logs: Logs, topic: Any) -> CompactionRequests:
    """Those of one broker, which knows one partition."""
    item = command.item_of(partition(logs.store, topic))
    return CompactionRequests(logs.store, lambda asked: logs.partition(topic, 0) if asked == item else None, no_refresh)


async def compact(store: Store, *partitions: Partition, timeout_s: float = WAIT_S) -> list[dict[str, Any]]:
    """What the command does, beside the brokers."""
    with redis.Redis.from_url(store.settings.redis_url) as client:
        return await asyncio.to_thread(command.compact, client, store.cluster_keys, partitions, timeout_s, poll_s=0.05)


async def test_compaction_request_is_served_at_once(store: Store, settings: Settings) -> None:
    await given_log(store)
    topic = topic_of(min_cleanable_dirty_ratio=1.0)
    async with broker(settings) as logs, broker(settings) as others:
        served = [requests_of(logs, topic), requests_of(others, topic)]
        for one in served:
            one.start()
        log = logs.partition(topic, 0)
        await add(log, (b"a", b"1"), (b"a", b"2"))
        await add(log, (b"end", b"1"))
        [row] = await compact(store, partition(store))
        assert (row["offset"], row["records_dropped"], row["error"]) == (2, 1, "")
        assert row["bytes_before"] > row["bytes_after"] > 0
        assert [one[0] for one in await records(log)] == [1, 2]

        await add(log, (b"a", b"3"))
        [row] = await compact(store, partition(store))
        assert (row["offset"], row["records_dropped"]) == (3, 0)
        [row] = await compact(store, partition(store))
        assert (row["records_dropped"], row["error"]) == (0, "")
        for one in served:
            await one.close()


async def test_compaction_request_survives_its_broker(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_requests, "LEASE_MS", 300)
    await given_log(store)
    topic = topic_of()
    async with broker(settings) as logs, broker(settings) as others:
        log = logs.partition(topic, 0)
        await add(log, (b"a", b"1"), (b"a", b"2"))
        await add(log, (b"end", b"1"))
        dying, taken = requests_of(logs, topic), asyncio.Event()

        async def hang(*_: object) -> str:
            taken.set()
            await asyncio.Event().wait()
            return ""

        monkeypatch.setattr(dying, "_result", hang)
        dying.start()
        asked = asyncio.create_task(compact(store, partition(store)))
        async with asyncio.timeout(WAIT_S):
            await taken.wait()
        await asyncio.sleep(0.6)  # longer than its lease, which it renews
        assert not asked.done()
        await dying.close()
        successor = requests_of(others, topic)
        successor.start()
        [row] = await asked
        assert (row["records_dropped"], row["error"]) == (1, "")
        await successor.close()


async def test_compaction_request_keeps_its_result(store: Store) -> None:
    """A lease that is renewed late must not make a served request one that is to be taken again."""
    key, item = store.cluster_keys.compactions, command.item_of(partition(store))
    await store.command("HSET", key, item, command.REQUESTED)
    (taken,) = await store.run(TAKE_COMPACTION, [key], 10_000)
    assert taken.decode() == item
    await store.run(UPDATE_COMPACTION, [key], item, "", 10_000)
    for result, kept in (("done {}", b"done {}"), ("", b"done {}"), ("failed late", b"done {}")):
        await store.run(UPDATE_COMPACTION, [key], item, result, 10_000)
        assert await store.command("HGET", key, item) == kept
    (taken,) = await store.run(TAKE_COMPACTION, [key], 10_000)
    assert not taken


async def test_compaction_request_fails_with_its_reason(store: Store, settings: Settings) -> None:
    await given_log(store)
    deleted = replace(TOPIC.config, cleanup_policy=frozenset({"delete"}))
    async with broker(settings) as logs:
        served = requests_of(logs, replace(TOPIC, config=deleted))
        served.start()
        first, second = await compact(store, partition(store), partition(store, index=1))
        assert first["error"] == "cleanup.policy of the topic has no compact"
        assert second["error"] == "there is no such partition"
        await served.close()
    [row] = await compact(store, partition(store), timeout_s=0.2)
    assert row["error"] == "not done within 0.2 s: no broker took the request"


async def test_compaction_request_for_what_another_broker_has_just_made(store: Store, settings: Settings) -> None:
    there = await WholeBroker(settings).start()
    here = build(settings, store, ENDPOINTS)  # its topics are not loaded yet
    assert here.logs.retention is not None
    served = here.logs.retention._requests
    served.start()
    try:
        topic = await there.create("t")
        [row] = await compact(store, partition(store, topic))
        assert row["error"] == "cleanup.policy of the topic has no compact"
        await there.context.catalog.alter_configs("default", "t", lambda now: now | {"cleanup.policy": "compact"})
        await here.logs.start()
        [row] = await compact(store, partition(store, topic))
        assert (row["offset"], row["error"]) == (0, "")
    finally:
        await here.logs.close()
        await here.catalog.close()
        await there.close()


@pytest.mark.parametrize("confirmed", [False, True])
async def test_compaction_is_requested_only_if_confirmed(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, confirmed: bool
) -> None:
    there = await WholeBroker(settings).start()
    await there.create("t")
    await there.close()
    notices = []

    def confirm(cluster: str, change: str, yes: bool) -> None:
        notices.append(f"{cluster}: {change}")
        if not confirmed:
            raise typer.Exit(1)

    monkeypatch.setattr(topics, "confirm_change", confirm)
    words = ["topic", "compact", "t", "--timeout", "1", "--redis-url", settings.redis_url]
    done = await asyncio.to_thread(CliRunner().invoke, command_line, words)
    assert done.exit_code == 1, "not confirmed, or no broker took the request"
    assert bool(await store.command("EXISTS", store.cluster_keys.compactions)) is confirmed
    [notice] = notices
    assert "of all partitions of t, records" in notice
