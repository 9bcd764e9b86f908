"""Offsets staged in transactions: many in parts, few without a walk over what others staged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, Producer, brokers_of
from tidegate.apis.slices import PARTITIONS
from tidegate.groups import staged_offsets
from tidegate.groups.commits import Commit
from tidegate.groups.offsets import delete, entry_json
from tidegate.groups.retention import forget_topic
from tidegate.groups.staged_offsets import END_STAGED, STAGE_OFFSETS
from tidegate.settings import Settings
from tidegate.store.keys import GroupKeys
from tidegate.store.scripts import Script
from tidegate.store.store import Store

E = ErrorCode
WIDE = 2_500
PRODUCER, ANOTHER = 9, 19
PARTITION_ARGS = 9
"""Arguments of the stage script before its entries."""


@pytest.fixture
def keys(store: Store) -> GroupKeys:
    return store.group_keys("default", "g")


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Two brokers with the topic `wide`."""
    async with brokers_of(settings, 2) as opened:
        await opened.create("wide", WIDE)
        yield opened


def names(count: int, topic: str = "t") -> list[str]:
    return [f"{topic}:{index}" for index in range(count)]


def commit_of(fields: Iterable[str], offset: int = 5) -> Commit:
    return Commit(-1, "", None, [text for field in fields for text in (field, entry_json(offset, -1, "ab", ""))])


async def stage(store: Store, keys: GroupKeys, fields: list[str], producer_id: int = PRODUCER, offset: int = 5) -> None:
    """Stage in parts, as TxnOffsetCommit does."""
    for first in range(0, len(fields), PARTITIONS):
        await staged_offsets.stage(store, keys, commit_of(fields[first : first + PARTITIONS], offset), producer_id, -1)


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


async def walked(store: Store) -> int:
    """Commands of scripts that walked over all fields of a hash."""
    stats = (await store.command("INFO", "commandstats")).decode().splitlines()
    walks = ("cmdstat_hkeys:", "cmdstat_hgetall:", "cmdstat_hvals:", "cmdstat_hscan:")
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in stats if line.startswith(walks))


async def commands(store: Store) -> int:
    """Commands that the Redis has run, those of scripts included."""
    stats = (await store.command("INFO", "commandstats")).decode().splitlines()
    counts = [line.partition("calls=")[2].partition(",")[0] for line in stats if not line.startswith("cmdstat_info")]
    return sum(map(int, filter(None, counts)))


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


@pytest.mark.parametrize("is_commit", [True, False])
async def test_end_many_offsets_in_parts_none_is_stable_before_the_last(
    store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch, is_commit: bool
) -> None:
    fields = names(WIDE)
    await stage(store, keys, fields)
    followed, left, unstable, ends = Followed(store, monkeypatch), [WIDE], [WIDE], list[Any]()

    async def note(script: Script) -> None:
        left.append(await store.command("HLEN", keys.staged))
        unstable.append(len(await listed(store, keys)))
        ends.append(await store.command("ZSCORE", keys.shard_keys.ended_transactions, f"{PRODUCER} default/g"))

    followed.after = note
    await staged_offsets.end(store, keys, PRODUCER, 1_000, is_commit)

    assert left == [2_500, 1_500, 500, 0], "a script ends at most 1,000"
    assert unstable == [2_500, 2_500, 2_500, 0], "until all are applied, none is stable"
    assert [end is not None for end in ends] == [False, False, True]
    assert await committed(store, keys) == (dict.fromkeys(fields, 5) if is_commit else {})


async def test_end_by_two_brokers_at_once_applies_each_offset(
    store: Store, keys: GroupKeys, settings: Settings
) -> None:
    fields = names(WIDE)
    await stage(store, keys, fields)
    other = Store(settings)
    await other.start()
    try:
        await asyncio.gather(
            staged_offsets.end(store, keys, PRODUCER, 1_000, True),
            staged_offsets.end(other, keys, PRODUCER, 1_000, True),
        )
    finally:
        await other.close()

    assert await committed(store, keys) == dict.fromkeys(fields, 5)
    assert (await listed(store, keys), await store.command("EXISTS", keys.staged)) == ([], 0)


