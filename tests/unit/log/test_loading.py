"""Loading and saving the snapshot of a log in slices, so that the event loop runs other work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tests.support.logs import batch_bytes
from tidegate.log import loading, open_transactions, progress
from tidegate.log.open_transactions import Aborted
from tidegate.log.producers_table import advance, to_text
from tidegate.log.state import LogState

T = TypeVar("T")

SLICES = 20


async def _with_iterations(work: Awaitable[T]) -> tuple[T, int]:
    """The result of `work`, and how often another task ran meanwhile."""
    iterations = 0

    async def others() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    neighbour = asyncio.create_task(others())
    result = await work
    neighbour.cancel()
    return result, iterations


async def test_parse_producers_of_many_is_done_in_slices():
    state = advance(None, 1, 0, 4, 7, 1_000, 5)
    fields = {b"%d" % i: to_text(state).encode() for i in range(SLICES * loading._PRODUCERS_PER_SLICE)}

    producers, iterations = await _with_iterations(loading._parse_producers(fields))

    assert producers == dict.fromkeys(range(len(fields)), state)
    assert iterations >= SLICES


async def test_entries_of_many_batches_are_parsed_and_applied_in_slices():
    fields = [b"w", b"x:1", *[b"b", batch_bytes()] * 1_000]
    reply = [[b"%d-1" % base, fields] for base in range(0, SLICES * loading._BATCHES_PER_SLICE, 1_000)]
    state = LogState(end=0, log_start=0, local_start=0, epochs=[(0, 0)], failover_epoch=1, high_watermark=0)

    (entries, strays), parsing = await _with_iterations(loading._parse_in_slices([[b"5-7", []], *reply]))
    _, applying = await _with_iterations(loading._apply_in_slices(state, entries, 0))

    assert [entry.base for entry in entries] == [int(entry_id[:-2]) for entry_id, _ in reply]
    assert [stray.entry_id for stray in strays] == [(5, 7)]
    assert state.end == SLICES * loading._BATCHES_PER_SLICE
    assert min(parsing, applying) >= SLICES


async def test_index_of_many_aborted_transactions_is_formatted_and_parsed_in_slices():
    count = SLICES * open_transactions.PER_SLICE
    aborted = [Aborted(i, 10 * i, 10 * i + 5, 10 * i + 6) for i in range(count)]

    args, formatting = await _with_iterations(progress._formatted(progress._Snapshot([1, 2], aborted, [])))
    parsed, parsing = await _with_iterations(loading._parse_aborted(str(args[3])))

    assert args[:3] == [1, 2, "aborted"]
    assert parsed == aborted
    assert min(formatting, parsing) >= SLICES


async def test_empty_index_of_aborted_transactions_is_not_saved():
    assert await progress._formatted(progress._Snapshot([1], [], [])) == [1]
    assert await loading._parse_aborted("") == []
