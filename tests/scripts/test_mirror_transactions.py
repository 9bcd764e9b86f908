"""Offsets that a transaction commits, as the mirror of their group shows them, and as usage counts them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.wire import request
from tests.scripts.test_mirror import Shown
from tests.support.transactions import NONE, Brokers, Producer, brokers_of
from tests.support.whole_broker import ClientOf
from tidegate.errors import StoreUnavailable
from tidegate.groups import staged_offsets
from tidegate.groups.commits import Commit
from tidegate.groups.offsets import entry_json
from tidegate.groups.staged_offsets import END_STAGED
from tidegate.settings import Settings
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.transactions import completion

GROUP = "orders"
ALL = ["0-1", "3-1", "5-1", "9-1"]
WIDE = 2_500


@pytest.fixture
async def brokers(store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Brokers]:
    """Two brokers with the topic `t`: entries of 3, 2, 4 and 1 records, so bases 0, 3, 5, 9 and the end 10."""
    monkeypatch.setattr(completion, "_PAUSE_S", 0.001)
    own = settings.model_copy(update={"group_initial_rebalance_delay_ms": 0})
    async with brokers_of(own, 2) as opened:
        await opened.create("t", WIDE)
        await opened.all[0].client("producer").produce("t", 3, 2, 4, 1)
        yield opened


@pytest.fixture
async def shown(store: Store, brokers: Brokers) -> Shown:
    topic = brokers.all[0].context.catalog.get("default", "t")
    assert topic is not None
    return Shown(store, store.log_keys("default", "t", 0, topic.topic_hex))


async def mirrored(brokers: Brokers) -> None:
    """What was completed is shown."""
    for broker in brokers.all:
        await broker.context.transactions.tasks.wait()
        await broker.mirrored()


async def reader_of(brokers: Brokers) -> ClientOf:
    """A member that has read `t` 0 to its end."""
    member = brokers.all[0].client()
    await member.own("t")
    await member.fetch("t", 0)
    await mirrored(brokers)
    return member


async def staged(brokers: Brokers, member: ClientOf, offset: int) -> Producer:
    """A producer that has staged the member's offset."""
    producer = await brokers.producer().init()
    code = await producer.commit_offset(GROUP, offset, generation=member.generation, member_id=member.member_id)
    assert code is NONE
    return producer


async def test_offsets_of_a_committed_transaction_are_not_pending(brokers: Brokers, shown: Shown) -> None:
    member = await reader_of(brokers)
    producer = await staged(brokers, member, 10)
    await mirrored(brokers)
    assert await shown.ids() == ALL, "the transaction is open"

    await producer.end(True)
    await mirrored(brokers)

    assert (await shown.position(), await shown.ids()) == ("9-1", [])


async def test_offset_within_a_batch_leaves_its_entry_pending(brokers: Brokers, shown: Shown) -> None:
    producer = await staged(brokers, await reader_of(brokers), 4)
    await producer.end(True)
    await mirrored(brokers)

    assert await shown.ids() == ["3-1", "5-1", "9-1"]


async def test_offsets_of_an_aborted_transaction_remain_pending(brokers: Brokers, shown: Shown) -> None:
    producer = await staged(brokers, await reader_of(brokers), 10)
    await producer.end(False)
    await mirrored(brokers)

    assert await shown.ids() == ALL
    assert [broker.context.usage.groups for broker in brokers.all] == [{}, {}]


