"""Many members that fetch from one share-partition at the same time: what each acquisition costs, by counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.support.shares import ShareWorld
from tidegate.apis import share_reading
from tidegate.groups.share.records import ShareRecords

MEMBERS, BATCH = 40, 20


async def test_crowd_each_batch_is_read_and_offered_once(shares: ShareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    members = [shares.member(str(number)) for number in range(MEMBERS)]
    await shares.joined(*members)
    for member in members:
        assert await member.fetch(0) == ""
    await shares.produce(*[BATCH] * MEMBERS)
    counts = Counter[str]()
    acquire, read_log = ShareRecords.acquire, share_reading.read_log

    async def counted_acquire(*args: Any, **values: Any) -> Any:
        counts["scripts"] += 1
        counts["batches"] += sum(len(one.runs) for one in args[3])
        return await acquire(*args, **values)

    async def counted_read(*args: Any) -> Any:
        counts["reads"] += 1
        return await read_log(*args)

    monkeypatch.setattr(ShareRecords, "acquire", counted_acquire)
    monkeypatch.setattr(share_reading, "read_log", counted_read)

    given = await asyncio.gather(*(member.fetch(max_records=BATCH) for member in members))

    expected = {f"{BATCH * number}-{BATCH * number + BATCH - 1}x1" for number in range(MEMBERS)}
    assert set(given) == expected
    assert counts["scripts"] <= 2 * MEMBERS
    assert counts["reads"] == counts["batches"] == MEMBERS
