"""What Redis programs may do to the stream and the groups of a record topic while Kafka clients use both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog
from kio.schema.errors import ErrorCode

from tests.scripts.test_record_groups import IDS, KEY, member, offsets, pending, position
from tests.scripts.test_record_log import read
from tests.support.log_broker import fetch_request, produce_request
from tests.support.logs import batch_bytes
from tests.support.record_topics import two_brokers
from tests.support.whole_broker import WholeBroker
from tidegate.errors import UnknownTopicOrPartition
from tidegate.settings import Settings
from tidegate.store.store import Store


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[list[WholeBroker]]:
    async with two_brokers(settings) as opened:
        yield opened


async def test_deleted_stream_is_an_empty_log_with_its_end(brokers: list[WholeBroker], store: Store) -> None:
    client, before = await member(brokers[0]), await offsets(store)
    await read(client, 0)

    await store.command("DEL", KEY)

    assert await read(client, before[-1] + 1) == []
    assert await read(brokers[1].client("reader"), before[-1] + 1) == []
    assert await client.commit("r", before[-1] + 1) is ErrorCode.none
    for broker in brokers:
        await broker.client("producer").produce("r", 2)
    found = [one.offset for one in await read(client, before[-1] + 1)]
    assert found == await offsets(store)
    assert len(found) == 4
    assert found[0] > before[-1]
    assert await pending(store) == {client.member_id: found}


async def test_destroyed_group_is_created_where_the_member_reads(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await read(client, 0, partition_max_bytes=300)

    await store.command("XGROUP", "DESTROY", KEY, "orders")

    assert [one.offset for one in await read(client, all_offsets[5])] == all_offsets[5:]
    assert await pending(store) == {client.member_id: all_offsets[5:]}
    assert await client.commit("r", all_offsets[-1] + 1) is ErrorCode.none
    assert await pending(store) == {}


async def test_commit_to_a_destroyed_group_is_stored(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await read(client, 0)

    await store.command("XGROUP", "DESTROY", KEY, "orders")

    assert await client.commit("r", all_offsets[3]) is ErrorCode.none
    assert await client.committed("r") == all_offsets[3]


async def test_deleted_consumer_reads_on(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await read(client, 0)

    await store.command("XGROUP", "DELCONSUMER", KEY, "orders", client.member_id)

    await client.produce("r", 1)
    [new] = (await offsets(store))[10:]
    assert [one.offset for one in await read(client, all_offsets[-1] + 1)] == [new]
    assert await pending(store) == {client.member_id: [new]}


@pytest.mark.parametrize("place", ["0-0", "$"])
async def test_group_moved_by_a_program_is_moved_back(brokers: list[WholeBroker], store: Store, place: str) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await read(client, 0)
    await client.commit("r", all_offsets[5])

    await store.command("XGROUP", "SETID", KEY, "orders", place)

    assert [one.offset for one in await read(client, all_offsets[5])] == all_offsets[5:]
    assert await client.commit("r", all_offsets[-1] + 1) is ErrorCode.none
    assert await pending(store) == {}


async def test_entries_taken_by_a_program_are_read_all_the_same(brokers: list[WholeBroker], store: Store) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await store.command("XGROUP", "CREATE", KEY, "orders", "0-0")
    await store.command("XREADGROUP", "GROUP", "orders", "program", "COUNT", 4, "STREAMS", KEY, ">")

    assert [one.offset for one in await read(client, 0)] == all_offsets
    assert await client.commit("r", all_offsets[-1] + 1) is ErrorCode.none
    assert await pending(store) == {}
    assert await position(store) == IDS.id_before(await client.committed("r"))


async def test_appends_follow_an_end_moved_ahead_by_a_program(brokers: list[WholeBroker], store: Store) -> None:
    [last] = (await offsets(store))[-1:]
    ahead = IDS.id_of(last + (3_600_000 << 10))

    await store.command("XSETID", KEY, ahead)

    for broker in brokers:
        await broker.client("producer").produce("r", 1)
    appended = (await offsets(store))[10:]
    assert len(appended) == 2
    assert min(appended) > last + (3_600_000 << 10)
    assert [one.offset for one in await read(brokers[1].client("reader"), last + 1)] == appended


async def test_key_of_another_type_is_a_storage_error_until_it_is_deleted(
    brokers: list[WholeBroker], store: Store
) -> None:
    reader = brokers[0].client("reader")
    await store.command("SET", KEY, "not a stream")

    failed = await reader.ask(fetch_request([("r", [(0, 0)])]))
    await store.command("DEL", KEY)
    await brokers[1].client("producer").produce("r", 1)

    assert failed.responses[0].partitions[0].error_code is ErrorCode.kafka_storage_error
    assert [one.offset for one in await read(reader, 0)] == await offsets(store)


@pytest.mark.parametrize("first", ["produce", "read", "group", "ends"])
async def test_deleted_meta_is_stored_again(brokers: list[WholeBroker], store: Store, first: str) -> None:
    client, all_offsets = await member(brokers[0]), await offsets(store)
    await read(client, 0)
    (meta,) = await store.command("KEYS", "*:meta")

    await store.command("DEL", meta)

    with structlog.testing.capture_logs() as events:
        if first == "produce":
            await brokers[1].client("producer").produce("r", 1)
        elif first == "read":
            assert [one.offset for one in await read(brokers[1].client("reader"), 0)] == all_offsets
        elif first == "group":
            assert [one.offset for one in await read(client, 0)] == all_offsets
        else:
            topic = brokers[1].context.catalog.get("default", "r")
            assert (await brokers[1].context.logs.partition(topic, 0).end_offset()).log_end_offset == all_offsets[
                -1
            ] + 1
    for broker in brokers:
        await broker.client("producer").produce("r", 1)
    assert [one.offset for one in await read(client, 0)] == await offsets(store)
    assert await client.commit("r", (await offsets(store))[-1] + 1) is ErrorCode.none
    assert await pending(store) == {}
    assert [event["log"] for event in events if event["event"] == "log_meta_rebuilt"] == [KEY]


async def test_deleted_topic_gets_no_meta(brokers: list[WholeBroker], store: Store) -> None:
    topic = brokers[0].context.catalog.get("default", "r")
    log = brokers[0].context.logs.partition(topic, 0)
    await store.command("DEL", log.keys.meta, KEY)

    with pytest.raises(UnknownTopicOrPartition):
        await log.end_offset()
    assert await store.command("EXISTS", log.keys.meta, KEY) == 0


@pytest.mark.parametrize("name", ["meta", "producers", "readers", "writers", "owners"])
async def test_part_of_another_type_is_named_until_it_is_renamed(
    brokers: list[WholeBroker], store: Store, name: str
) -> None:
    client = await member(brokers[0])
    producer = brokers[0].client("producer")
    await producer.ask(produce_request([("r", [(0, batch_bytes(producer_id=7, epoch=0, sequence=0))])]))
    await read(client, 0)
    (key,) = await store.command("KEYS", f"*:{name}")
    await store.command("DEL", key)
    await store.command("RPUSH", key, "foreign")

    with structlog.testing.capture_logs() as events:
        await client.ask(fetch_request([("r", [(0, 0)])]))
        await producer.ask(produce_request([("r", [(0, batch_bytes(producer_id=7, epoch=0, sequence=1))])]))
        async with asyncio.timeout(30):
            while not (named := [event for event in events if event["event"] == "key_of_wrong_type"]):
                await asyncio.sleep(0.01)
    assert {event["command"] for event in named} == {f"RENAME {key.decode()} {key.decode()}:foreign"}
    await store.command("RENAME", key, f"{key.decode()}:foreign")
    await producer.produce("r", 1)
    assert [one.offset for one in await read(client, 0)] == await offsets(store)