@pytest.mark.parametrize("failures", [0, 2])
async def test_committed_offsets_are_reported_without_a_further_command(
    brokers: Brokers, store: Store, shown: Shown, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Also where markers take several attempts."""
    producer = await staged(brokers, await reader_of(brokers), 10)
    await producer.write("t", index=1)
    offsets, append, failed = store.group_keys("default", GROUP).offsets, completion.append_marker, list[int]()
    asked: list[tuple[Any, ...]] = []
    for broker in brokers.all:
        command = broker.store.command

        async def counted(*args: Any, command: Any = command) -> Any:
            asked.append(args)
            return await command(*args)

        monkeypatch.setattr(broker.store, "command", counted)

    async def append_later(logs: Any, topic: Any, index: int, marker: Any) -> Any:
        if len(failed) < failures:
            failed.append(index)
            raise StoreUnavailable("the node of the partition is away")
        return await append(logs, topic, index, marker)

    monkeypatch.setattr(completion, "append_marker", append_later)
    await producer.end(True)
    for broker in brokers.all:
        await broker.context.transactions.tasks.wait()

    assert failed == [1] * failures
    assert [args for args in asked if offsets in args] == []
    await mirrored(brokers)
    assert await shown.ids() == []


async def test_committed_offsets_are_reported_if_the_reply_of_their_script_was_lost(
    brokers: Brokers, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await staged(brokers, await reader_of(brokers), 10)
    lost: list[Script] = []
    for broker in brokers.all:
        run = broker.store.run

        async def without_reply(script: Script, *args: Any, run: Any = run, **options: Any) -> Any:
            reply = await run(script, *args, **options)
            if script is END_STAGED and not lost:
                lost.append(script)
                raise StoreUnavailable("the reply was lost")
            return reply

        monkeypatch.setattr(broker.store, "run", without_reply)
    await producer.end(True)
    await mirrored(brokers)

    assert lost and await shown.ids() == []


async def test_committed_offsets_are_reported_if_another_broker_applied_the_first_part(
    brokers: Brokers, shown: Shown, store: Store
) -> None:
    """It died behind it: no script of the other parts returns what the first one applied."""
    member = await reader_of(brokers)
    producer = await brokers.producer().init()
    partitions = [
        {"partition_index": index, "committed_offset": 10, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in range(WIDE)
    ]
    await brokers.ask(
        request(
            28, 5, transactional_id="T", group_id=GROUP, producer_id=producer.id, producer_epoch=producer.epoch,
            generation_id=member.generation, member_id=member.member_id, group_instance_id=None,
            topics=[{"name": "t", "partitions": partitions}],
        )
    )  # fmt: skip
    keys = store.group_keys("default", GROUP)
    await store.run(
        END_STAGED, [keys.offsets, keys.staged, keys.shard_keys.ended_transactions],
        producer.id, 1_000, 1, 86_400_000, keys.ref,
    )  # fmt: skip
    assert await store.command("HLEN", keys.staged) == WIDE - 1_000

    await producer.end(True)
    await mirrored(brokers)

    assert await shown.ids() == []


def entry_of(index: int) -> str:
    return entry_json(100 + index, 3, "ab", '"topic_id":"cd"')


async def test_end_reports_what_it_applied(store: Store) -> None:
    """Not what a plain commit has overtaken."""
    keys = store.group_keys("default", "g")
    entries = [text for index in (0, 1) for text in (f"a.b:{index}", entry_of(index))]
    await staged_offsets.stage(store, keys, Commit(-1, "", None, entries), 9, -1)
    await store.command("HSET", keys.offsets, "a.b:1", entry_of(99) + ',"commit_time":9999999999999}')

    ended = await staged_offsets.end(store, keys, 9, 1_000, True)

    assert (ended.applied, ended.is_all) == ([("a.b", 0, "ab", 100)], True)
    ended = await staged_offsets.end(store, keys, 9, 1_000, True)
    assert (ended.applied, ended.is_all) == ([], False)


async def test_commits_of_transactions_are_counted(brokers: Brokers) -> None:
    member = await reader_of(brokers)
    for offset in (10, 5):
        producer = await staged(brokers, member, offset)
        await producer.end(True)
    await mirrored(brokers)

    counted = [broker.context.usage.groups.get("default/orders") for broker in brokers.all]
    assert sum(one.count for one in counted if one is not None) == 2
