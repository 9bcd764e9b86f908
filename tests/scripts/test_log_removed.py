"""Topics that are removed while batches are on their way to Redis: each batch is answered, and once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.logs import TOPIC, append, append_later, batch, broker, given_log
from tests.support.whole_broker import WholeBroker
from tidegate.errors import KafkaError, UnknownTopicOrPartition
from tidegate.log.append import Appended
from tidegate.log.partition import PartitionLog
from tidegate.log.record_format.record_log import RecordLog
from tidegate.settings import Settings
from tidegate.store.key_lanes import KeyLanes
from tidegate.store.outcome import Failure, Gone, Moved, Refused, Stale, Unknown
from tidegate.store.store import Store

ANSWER_S = 30.0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(ANSWER_S):
        while not condition():
            await asyncio.sleep(0)


async def in_flight(log: PartitionLog, *batches: Any) -> list[asyncio.Future[Any]]:
    """Batches, the first of which was sent."""
    waiting = [append_later(log, one) for one in batches[:1]]
    await until(lambda: log._appends._in_flight is not None)
    return waiting + [append_later(log, one) for one in batches[1:]]


async def errors(waiting: list[asyncio.Future[Any]]) -> list[type]:
    """The types of the outcomes, once there are all; each future refuses a second one."""
    async with asyncio.timeout(ANSWER_S):
        return [type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)]


@pytest.mark.parametrize("producer_id", [-1, 9])
async def test_append_in_flight_topic_removed_is_answered(store: Store, settings: Settings, producer_id: int) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        epoch = min(producer_id, 0)
        batches = [batch(producer_id=producer_id, epoch=epoch, sequence=min(producer_id, at)) for at in range(2)]
        waiting = await in_flight(log, *batches)
        logs.forget_topic(TOPIC)

        assert await errors(waiting) == [UnknownTopicOrPartition] * 2
        assert log._appends.unresolved.is_empty(log.loop.time())


async def test_append_in_flight_refresh_finds_the_topic_deleted_is_answered(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        waiting = await in_flight(log, batch(), batch())
        log._appends._on_refreshed([], UnknownTopicOrPartition())

        assert await errors(waiting) == [UnknownTopicOrPartition] * 2


@pytest.mark.parametrize("failure", [Stale, Gone, Moved, Refused, Unknown])
async def test_append_in_flight_fails_after_its_topic_was_removed_is_answered(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, failure: type[Failure]
) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        sent: list[Callable[[Any], None]] = []
        monkeypatch.setattr(KeyLanes, "append", lambda *args: sent.append(args[-1]))
        waiting = await in_flight(log, batch(), batch())
        logs.forget_topic(TOPIC)
        sent[0](failure("of the server"))

        assert all(issubclass(one, KafkaError) for one in await errors(waiting))


async def test_append_in_flight_found_elsewhere_in_the_log_is_answered(store: Store, settings: Settings) -> None:
    """Another stream took the place of the log meanwhile."""
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        waiting = await in_flight(log, batch())
        sent = log._appends._in_flight
        assert sent is not None
        elsewhere: Any = SimpleNamespace(writer=sent.entry.writer, base=sent.base + 7)
        log._appends.found(elsewhere)

        assert await errors(waiting) == [Appended]


async def test_record_append_in_flight_topic_removed_is_answered(store: Store, settings: Settings) -> None:
    whole = await WholeBroker(settings, 1).start()
    try:
        await whole.create("r", 1, tidegate_format="record")
        topic = whole.context.catalog.get("default", "r")
        assert topic is not None
        log: Any = whole.context.logs.partition(topic, 0)
        assert isinstance(log, RecordLog)
        await append_later(log, batch())  # type: ignore[arg-type]
        waiting = [append_later(log, batch(), acks_all=acks) for acks in (True, False)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        whole.context.logs.forget_topic(topic)
        waiting.append(append_later(log, batch()))  # type: ignore[arg-type]

        assert len(await errors(waiting)) == 3
    finally:
        await whole.close()
