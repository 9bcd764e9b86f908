"""Internal topics as tools read them: scenarios 132 to 134 of the specification of logs, on a real server."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.internal_topics import PublishedTopics, published_topics
from tests.support.log_broker import produce_request
from tests.support.logs import batch_bytes, read_all
from tests.support.transactions import MARKER_WAIT_S, NONE, brokers_of
from tidegate.cluster import audit
from tidegate.cluster.audit import Actor
from tidegate.errors import InvalidTopic
from tidegate.http import actions
from tidegate.monitoring.internal_topics import publisher
from tidegate.monitoring.internal_topics.publisher import PARTITIONS
from tidegate.monitoring.internal_topics.services import internal_topics
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.keys import shard_of
from tidegate.store.store import Store
from tidegate.topics.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tidegate.transactions.completion import Completion

E = ErrorCode
_SECOND = timedelta(seconds=1)


@pytest.fixture
async def opened(store: Store, settings: Settings) -> AsyncIterator[PublishedTopics]:
    """`store` has emptied the server."""
    async with published_topics(settings) as topics:
        yield topics


def _text(data: bytes, at: int) -> tuple[str | None, int]:
    (size,) = struct.unpack_from(">h", data, at)
    return (None, at + 2) if size < 0 else (data[at + 2 : at + 2 + size].decode(), at + 2 + size)


def _offset_key(key: bytes) -> tuple[Any, ...]:
    assert struct.unpack_from(">h", key) == (1,)
    group, at = _text(key, 2)
    topic, at = _text(key, at)
    return group, topic, *struct.unpack_from(">i", key, at)


def _offset_value(value: bytes) -> tuple[Any, ...]:
    version, offset, leader_epoch = struct.unpack_from(">hqi", value)
    metadata_text, at = _text(value, 14)
    assert (version, len(value)) == (3, at + 8)
    assert struct.unpack_from(">q", value, at)[0] > 1_600_000_000_000
    return offset, leader_epoch, metadata_text


async def test_log_133_offset_records(opened: PublishedTopics) -> None:
    client = opened.brokers.clients[0]
    assert await client.commit("t", 42) is NONE
    await opened.publish()
    [(key, value)] = await opened.records()
    assert _offset_key(key) == ("orders", "t", 0)
    assert _offset_value(value or b"") == (42, -1, "")

    await client.commit("t", 43)
    await client.commit("t", 7, index=1)
    await opened.publish()
    await opened.publish()  # nothing changed
    found = [(_offset_key(key)[2], _offset_value(value or b"")[0]) for key, value in await opened.records()]
    assert found == [(0, 42), (0, 43), (1, 7)]

    assert await client.delete() is NONE
    await opened.publish()
    gone = (await opened.records())[3:]
    assert sorted((_offset_key(key)[2], value) for key, value in gone) == [(0, None), (1, None)]


@pytest.mark.parametrize("damage", ["type", "index", "value"])
async def test_offsets_topic_faulty_group_stops_no_other(
    opened: PublishedTopics, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """What was published of the faulty one stays."""
    monkeypatch.setattr(publisher, "shard_of", lambda name, count: 0)
    client = opened.brokers.clients[0]
    store = opened.brokers.all[0].store
    keys = store.group_keys("default", "orders")
    await client.commit("t", 42)
    await opened.publish()
    if damage == "value":
        await store.command("HSET", keys.offsets, "foreign", "foreign")
    else:
        key = keys.offsets if damage == "type" else keys.shard_keys.groups
        await store.command("DEL", key)
        await store.command("SET", key, "foreign")
    client.group_id = next(
        name for name in map(str, range(99)) if store.group_keys("default", name).shard_keys != keys.shard_keys
    )
    await client.commit("t", 43)
    await opened.publish()

    [topic] = [one for one in opened.brokers.all[0].context.catalog.topics("default") if one.name == CONSUMER_OFFSETS]
    batches = await read_all(opened.brokers.all[0].context.logs.batch_log(topic, 0))
    found = [(_offset_key(one.key or b"")[0], one.value is None) for batch in batches for one in read_records(batch)]
    assert found == [("orders", False), (client.group_id, False)]


async def test_offsets_topic_describes_groups_with_members(opened: PublishedTopics) -> None:
    client = opened.brokers.clients[0]
    await client.own("t", 0, 1)
    await opened.publish()
    [(key, value)] = await opened.records()
    assert key == struct.pack(">hh", 2, 6) + b"orders"
    assert value is not None and struct.unpack_from(">h", value) == (3,)
    protocol_type, at = _text(value, 2)
    (generation,) = struct.unpack_from(">i", value, at)
    protocol, at = _text(value, at + 4)
    leader, at = _text(value, at)
    _, count = struct.unpack_from(">qi", value, at)
    member_id, at = _text(value, at + 12)
    instance_id, at = _text(value, at)
    client_id, at = _text(value, at)
    host, at = _text(value, at)
    timeouts = struct.unpack_from(">ii", value, at)
    assert (protocol_type, generation, protocol, leader) == ("consumer", client.generation, "range", client.member_id)
    assert (count, member_id, instance_id, client_id, host) == (1, client.member_id, None, "app", "/127.0.0.1")
    assert timeouts == (60_000, 30_000)

    await client.leave()
    await opened.publish()
    *_, (_, empty) = await opened.records()
    assert empty is not None
    protocol_type, at = _text(empty, 2)
    assert struct.unpack_from(">hhqi", empty, at + 4)[::3] == (-1, 0)  # no protocol, no members


def _names(*names: str) -> bytes:
    return b"".join(struct.pack(">h", len(name)) + name.encode() for name in names)


def _compact(text: str) -> bytes:
    return bytes((len(text) + 1,)) + text.encode()


async def test_offsets_topic_describes_kip_848_groups(opened: PublishedTopics) -> None:
    join = {
        "group_id": "orders", "member_id": "m", "member_epoch": 0, "rebalance_timeout": timedelta(seconds=5),
        "subscribed_topic_names": ("t",), "topic_partitions": (),
    }  # fmt: skip
    epoch = (await opened.brokers.ask(request(68, 1, **join))).member_epoch
    topic = opened.brokers.all[0].context.catalog.get("default", "t")
    assert topic is not None
    await opened.publish()
    found = dict(await opened.records())
    assigned = b"\x02" + topic.topic_id.bytes + b"\x03" + struct.pack(">ii", 0, 1) + b"\0"
    epochs = b"\0\0" + struct.pack(">i", epoch) + b"\0"
    member = b"\0\0\0\0" + _compact("app") + _compact("/127.0.0.1") + b"\x02" + _compact("t") + _compact("")
    assert found == {
        struct.pack(">h", 3) + _names("orders"): epochs,
        struct.pack(">h", 5) + _names("orders", "m"): member + struct.pack(">i", 5_000) + b"\0\0",
        struct.pack(">h", 6) + _names("orders"): epochs,
        struct.pack(">h", 7) + _names("orders", "m"): b"\0\0" + assigned + b"\0",
        struct.pack(">h", 8) + _names("orders", "m"):
            b"\0\0" + struct.pack(">iib", epoch, 0, 0) + assigned + b"\x01\0",
    }  # fmt: skip

    await opened.brokers.ask(request(68, 1, **{**join, "member_epoch": -1}))
    await opened.publish()
    gone = (await opened.records())[len(found) :]
    kinds = sorted((struct.unpack_from(">h", key)[0], value is None) for key, value in gone)
    assert kinds == [(3, False), (5, True), (6, False), (7, True), (8, True)]


async def test_offsets_topic_describes_share_groups(opened: PublishedTopics) -> None:
    join = {"group_id": "orders", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ("t",)}
    epoch = (await opened.brokers.ask(request(76, 1, **join))).member_epoch
    topic = opened.brokers.all[0].context.catalog.get("default", "t")
    assert topic is not None
    begun = struct.pack(">h", 15) + _names("orders")
    found: dict[bytes, bytes | None] = {}
    async with asyncio.timeout(MARKER_WAIT_S):
        while begun not in found:  # share-partitions begin in the background
            await opened.publish()
            found = dict(await opened.records())
    shares = found.pop(begun)
    assigned = b"\x02" + topic.topic_id.bytes + b"\x03" + struct.pack(">ii", 0, 1) + b"\0"
    client = b"\0" + _compact("app") + _compact("/127.0.0.1") + b"\x02" + _compact("t")
    assert found == {
        struct.pack(">h", 11) + _names("orders"): b"\0\0" + struct.pack(">iq", epoch, 0) + b"\0",
        struct.pack(">h", 10) + _names("orders", "m"): b"\0\0" + client + b"\0",
        struct.pack(">h", 12) + _names("orders"): b"\0\0" + struct.pack(">i", epoch) + b"\0",
        struct.pack(">h", 13) + _names("orders", "m"): b"\0\0" + assigned + b"\0",
        struct.pack(">h", 14) + _names("orders", "m"):
            b"\0\0" + struct.pack(">iib", epoch, 0, 0) + assigned + b"\0",
    }  # fmt: skip
    partitions = b"\x02" + topic.topic_id.bytes + _compact("t") + b"\x03" + struct.pack(">ii", 0, 1) + b"\0"
    assert shares == b"\0\0\x01" + partitions + b"\x01\0"


async def test_offsets_topic_survives_a_change_of_the_leader(opened: PublishedTopics) -> None:
    client = opened.brokers.clients[0]
    await client.commit("t", 1)
    await client.commit("t", 2, index=1)
    await opened.publish()
    await opened.brokers.all[1].context.catalog.refresh()
    opened.leaders = {1}
    await opened.publish()
    assert len(await opened.records()) == 2  # the new leader knows what is there

    await client.commit("t", 5)
    opened.leaders = {0, 1}
    await opened.publish()
    await opened.publish()
    assert [_offset_value(value or b"")[0] for _, value in (await opened.records())] == [1, 2, 5]


async def test_offsets_topic_corrects_an_older_leader(opened: PublishedTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    client = opened.brokers.clients[0]
    await client.commit("t", 1)
    await opened.publish()
    [(key, old)] = await opened.records()
    await client.commit("t", 2)
    await opened.publish()
    context = opened.brokers.all[1].context
    await context.catalog.refresh()
    topic = context.catalog.get("default", CONSUMER_OFFSETS)
    assert topic is not None
    late = publisher.build_batch([publisher.NewRecord(old, key, 1)])
    log = context.logs.batch_log(topic, shard_of("orders", PARTITIONS))
    await publisher._append(log, publisher.Batch.parse(late))
    await opened.publish()
    assert [_offset_value(value or b"")[0] for _, value in (await opened.records())] == [1, 2, 1, 2]


def _transaction(value: bytes) -> tuple[int, tuple[int, int, int], dict[str, list[int]] | None]:
    """State; producer id, epoch and time-out in ms; partitions. Times are checked."""
    version, producer_id, epoch, timeout_ms, state, count = struct.unpack_from(">hqhibB", value)
    assert version == 1
    at, partitions = 18, None if count == 0 else {}
    for _ in range(count - 1):
        assert partitions is not None
        size = value[at] - 1
        topic = value[at + 1 : at + 1 + size].decode()
        at += 1 + size
        indexes = value[at] - 1
        partitions[topic] = list(struct.unpack_from(f">{indexes}i", value, at + 1))
        assert value[at + 1 + 4 * indexes] == 0  # no tags
        at += 2 + 4 * indexes
    update_ms, start_ms, tag_count = struct.unpack_from(">qqB", value, at)
    assert update_ms > 1_600_000_000_000 and (start_ms == -1) == (state == 0)
    assert (tag_count, len(value)) == (0, at + 17)
    return state, (producer_id, epoch, timeout_ms), partitions


async def test_log_134_transaction_states(opened: PublishedTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    decided, complete = asyncio.Event(), Completion.complete

    async def held(*arguments: Any, **named: Any) -> None:
        await decided.wait()
        await complete(*arguments, **named)

    monkeypatch.setattr(Completion, "complete", held)
    producer = await opened.brokers.producer().init()
    await opened.publish()
    assert await producer.add(("t", 1)) == [NONE]
    await opened.publish()
    assert await producer.add_offsets("orders") is NONE
    await opened.publish()
    assert await producer.commit_offset("orders", 70) is NONE
    await opened.publish()
    assert await opened.records() == []  # as a reader with isolation read_committed
    await producer.end(True, version=4)
    await opened.publish()
    decided.set()
    async with asyncio.timeout(MARKER_WAIT_S):
        while len(await opened.records("T", TRANSACTION_STATE)) < 5:
            await opened.publish()
    found = await opened.records("T", TRANSACTION_STATE)
    assert {key for key, _ in found} == {struct.pack(">hh", 0, 1) + b"T"}
    states = [_transaction(value or b"") for _, value in found]
    offsets = shard_of("orders", PARTITIONS)
    parts = {"t": [1], CONSUMER_OFFSETS: [offsets]}
    assert [state for state, _, _ in states] == [0, 1, 1, 2, 4]
    assert {identity for _, identity, _ in states} == {(producer.id, producer.epoch, 60_000)}
    assert [partitions for _, _, partitions in states] == [None, {"t": [1]}, parts, parts, {}]
    [(key, value)] = await opened.records()
    assert (_offset_key(key), _offset_value(value or b"")) == (("orders", "t", 0), (70, -1, ""))


async def test_transaction_state_has_tombstone_of_expired_id(opened: PublishedTopics) -> None:
    await opened.brokers.producer().init()
    await opened.publish()
    records = opened.brokers.all[0].context.transactions.records
    keys = records.keys("default", "T")
    await opened.brokers.all[0].store.command("DEL", keys.transaction)
    await opened.brokers.all[0].store.command("HDEL", keys.transactions, keys.ref)
    await opened.publish()
    (key, _), gone = await opened.records("T", TRANSACTION_STATE)
    assert gone == (key, None)


@pytest.mark.parametrize("name", [CONSUMER_OFFSETS, TRANSACTION_STATE])
async def test_log_132_internal_topics_refuse(opened: PublishedTopics, name: str) -> None:
    brokers = opened.brokers
    await brokers.clients[0].commit("t", 1)
    await brokers.producer("orders").init()
    await opened.publish()
    for broker in brokers.all:
        await broker.context.catalog.refresh()
    topic = brokers.all[0].context.catalog.get("default", name)
    assert topic is not None
    for version, key in ((9, name), (13, topic.topic_id)):
        answer = await brokers.ask(produce_request([(key, [(0, batch_bytes())])], version=version))
        assert answer.responses[0].partition_responses[0].error_code is E.invalid_topic_exception
    creatable = {
        "name": name, "num_partitions": 1, "replication_factor": 1,
        "assignments": (), "configs": (),
    }  # fmt: skip
    answer = await brokers.ask(request(19, 7, topics=[creatable], timeout=_SECOND, validate_only=False))
    assert answer.topics[0].error_code is E.topic_already_exists
    deletable = {"name": name, "topic_id": None}
    answer = await brokers.ask(request(20, 6, topics=[deletable], timeout=_SECOND))
    assert answer.responses[0].error_code is E.invalid_topic_exception
    growing = {"name": name, "count": 60, "assignments": None}
    answer = await brokers.ask(request(37, 3, topics=[growing], timeout=_SECOND, validate_only=False))
    assert answer.results[0].error_code is E.invalid_topic_exception
    altered = {
        "resource_type": 2, "resource_name": name,
        "configs": [{"name": "retention.ms", "config_operation": 0, "value": "1"}],
    }  # fmt: skip
    answer = await brokers.ask(request(44, 1, resources=[altered], validate_only=False))
    assert answer.responses[0].error_code is E.invalid_topic_exception
    answer = await brokers.ask(request(3, 12, topics=None, allow_auto_topic_creation=False,
                                       include_topic_authorized_operations=False))  # fmt: skip
    internal = {CONSUMER_OFFSETS: True, TRANSACTION_STATE: True}
    assert {one.name: one.is_internal for one in answer.topics} == {"t": False, **internal}
    found = await brokers.clients[0].fetch(name, 0, shard_of("orders", PARTITIONS))
    assert found.records


@pytest.mark.parametrize("name", [CONSUMER_OFFSETS, TRANSACTION_STATE])
async def test_internal_topics_refuse_changes_by_operators(opened: PublishedTopics, name: str) -> None:
    brokers = opened.brokers
    await brokers.clients[0].commit("t", 1)
    await brokers.producer("orders").init()
    await opened.publish()
    context, anna = brokers.all[0].context, Actor("anna", "operator", "10.1.2.3")
    await context.catalog.refresh()
    before = context.catalog.get("default", name)

    for change in (
        actions.add_partitions(context, anna, "default", name, 60),
        actions.alter_configs(context, anna, "default", name, {"cleanup.policy": "delete"}, []),
        actions.trim_topic(context, anna, "default", name, {0: None}),
        actions.delete_topic(context, anna, "default", name),
    ):
        with pytest.raises(InvalidTopic, match="internal topic"):
            await change

    await context.catalog.refresh()
    assert context.catalog.get("default", name) == before is not None
    assert {one["outcome"] for one in await audit.entries(context.store, 10)} == {audit.REFUSED}


async def test_internal_topics_are_off_by_default(store: Store, settings: Settings) -> None:
    async with brokers_of(settings, 1) as brokers:
        [broker] = brokers.all
        context = broker.context
        records = context.transactions.records
        for one in internal_topics(broker.store, settings, context.catalog, context.logs, records, lambda *_: True):
            await one.start()
            assert not one._loops._tasks
            await one.close()
