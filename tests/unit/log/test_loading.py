"""Loading the snapshot of a log leaves others their turns."""

from __future__ import annotations

import asyncio

from tidegate.log import loading
from tidegate.log.producers_table import advance, to_text


async def test_parse_producers_of_many_is_done_in_slices():
    slices, iterations = 20, 0
    state = advance(None, 1, 0, 4, 7, 1_000, 5)
    fields = {b"%d" % i: to_text(state).encode() for i in range(slices * loading._PRODUCERS_PER_SLICE)}

    async def others() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    neighbour = asyncio.create_task(others())
    producers = await loading._parse_producers(fields)
    neighbour.cancel()

    assert producers == dict.fromkeys(range(len(fields)), state)
    assert iterations >= slices