async def test_end_is_continued_by_another_broker(
    store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one died; since, a plain commit and a delayed request of the producer were stored."""
    fields = names(WIDE)
    await stage(store, keys, fields)
    followed = Followed(store, monkeypatch)

    async def die(script: Script) -> None:
        raise ConnectionError

    followed.after = die
    with pytest.raises(ConnectionError):
        await staged_offsets.end(store, keys, PRODUCER, 1_000, True)
    followed.after = None
    await stage(store, keys, [fields[0]], offset=6)
    await store.command("HSET", keys.offsets, fields[-1], entry_json(8, -1, "ab", "") + ',"commit_time":9999999999999}')

    await staged_offsets.end(store, keys, PRODUCER, 1_000, True)

    assert await committed(store, keys) == dict.fromkeys(fields, 5) | {fields[0]: 6, fields[-1]: 8}
    assert (await listed(store, keys), await store.command("EXISTS", keys.staged)) == ([], 0)


# -- what others staged


async def test_few_offsets_cost_the_same_whatever_others_staged(store: Store, keys: GroupKeys) -> None:
    producer_ids = iter(range(100, 200))

    async def cost() -> tuple[int, int]:
        """Commands, and those that walk over a hash, of staging one offset twice and committing it."""
        producer_id, before = next(producer_ids), (await commands(store), await walked(store))
        await stage(store, keys, ["few:0"], producer_id)
        await stage(store, keys, ["few:0"], producer_id, 6)
        await staged_offsets.end(store, keys, producer_id, 1_000, True)
        return await commands(store) - before[0], await walked(store) - before[1]

    await stage(store, keys, ["other:0"])
    await cost()
    alone = await cost()
    await stage(store, keys, names(WIDE))

    assert await cost() == alone
    assert alone[1] == 0, "no walk over all that is staged"


async def test_partition_staged_by_two_producers_is_unstable_until_both_ended(store: Store, keys: GroupKeys) -> None:
    await stage(store, keys, ["t:0", "t:1"])
    await stage(store, keys, ["t:1", "t:10"], ANOTHER)
    await stage(store, keys, ["t:1"])
    assert set(await listed(store, keys)) == {"t:0", "t:1", "t:10"}

    await staged_offsets.end(store, keys, PRODUCER, 1_000, True)
    assert await listed(store, keys) == ["t:1", "t:10"]
    await staged_offsets.end(store, keys, ANOTHER, 1_000, False)
    assert (await listed(store, keys), await committed(store, keys)) == ([], {"t:0": 5, "t:1": 5})


async def test_offsets_staged_within_a_millisecond_apply_in_the_order_of_their_commits(
    store: Store, keys: GroupKeys
) -> None:
    for offset in range(1, 40):
        first, second = 2 * offset, 2 * offset + 1
        await asyncio.gather(stage(store, keys, ["t:0"], first, first), stage(store, keys, ["t:0"], second, second))
        for producer_id in (first, second) if offset % 2 else (second, first):
            await staged_offsets.end(store, keys, producer_id, 1_000, True)
        assert await committed(store, keys) == {"t:0": second}


async def test_offsets_staged_before_the_clock_stepped_back_are_older(store: Store, keys: GroupKeys) -> None:
    await stage(store, keys, ["t:0", "t:1"])
    ahead = 9_999_999_999_000
    for field in (f"{PRODUCER}:t:0", f"{PRODUCER}:t:1"):
        await store.command("HSET", keys.staged, field, entry_json(5, -1, "ab", "") + f',"commit_time":{ahead}}}')
    await store.command("HDEL", keys.offsets, ":-1")  # it is made again, with that time

    await stage(store, keys, ["t:0"], ANOTHER, 6)
    await staged_offsets.end(store, keys, PRODUCER, 1_000, True)
    await staged_offsets.end(store, keys, ANOTHER, 1_000, True)

    assert await committed(store, keys) == {"t:0": 6, "t:1": 5}


# -- beside an older broker


def older_list(fields: Iterable[str]) -> str:
    """The list as an older broker writes it: with every stage and end, from what is staged."""
    words = " ".join(fields)
    return f'{{"offset":-1,"leader_epoch":-1,"topic_id":"","metadata":"{words}","commit_time":1700000000000}}'


async def test_list_of_an_older_broker_is_made_again(store: Store, keys: GroupKeys) -> None:
    await stage(store, keys, ["t:0"])
    for field in (f"{ANOTHER}:t:1", f"{ANOTHER}:t:0"):  # staged through the older broker
        await store.command("HSET", keys.staged, field, entry_json(6, -1, "ab", "") + ',"commit_time":9999999999999}')
    await store.command("HSET", keys.offsets, ":-1", older_list(["t:0", "t:1"]))

    await stage(store, keys, ["t:2"])
    assert set(await listed(store, keys)) == {"t:0", "t:1", "t:2"}
    await store.command("HSET", keys.offsets, ":-1", older_list(["t:0", "t:1", "t:2"]))
    await staged_offsets.end(store, keys, PRODUCER, 1_000, True)
    assert (await listed(store, keys), await committed(store, keys)) == (["t:0", "t:1"], {"t:0": 5, "t:2": 5})
    await staged_offsets.end(store, keys, ANOTHER, 1_000, True)

    assert (await listed(store, keys), await committed(store, keys)) == ([], {"t:0": 6, "t:1": 6, "t:2": 5})


async def test_end_within_which_an_older_broker_wrote_the_list(
    store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = names(WIDE)
    await stage(store, keys, fields)
    followed = Followed(store, monkeypatch)

    async def write(script: Script) -> None:
        left = await store.command("HKEYS", keys.staged)
        if left:
            await store.command(
                "HSET", keys.offsets, ":-1", older_list(name.decode().partition(":")[2] for name in left)
            )

    followed.after = write
    await staged_offsets.end(store, keys, PRODUCER, 1_000, True)

    assert await committed(store, keys) == dict.fromkeys(fields, 5)
    assert (await listed(store, keys), await store.command("EXISTS", keys.staged)) == ([], 0)


# -- offsets that are dropped


async def test_dropped_offsets_leave_the_list_of_each_producer(store: Store, keys: GroupKeys) -> None:
    await stage(store, keys, ["t:0", "t:1", "u:0"])
    await stage(store, keys, ["t:0"], ANOTHER)
    await store.command(
        "HSET", keys.staged, f"{PRODUCER}:u:1", entry_json(5, -1, "cd", "") + ',"commit_time":1700000000000}'
    )
    await store.command("HDEL", keys.offsets, ":-1")

    await delete(store, keys, "1", {"t": [0]})
    assert await listed(store, keys) == ["t:1", "u:0", "u:1"]
    assert set(await store.command("HKEYS", keys.staged)) == {b"9:t:1", b"9:u:0", b"9:u:1"}
    await forget_topic(store, "default", "u", 2, "ab")
    assert await listed(store, keys) == ["t:1", "u:1"], "that of another topic of the name remains"
    await staged_offsets.end(store, keys, ANOTHER, 1_000, True)
    await staged_offsets.end(store, keys, PRODUCER, 1_000, True)
    assert (await listed(store, keys), await committed(store, keys)) == ([], {"t:1": 5, "u:1": 5})


async def test_dropped_offsets_between_two_parts_of_an_end(
    store: Store, keys: GroupKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = names(WIDE)
    await stage(store, keys, fields)
    followed = Followed(store, monkeypatch)

    async def drop(script: Script) -> None:
        if script.name == END_STAGED.name:
            followed.after = None
            await delete(store, keys, "1", {"t": range(500, WIDE)})
            assert len(await listed(store, keys)) == 500

    followed.after = drop
    await staged_offsets.end(store, keys, PRODUCER, 1_000, True)

    applied = await committed(store, keys)
    assert applied == dict.fromkeys(fields[:500], 5)
    assert (await listed(store, keys), await store.command("EXISTS", keys.staged)) == ([], 0)


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
