"""What runs beside the log continues, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.logs import TOPIC, append, broker, given_log
from tidegate.errors import StoreUnavailable, UnknownTopicOrPartition
from tidegate.log.logs import Logs
from tidegate.log.upkeep import upkeep_item
from tidegate.settings import Settings
from tidegate.store.store import Store


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("step", ["_sweep", "_poll"])
async def test_fault_does_not_end_a_loop(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    calls: list[int] = []

    async def fail_once(self: Logs) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("a fault of this very pass")

    monkeypatch.setattr(Logs, step, fail_once)
    monkeypatch.setattr("tidegate.log.logs._SWEEP_MS", 20)
    monkeypatch.setattr("tidegate.log.logs.POLL_MS", 20)
    async with broker(settings):
        await until(lambda: len(calls) >= 3)


async def test_fault_of_one_partition_harms_no_other(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_log(store)
    monkeypatch.setattr("tidegate.log.logs._SWEEP_MS", 100_000)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)

        def fail() -> None:
            raise ValueError("of this partition")

        class Faulty:
            topic, index = log.topic, 7
            progress: Any = type("Progress", (), {"write": staticmethod(fail)})
            guarded = log.guarded

        faulty: Any = Faulty()
        logs.dirty = dict.fromkeys((faulty, log))
        await logs._sweep()
        await store.command("PING")

        assert int(await store.command("HGET", log.keys.meta, "batches")) == 1


async def test_upkeep_that_could_not_be_queued_is_queued_later(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_log(store)
    monkeypatch.setattr("tidegate.log.logs._SWEEP_MS", 100_000)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        send, failing = logs.store.metadata_node.control.send, True

        def away(args: Any, on_reply: Any, timeout_ms: int | None = None) -> None:
            if failing and args[0] == "ZADD":
                on_reply(StoreUnavailable("away"))
            else:
                send(args, on_reply, timeout_ms)

        monkeypatch.setattr(logs.store.metadata_node.control, "send", away)
        await logs._sweep()
        failing = False
        await logs._sweep()
        await logs.store.command("PING")

        assert await store.command("ZRANGE", store.cluster_keys.upkeep, 0, -1) == [upkeep_item(TOPIC, 0).encode()]


async def test_topic_deleted_while_its_log_state_loads_is_reported(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        reported: list[object] = []
        logs.partition(TOPIC, 0).read(0, 1 << 20, True, reported.append)
        logs.forget_topic(TOPIC)  # in the same tick: nothing of the load has run
        await until(lambda: bool(reported))
        assert isinstance(reported[0], UnknownTopicOrPartition)
