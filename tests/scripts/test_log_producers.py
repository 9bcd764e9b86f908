"""Concurrent and idempotent producers, by the numbers of the specification of logs; two brokers take turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.log_broker import produce_request
from tests.support.logs import batch_bytes
from tests.support.transactions import NONE, Brokers, brokers_of
from tidegate.apis import delete_records, fetch, produce
from tidegate.records.batch import iter_headers
from tidegate.settings import Settings
from tidegate.store.store import Store

assert delete_records and fetch and produce  # registered

GAP, FENCED = ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_producer_epoch
P = 7_000
LAST = 2**31 - 1


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Two brokers with the topic `t` of one partition; `store` has emptied the server."""
    async with brokers_of(settings, 2) as opened:
        await opened.create("t")
        yield opened


async def _send(
    brokers: Brokers, sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = P, version: int = 9
) -> tuple[ErrorCode, int]:
    """Code and base offset of one idempotent batch, sent to the next broker."""
    raw = batch_bytes(count, producer_id, epoch, sequence, timestamp=1_700_000_000_000)
    answer = await brokers.ask(produce_request([("t", [(0, raw)])], version=version))
    [found] = answer.responses[0].partition_responses
    return found.error_code, int(found.base_offset)


async def _codes(brokers: Brokers, sequences: Sequence[tuple[int, int]]) -> list[ErrorCode]:
    """The codes of batches of one record: (epoch, sequence)."""
    return [(await _send(brokers, sequence, epoch=epoch))[0] for epoch, sequence in sequences]


async def test_log_38_concurrent_producers(brokers: Brokers) -> None:
    async def produce(number: int) -> list[tuple[int, bytes]]:
        acknowledged = []
        for round_number in range(20):
            value = b"%d-%d" % (number, round_number)
            raw = batch_bytes(2, value=value)
            answer = await brokers.ask(produce_request([("t", [(0, raw)])]))
            [found] = answer.responses[0].partition_responses
            assert found.error_code is NONE
            acknowledged.append((int(found.base_offset), value))
        return acknowledged

    acknowledged = [one for of in await asyncio.gather(*map(produce, range(100))) for one in of]

    assert sorted(offset for offset, _ in acknowledged) == list(range(0, 4_000, 2))
    await brokers.fetch("t", end=4_000)
    stored: dict[int, bytes] = {}
    while len(stored) < 2_000:
        for batch in (await brokers.fetch("t", 2 * len(stored))).batches:
            [header] = iter_headers(batch.buffer)
            assert header.next_offset == header.base_offset + 2
            stored[batch.base_offset] = bytes(batch.buffer)
    assert all(stored[offset].count(value) == 2 for offset, value in acknowledged)


async def test_log_59_duplicate_at_another_broker(brokers: Brokers) -> None:
    assert [await _send(brokers, 0, 10) for _ in range(4)] == [(NONE, 0)] * 4
    assert (await brokers.fetch("t", end=10)).high_watermark == 10


async def test_log_60_window_of_five_batches(brokers: Brokers) -> None:
    brokers.clients.pop()
    assert [await _send(brokers, sequence) for sequence in range(6)] == [(NONE, offset) for offset in range(6)]
    assert await _send(brokers, 1) == (NONE, 1)
    assert await _codes(brokers, [(0, 0)]) == [GAP]


async def test_log_60_broker_that_has_not_read_the_sixth_batch(brokers: Brokers) -> None:
    """It may still know the first one: the offset that it answers is the true one, and nothing is appended."""
    for sequence in range(6):
        await _send(brokers, sequence)
    assert {await _send(brokers, 1) for _ in range(4)} == {(NONE, 1)}
    assert {await _send(brokers, 0) for _ in range(4)} <= {(NONE, 0), (GAP, -1)}
    assert await brokers.list_offset("t") == 6


async def test_log_61_gap(brokers: Brokers) -> None:
    await _send(brokers, 0, 5)
    assert await _codes(brokers, [(0, 6), (0, 6), (0, 5)]) == [GAP, GAP, NONE]


async def test_log_62_sequences_wrap(brokers: Brokers) -> None:
    await _send(brokers, LAST - 1)
    assert await _codes(brokers, [(0, LAST), (0, 0), (0, 1)]) == [NONE, NONE, NONE]


async def test_log_63_epochs_without_transactions(brokers: Brokers) -> None:
    await _send(brokers, 0, 8, epoch=1)
    assert await _codes(brokers, [(0, 8), (2, 3), (2, 0), (1, 8)]) == [FENCED, GAP, NONE, FENCED]


async def test_log_64_unknown_producer_id(brokers: Brokers) -> None:
    assert (await _send(brokers, 42))[0] is NONE
    assert (await _send(brokers, 42, producer_id=P + 1, version=12))[0] is NONE
    partition = {"partition_index": 0, "offset": -1}
    deleted = await brokers.ask(
        request(
            21,
            2,
            timeout=timedelta(seconds=5),
            topics=[{"name": "t", "partitions": [partition]}],
        )
    )
    [found] = deleted.topics[0].partitions
    assert (found.error_code, int(found.low_watermark)) == (NONE, 2)
    assert await _codes(brokers, [(0, 44), (0, 43)]) == [GAP, NONE]
