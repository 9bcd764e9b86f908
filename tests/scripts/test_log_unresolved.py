"""What producers are answered while the outcome of an append is unknown, and what their later batches get.

Batches of a client that are under way together are filed one after the other. The first is sent to Redis, which
stands still: nobody knows whether it will be in the log. The others were never sent.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.logs import TOPIC, append, append_later, batch, broker, given_log, read_all
from tests.support.proxy import LinkFault, Proxy
from tests.support.valkey import ValkeyServer
from tidegate.errors import RequestTimedOut, StoreUnavailable
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.settings import Settings
from tidegate.store.store import Store

COMMAND_TIMEOUT_MS = 2_500


class PausedServer(ValkeyServer):
    """A server that can stand still."""

    def pause(self) -> None:
        """Answer nothing from now on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Answer what came meanwhile."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
async def server() -> AsyncIterator[PausedServer]:
    opened = PausedServer()
    yield opened
    opened.stop()


@pytest.fixture
async def settings(server: PausedServer, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Those of an impatient broker on that server."""
    monkeypatch.setattr("tidegate.log.admission.SEQUENCE_GAP_TIMEOUT_MS", 100)
    monkeypatch.setattr(Settings, "redis_connect_timeout_ms", 2_500)
    store = Store(Settings(redis_url=server.url))
    await store.start()
    await given_log(store)
    await store.close()
    return Settings(redis_url=server.url, redis_command_timeout_ms=COMMAND_TIMEOUT_MS)


@asynccontextmanager
async def behind_proxy(server: PausedServer, settings: Settings) -> AsyncIterator[tuple[Proxy, Logs]]:
    """The logs of a broker whose links to the server may lose requests; producer 9 has stored its first batch."""
    proxy = Proxy(server.port)
    await proxy.start()
    try:
        async with broker(settings, redis_url=proxy.url) as logs:
            await append(logs.partition(TOPIC, 0), of(9, 0))
            yield proxy, logs
    finally:
        await proxy.close()


def of(producer_id: int, sequence: int, epoch: int = 0) -> Any:
    """A batch of one record."""
    return batch(producer_id=producer_id, epoch=epoch, sequence=sequence)


async def outcome(future: asyncio.Future[Any]) -> Any:
    """The type of an error, or the base offset."""
    try:
        return (await asyncio.wait_for(future, 30)).base_offset
    except Exception as error:  # noqa: BLE001 - what it is is asserted
        return type(error)


async def outcomes(log: PartitionLog, *batches: Any) -> list[Any]:
    """What batches filed together get."""
    return [await outcome(future) for future in [append_later(log, one) for one in batches]]


async def stored(log: PartitionLog, *batches: Any) -> list[int]:
    """The base offsets of batches that a producer sends again until it knows them all."""
    async with asyncio.timeout(30):
        while True:
            found = await outcomes(log, *batches)
            if not {RequestTimedOut, StoreUnavailable}.intersection(found):
                assert all(type(one) is int for one in found)
                return found


async def reachable(log: PartitionLog) -> None:
    """Wait until the log can be read again."""
    deadline = time.monotonic() + 30
    while True:
        try:
            await log.end_offset()
            return
        except StoreUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def lost(proxy: Proxy, log: PartitionLog, *batches: Any) -> None:
    """File batches that Redis never gets, of which nobody knows that; the log can be read again."""
    proxy.cut_all(LinkFault.DROP_REQUEST)
    proxy.refusing = True
    assert await outcomes(log, *batches) == [RequestTimedOut] * len(batches)
    proxy.refusing = False
    await reachable(log)


async def numbers(log: PartitionLog, producer_id: int) -> list[int]:
    """The sequences of a producer, in the order of the log."""
    return [one.base_sequence for one in await read_all(log) if one.producer_id == producer_id]


@pytest.mark.parametrize("producer_id", [-1, 9])
async def test_append_redis_stalls_answers_request_timed_out(
    server: PausedServer, settings: Settings, producer_id: int
) -> None:
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        server.pause()
        assert await outcomes(log, of(producer_id, 0)) == [RequestTimedOut]
        server.go_on()
        await reachable(log)


@pytest.mark.parametrize("first", [0, 1], ids=["a new producer", "a known producer"])
async def test_append_behind_unknown_outcome_gets_its_answer(
    server: PausedServer, settings: Settings, first: int
) -> None:
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await log.ensure()
        for sequence in range(first):
            await append(log, of(9, sequence))
        sent = [of(9, first + place) for place in range(4)]
        server.pause()
        early = append_later(log, sent[0])
        await asyncio.sleep(0)  # it is on its way, alone
        behind = [append_later(log, one) for one in sent[1:3]]
        assert [await outcome(future) for future in (early, *behind)] == [RequestTimedOut] * 3
        server.go_on()
        await reachable(log)

        late = await outcomes(log, sent[3])  # was under way from the client when the others were answered
        assert late == [RequestTimedOut]
        again = await stored(log, *sent)
        assert again == [first, first + 1, first + 2, first + 3]
        assert await numbers(log, 9) == list(range(first + 4))


async def test_append_behind_lost_request_is_not_out_of_order(server: PausedServer, settings: Settings) -> None:
    async with behind_proxy(server, settings) as (proxy, logs):
        log = logs.partition(TOPIC, 0)
        await lost(proxy, log, of(9, 1))
        # It is not in the log, and may still be appended.
        assert await outcomes(log, of(9, 2)) == [RequestTimedOut]
        assert await stored(log, of(9, 1), of(9, 2)) == [1, 2]


async def test_append_after_one_of_two_retries_is_not_out_of_order(server: PausedServer, settings: Settings) -> None:
    """The retry of a batch is stored; the next is still to be sent again when one behind both arrives."""
    async with behind_proxy(server, settings) as (proxy, logs):
        log = logs.partition(TOPIC, 0)
        await lost(proxy, log, of(9, 1), of(9, 2))
        assert await stored(log, of(9, 1)) == [1]
        assert await outcomes(log, of(9, 3)) == [RequestTimedOut]
        assert await stored(log, of(9, 2), of(9, 3)) == [2, 3]
        assert await numbers(log, 9) == [0, 1, 2, 3]


async def test_append_executed_after_its_answer_is_found(server: PausedServer, settings: Settings) -> None:
    late = of(9, 1)
    async with behind_proxy(server, settings) as (proxy, logs), broker(settings) as others:
        log = logs.partition(TOPIC, 0)
        proxy.cut_all(LinkFault.DROP_REQUEST)
        proxy.refusing = True
        mark = b"%b:%d" % (logs.writer.name, 2)
        assert await outcomes(log, late) == [RequestTimedOut]
        proxy.refusing = False
        await reachable(log)
        assert await outcomes(log, of(9, 2)) == [RequestTimedOut]
        # Only now does Redis get the command that was on its way.
        await others.store.command("XADD", log.keys.log, "NOMKSTREAM", "1-1", "w", mark, "b", bytes(late.buffer))
        assert await stored(log, of(9, 1), of(9, 2)) == [1, 2]
        assert await numbers(log, 9) == [0, 1, 2]


async def test_append_never_sent_answers_unavailable(server: PausedServer, settings: Settings) -> None:
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        server.pause()
        assert await outcomes(log, of(9, 0)) == [RequestTimedOut]
        assert await outcomes(log, of(8, 0), of(9, 1), of(-1, -1), of(8, 1)) == [
            StoreUnavailable, RequestTimedOut, StoreUnavailable, StoreUnavailable,
        ]  # fmt: skip
        server.go_on()
        await reachable(log)

        assert await outcomes(log, of(8, 2)) == [StoreUnavailable]  # not appended ahead of what is to come again
        await stored(log, of(8, 0), of(8, 1), of(8, 2))
        assert await numbers(log, 8) == [0, 1, 2]


async def test_append_memory_full_later_batch_gets_the_same_answer(server: PausedServer, settings: Settings) -> None:
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        await logs.store.command("CONFIG", "SET", "maxmemory", "1")
        assert await outcomes(log, of(9, 0), of(9, 1)) == [StoreUnavailable, StoreUnavailable]
        await logs.store.command("CONFIG", "SET", "maxmemory", "0")
        assert await outcomes(log, of(9, 2)) == [StoreUnavailable]
        assert await stored(log, of(9, 0), of(9, 1), of(9, 2)) == [1, 2, 3]


async def test_append_unknown_producer_after_redis_was_away_waits_for_its_first_batch(settings: Settings) -> None:
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        # Its first batch was refused before it reached the log: the topic could not be looked up.
        logs.store.metadata_node.outage.observe_wait(2.0)
        assert await outcomes(log, of(9, 1)) == [StoreUnavailable]
        assert await stored(log, of(9, 0), of(9, 1)) == [1, 2]


async def test_append_given_up_producer_bumps_its_epoch_continues(server: PausedServer, settings: Settings) -> None:
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log, of(9, 0))
        server.pause()
        assert await outcomes(log, of(9, 1)) == [RequestTimedOut]
        server.go_on()
        await reachable(log)
        await stored(log, of(9, 0, epoch=1), of(9, 1, epoch=1))


async def test_close_answers_appends_in_flight_with_request_timed_out(server: PausedServer, settings: Settings) -> None:
    async with broker(settings, redis_command_timeout_ms=30_000) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log, of(9, 0))
        server.pause()
        in_flight = append_later(log, of(9, 1))
        await asyncio.sleep(0)
        behind, other = append_later(log, of(9, 2)), append_later(log, of(8, 0))

    assert [await outcome(one) for one in (in_flight, behind)] == [RequestTimedOut, RequestTimedOut]
    assert await outcome(other) is StoreUnavailable
