"""OffsetCommits of a group that wait, in order, until their topics are looked up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidegate.apis.committed_offsets import offset_commit
from tidegate.store.tasks import TaskSet


async def test_commits_behind_one_that_cannot_be_answered_are_answered() -> None:
    async def find(org: str, name: str) -> None:
        await asyncio.sleep(0)

    async def ended(held: dict[str, Any]) -> None:
        while held:
            await asyncio.sleep(0)

    catalog = SimpleNamespace(get=lambda org, name: None, find=find)
    offsets = SimpleNamespace(held={}, takes_metadata=lambda metadata: True)
    store = SimpleNamespace(group_keys=lambda org, group_id: SimpleNamespace(group=group_id))
    context = SimpleNamespace(catalog=catalog, offsets=offsets, store=store, tasks=TaskSet(), group_limits=None)
    bodies, reasons = list[bytes](), list[str]()

    def fail(body: Any) -> None:
        raise MemoryError

    def commit(reply: Any) -> None:
        call: Any = SimpleNamespace(
            version=8, org="default", client=SimpleNamespace(org="default"), context=context, store=store,
            reply=reply, close=reasons.append,
        )  # fmt: skip
        partition = SimpleNamespace(partition_index=0, committed_metadata="")
        topics = (SimpleNamespace(name="t", partitions=(partition,)),)
        offset_commit(call, SimpleNamespace(group_id="g", generation_id_or_member_epoch=-1, topics=topics))

    for reply in (fail, bodies.append):
        commit(reply)
    await asyncio.wait_for(ended(offsets.held), 60)

    assert (len(bodies), len(reasons)) == (1, 1)
