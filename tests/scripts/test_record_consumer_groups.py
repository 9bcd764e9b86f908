"""Groups of KIP-848 on a topic of format record: as those of classic groups, they are the stream's Redis groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import RawClient, request
from tests.scripts.test_record_groups import IDS, KEY, offsets, pending, position
from tests.scripts.test_record_log import read
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.apis import consumer_groups, registry
from tidegate.server.listener import Server
from tidegate.settings import Settings
from tidegate.store.store import Store

KEYS = [KEY, KEY.replace("r:0", "r:1")]


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[list[WholeBroker]]:
    opened = [await WholeBroker(settings, node_id).start() for node_id in (1, 2)]
    await opened[0].create("r", 2, tidegate_format="record")
    for broker in opened:
        await broker.context.catalog.refresh()
    for index in (0, 1):
        await opened[0].client("producer").produce("r", 10, index=index)
    yield opened
    for broker in opened:
        await broker.context.consumers.groups.close()
        await broker.close()


@dataclass
class Consumer:
    """A member of the group `orders`: what it owns, as its heartbeats have said."""

    client: ClientOf
    name: str
    epoch: int = 0
    owned: list[int] = field(default_factory=list)

    async def heartbeat(self, **fields: Any) -> list[int]:
        """One heartbeat that confirms what it owns; the partitions that it may read afterwards."""
        topic = self.client.broker.context.catalog.get("default", "r")
        assert topic is not None
        confirmed = [{"topic_id": topic.topic_id, "partitions": tuple(self.owned)}]
        values = {"topic_partitions": confirmed if self.owned else (), **fields}
        answer = await self.client.ask(
            request(68, 1, group_id="orders", member_id=self.name, member_epoch=self.epoch, **values)
        )
        assert answer.error_code is ErrorCode.none, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = [index for one in answer.assignment.topic_partitions for index in one.partitions]
        return self.owned

    async def join(self) -> list[int]:
        return await self.heartbeat(subscribed_topic_names=("r",), rebalance_timeout=60_000, topic_partitions=())

    async def commit(self, offset: int, index: int = 0) -> ErrorCode:
        self.client.member_id, self.client.generation = self.name, self.epoch
        return await self.client.commit("r", offset, index, version=9)


async def test_fetch_by_member_is_pending_until_committed(brokers: list[WholeBroker], store: Store) -> None:
    one, all_offsets = Consumer(brokers[0].client(), "a"), await offsets(store)
    assert await one.join() == [0, 1]

    first = await read(one.client, 0)
    delivered = await pending(store)
    assert await one.commit(all_offsets[6]) is ErrorCode.none

    assert [record.offset for record in first] == all_offsets
    assert delivered == {"a": all_offsets}
    assert await pending(store) == {"a": all_offsets[6:]}
    await one.commit(all_offsets[-1] + 1)
    assert await pending(store) == {}
    assert await position(store) == IDS.id_of(all_offsets[-1])


async def test_rebalance_hands_pending_entries_to_the_new_owner(brokers: list[WholeBroker], store: Store) -> None:
    one, other = Consumer(brokers[0].client("one"), "a"), Consumer(brokers[1].client("other"), "b")
    await one.join()
    all_offsets = await offsets(store)
    for index in (0, 1):
        await read(one.client, 0, index=index)
    await one.commit(all_offsets[4])

    await other.join()
    kept = await one.heartbeat()
    [moved] = {0, 1} - set(kept)
    await read(one.client, all_offsets[4], index=kept[0])
    assert await other.heartbeat() == []  # the partition is not given up yet
    await one.heartbeat()
    assert await other.heartbeat() == [moved]

    stream = KEYS[moved]
    [(_, owner, *_), *_] = await store.command("XPENDING", stream, "orders", "-", "+", 1)
    assert owner == b"a"
    await read(other.client, all_offsets[4] if moved == 0 else 0, index=moved)
    rows = await store.command("XPENDING", stream, "orders", "-", "+", 100)
    assert {owner for _, owner, *_ in rows} == {b"b"}
    assert len(rows) == (6 if moved == 0 else 10)
    assert {who for _, who, *_ in await store.command("XPENDING", KEYS[kept[0]], "orders", "-", "+", 100)} == {b"a"}


async def test_member_that_left_reads_for_no_group(brokers: list[WholeBroker], store: Store) -> None:
    one, all_offsets = Consumer(brokers[0].client(), "a"), await offsets(store)
    await one.join()
    await read(one.client, 0)
    await one.commit(all_offsets[-1] + 1)
    one.epoch = -1
    await one.heartbeat(topic_partitions=None)
    brokers[0].context.logs.record_groups._checks._groups.clear()  # as after a second

    assert len(await read(one.client, 0)) == 10

    assert await pending(store) == {}


async def test_any_broker_reads_for_the_member(brokers: list[WholeBroker], store: Store) -> None:
    one, all_offsets = Consumer(brokers[0].client(), "a"), await offsets(store)
    await one.join()
    elsewhere = brokers[1].client()

    found = await read(elsewhere, 0)

    assert [record.offset for record in found] == all_offsets
    assert await pending(store) == {"a": all_offsets}


async def test_groups_of_both_types_read_beside_each_other(brokers: list[WholeBroker], store: Store) -> None:
    one, classic = Consumer(brokers[0].client("one"), "a"), brokers[0].client("classic")
    classic.group_id = "others"
    await one.join()
    await classic.own("r", 0, 1)
    all_offsets = await offsets(store)

    await read(one.client, 0)
    await read(classic, all_offsets[3])

    assert await pending(store) == {"a": all_offsets}
    assert await pending(store, "others") == {classic.member_id: all_offsets[3:]}


async def test_classic_member_of_a_consumer_group(brokers: list[WholeBroker], store: Store) -> None:
    """A group that changes its protocol online has members of both."""
    one, classic = Consumer(brokers[0].client("one"), "a"), brokers[1].client("classic")
    await one.join()
    await classic.join("r")
    await classic.sync()
    [kept] = await one.heartbeat()
    await one.heartbeat()
    await classic.join("r")
    await classic.sync()

    await read(classic, 0, index=1 - kept)

    rows = await store.command("XPENDING", KEYS[1 - kept], "orders", "-", "+", 100)
    assert {owner.decode() for _, owner, *_ in rows} == {classic.member_id}
    assert len(rows) == 10


async def test_heartbeat_with_an_assignment_that_cannot_be_written_is_answered(
    brokers: list[WholeBroker], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise MemoryError

    server = Server(brokers[0].context, registry.load_all(), settings)
    address = f"127.0.0.1:{await server.open('127.0.0.1', 0)}"
    joins = request(
        68, 1, group_id="orders", member_id="a", member_epoch=0, instance_id=None, rack_id=None,
        rebalance_timeout=timedelta(seconds=60), subscribed_topic_names=("r",), subscribed_topic_regex=None,
        server_assignor=None, topic_partitions=(),
    )  # fmt: skip
    try:
        async with await RawClient.connect(address) as client:
            monkeypatch.setattr(consumer_groups, "answer_assignment", fail)
            refused = await client.ask(joins)
            monkeypatch.undo()
            joined = await client.ask(joins)
    finally:
        await server.close()

    assert refused.error_code is ErrorCode.unknown_server_error
    assert joined.error_code is ErrorCode.none
