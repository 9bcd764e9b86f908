"""Offsets staged in transactions: many in parts, few without a walk over what others staged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, Producer, brokers_of
from tidegate.groups.staged_offsets import STAGE_OFFSETS
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

E = ErrorCode
WIDE = 2_500
PARTITION_ARGS = 8
"""Arguments of the stage script before its entries."""


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Two brokers with the topic `wide`."""
    async with brokers_of(settings, 2) as opened:
        await opened.create("wide", WIDE)
        yield opened


def names(count: int, topic: str = "t") -> list[str]:
    return [f"{topic}:{index}" for index in range(count)]


async def listed(store: Store, keys: GroupKeys) -> list[str]:
    """The partitions with staged offsets, as any broker reads them; sorted."""
    noted = await store.command("HGET", keys.offsets, ":-1")
    if noted is None:
        return []
    words = noted.decode().partition('"metadata":"')[2].partition('"')[0].split(" ")
    return sorted(word for word in words if not word.startswith("@"))


async def committed(store: Store, keys: GroupKeys) -> dict[str, int]:
    stored = await store.command("HGETALL", keys.offsets)
    return {
        name.decode(): int(value.partition(b":")[2].partition(b",")[0])
        for name, value in stored.items()
        if name != b":-1"
    }


class Followed:
    """Calls of scripts; `after` is awaited behind each."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Script, tuple[Any, ...]]] = []
        self.after: Callable[[Script], Any] | None = None
        run = store.run

        async def followed(script: Script, key_names: Any, *args: Any, **options: Any) -> Any:
            self.calls.append((script, args))
            reply = await run(script, key_names, *args, **options)
            if self.after is not None:
                await self.after(script)
            return reply

        monkeypatch.setattr(store, "run", followed)

    def entry_counts(self) -> list[int]:
        """Entries of each call of the stage script."""
        return [(len(args) - PARTITION_ARGS) // 2 for script, args in self.calls if script.name == STAGE_OFFSETS.name]


# -- in parts


async def commit_wide(brokers: Brokers, producer: Producer, offset: int, at: int, **member: Any) -> set[ErrorCode]:
    """TxnOffsetCommit of every partition of `wide`, at one broker; the codes."""
    partitions = [
        {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in range(WIDE)
    ]
    who = {"generation_id": -1, "member_id": "", "group_instance_id": None, **member}
    answer = await brokers.clients[at].ask(
        request(
            28, 5, transactional_id="T", group_id="g", producer_id=producer.id, producer_epoch=producer.epoch, **who,
            topics=[{"name": "wide", "partitions": partitions}],
        )
    )  # fmt: skip
    found = [one for topic in answer.topics for one in topic.partitions]
    assert [one.partition_index for one in found] == list(range(WIDE))
    return {one.error_code for one in found}


async def test_txn_offset_commit_many_partitions_are_staged_in_parts(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await brokers.producer().init()
    store = brokers.all[0].store
    followed = Followed(store, monkeypatch)

    assert await commit_wide(brokers, producer, 7, 0) == {NONE}

    assert followed.entry_counts() == [1_000, 1_000, 500]
    await producer.end(True)
    await brokers.all[0].context.transactions.tasks.wait()
    assert await committed(store, store.group_keys("default", "g")) == dict.fromkeys(names(WIDE, "wide"), 7)


async def test_txn_offset_commit_part_refused_refuses_every_partition(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group's generation rises between two parts. The client aborts: nothing is applied."""
    member = brokers.all[1].client()
    member.group_id = "g"
    await member.own("wide")
    generation, member_id = member.generation, member.member_id
    producer = await brokers.producer().init()
    store = brokers.all[0].store
    keys = store.group_keys("default", "g")
    followed = Followed(store, monkeypatch)

    async def rise(script: Script) -> None:
        if len(followed.entry_counts()) == 1:
            await store.command("HSET", keys.group, "generation", generation + 1)

    followed.after = rise
    codes = await commit_wide(brokers, producer, 7, 0, generation_id=generation, member_id=member_id)

    assert codes == {E.illegal_generation}
    assert followed.entry_counts() == [1_000, 1_000]
    followed.after = None
    await producer.end(False)
    await brokers.all[0].context.transactions.tasks.wait()
    await brokers.all[1].context.transactions.tasks.wait()
    assert (await committed(store, keys), await listed(store, keys)) == ({}, [])
    assert await store.command("EXISTS", keys.staged) == 0


async def test_txn_offset_commit_client_that_left_stages_no_further_part(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may stage newer offsets through another broker by now."""
    producer = await brokers.producer().init()
    followed = Followed(brokers.all[0].store, monkeypatch)

    async def leave(script: Script) -> None:
        brokers.clients[0].client.closed = bool(followed.entry_counts())

    followed.after = leave

    assert await commit_wide(brokers, producer, 7, 0) == {E.coordinator_not_available}
    assert followed.entry_counts() == [1_000]


# -- read


async def test_offset_fetch_of_few_partitions_walks_over_no_others_staged(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await brokers.producer().init()
    assert await commit_wide(brokers, producer, 7, 0) == {NONE}
    catalog, asked = brokers.all[0].context.catalog, list[str]()
    get = catalog.get

    def counted(org: str, name: str) -> Any:
        asked.append(name)
        return get(org, name)

    monkeypatch.setattr(catalog, "get", counted)
    answer = await brokers.clients[0].ask(
        request(9, 7, group_id="g", require_stable=True, topics=[{"name": "wide", "partition_indexes": (3, 4)}])
    )

    assert [one.error_code for one in answer.topics[0].partitions] == [E.unstable_offset_commit] * 2
    assert len(asked) < 10, f"asked of the catalogue {len(asked)} times for two partitions"
