"""OffsetCommits of a group that wait, in order, until their topics are looked up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.apis import committed_offsets
from tidegate.apis.call import Call, Client
from tidegate.apis.committed_offsets import offset_commit
from tidegate.apis.slices import PARTITIONS
from tidegate.protocol import group_writers
from tidegate.protocol.versions import Fields
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


async def test_commits_of_many_topics_are_validated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of topics without partitions, whose parts wait for nothing."""
    bodies, rest, at_once, alone = list[bytes](), list[asyncio.Task[None]](), [0], list[bool]()
    validate = committed_offsets._validate

    def counted(*args: Any) -> int:
        at_once[-1] += 1
        return validate(*args)

    async def rounds() -> None:
        while not bodies:
            at_once.append(0)
            await asyncio.sleep(0)

    monkeypatch.setattr(committed_offsets, "_validate", counted)
    catalog = SimpleNamespace(get=lambda org, name: None)
    offsets = SimpleNamespace(held={}, takes_metadata=lambda metadata: True)
    store = SimpleNamespace(group_keys=lambda org, group_id: SimpleNamespace(group=group_id))
    context = SimpleNamespace(catalog=catalog, offsets=offsets, store=store, tasks=TaskSet(), group_limits=None)
    values: dict[str, Any] = {
        **dict.fromkeys(Call.__slots__), "version": 8, "client": Client(1, "192.0.2.7", 1), "context": context,
        "reply": bodies.append, "run_alone": lambda: alone.append(True),
        "answer_later": lambda work, _: rest.append(asyncio.create_task(work)),
    }  # fmt: skip
    topics = tuple(SimpleNamespace(name=f"t{number}", partitions=()) for number in range(5 * PARTITIONS))
    for some in (topics[:PARTITIONS], topics):
        bodies.clear()
        at_once.append(0)
        request = Fields(group_id="g", generation_id_or_member_epoch=-1, topics=some)
        offset_commit(Call(**values), request)
        assert bool(bodies) == (some is not topics)
        await asyncio.gather(*rest, rounds())

        assert bodies == [group_writers.offset_commit(8, [(one.name, []) for one in some])]
        assert max(at_once) <= PARTITIONS + 1
    assert alone == [True]
