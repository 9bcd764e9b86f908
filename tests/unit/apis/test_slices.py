"""However many requests have long work, the event loop runs one slice of it at a time."""

from __future__ import annotations

import asyncio

from tests.unit.server.fakes import on_both_loops
from tidegate.apis.slices import in_slices, pause

REQUESTS = 20
SLICES = 5


@on_both_loops
async def test_slices_of_many_requests_are_run_one_a_round() -> None:
    rounds, found = 0, list[tuple[int, int]]()

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def handle(request: int) -> None:
        async for item in in_slices(range(SLICES), 1):
            if item:  # the first slice waits for nobody
                found.append((rounds, request))

    counting = asyncio.create_task(count_rounds())
    await asyncio.gather(*map(handle, range(REQUESTS)))
    counting.cancel()

    assert len({at for at, _ in found}) == len(found) == REQUESTS * (SLICES - 1)
    assert [request for _, request in found] == list(range(REQUESTS)) * (SLICES - 1)


@on_both_loops
async def test_slice_of_a_cancelled_request_is_left_out() -> None:
    first, second = (asyncio.create_task(pause()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()

    async with asyncio.timeout(30):
        await second
        await pause()
    assert first.cancelled()
