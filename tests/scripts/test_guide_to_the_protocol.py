"""The guide to the Kafka protocol as a table: each request and response of it, byte for byte, over a socket.

Requests are written and responses compared as the guide's grammars say, without any other codec. Bytes that the broker
chooses (ports, times, member ids) are filled in from the answer, and everything around them is compared.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator

import pytest
from kio.schema.errors import ErrorCode

from tests.support.guide_wire import (
    ACKS,
    API_VERSIONS,
    COMMIT,
    COORDINATOR,
    CORRUPT,
    DESCRIBE,
    EARLIEST,
    EVERY_API,
    FETCH,
    GENERATION,
    GROUP_ID,
    HEARTBEAT,
    INVALID_TOPIC,
    JOIN,
    LATEST,
    LEAVE,
    LIST,
    MEMBER,
    MESSAGE_SIZE,
    METADATA,
    METADATA_TOO_LARGE,
    NO_ERROR,
    OFFSET_FETCH,
    OFFSETS,
    OUT_OF_RANGE,
    PRODUCE,
    PROTOCOL,
    REBALANCING,
    SESSION_TIMEOUT,
    SYNC,
    TOO_LARGE,
    UNKNOWN_PARTITION,
    Asking,
    array,
    blob,
    broker_of_the_guide,
    commit_body,
    committed,
    fetched,
    fetched_offset,
    i16,
    i32,
    i64,
    message,
    produced,
    string,
)
from tests.support.valkey import ValkeyServer
from tidegate.records.batch import Batch
from tidegate.records.batch_header import CONTROL, TRANSACTIONAL
from tidegate.records.build import NewRecord, build_batch


@pytest.fixture
async def broker(valkey: ValkeyServer) -> AsyncIterator[Asking]:
    async with broker_of_the_guide(valkey) as opened:
        yield opened


# -- api keys and versions


async def test_api_versions_lists_every_api_of_the_guide(broker: Asking) -> None:
    answer = await broker.ask(API_VERSIONS, 0, b"")
    (count,) = struct.unpack_from(">i", answer, 2)
    listed = dict(struct.unpack_from(">hh", answer, 6 + 6 * n) for n in range(count))
    assert answer[:2] == i16(NO_ERROR)
    assert {key: listed.get(key) for key in EVERY_API if key not in (4, 5, 6, 7)} == dict.fromkeys(
        [key for key in EVERY_API if key not in (4, 5, 6, 7)], 0
    )


# -- Metadata


async def test_metadata_v0(broker: Asking) -> None:
    topic = await broker.topic()
    node = broker.app.broker.context.broker_lease.node_id
    partition = [i16(NO_ERROR) + i32(index, node) + array(i32(node)) + array(i32(node)) for index in range(2)]
    described = i16(NO_ERROR) + string(topic) + array(*partition)
    brokers = array(i32(node) + string("guide.example") + i32(broker.port))
    assert await broker.ask(METADATA, 0, array(string(topic))) == brokers + array(described)
    assert await broker.ask(METADATA, 0, array()) == brokers + array(described)  # none named: all
    invalid = i16(INVALID_TOPIC) + string("a topic!") + array()
    assert await broker.ask(METADATA, 0, array(string("a topic!"))) == brokers + array(invalid)
    created = await broker.ask(METADATA, 0, array(string("made-by-asking")))
    assert created.startswith(brokers + i32(1) + i16(NO_ERROR) + string("made-by-asking"))


# -- Produce and Fetch


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_produce_and_fetch(broker: Asking, version: int) -> None:
    topic, now = await broker.topic(), int(time.time() * 1000)
    timestamp = now if version == 2 else None
    sent = [(b"k", b"v"), (None, b""), (b"gone", None)]
    data = b"".join(message(9, key, value, timestamp) for key, value in sent)
    after, throttle = (i64(-1) if version == 2 else b""), (i32(0) if version else b"")
    answer = await broker.produce(topic, data, b"", version=version)
    assert answer == produced(topic, (NO_ERROR, 0), (CORRUPT, -1), after=after) + throttle

    stored = [message(offset, key, value, timestamp) for offset, (key, value) in enumerate(sent)]
    start = throttle
    assert await broker.fetch(topic, 0, version=version) == start + fetched(topic, NO_ERROR, 3, b"".join(stored))
    assert await broker.fetch(topic, 1, version=version) == start + fetched(topic, NO_ERROR, 3, b"".join(stored[1:]))
    assert await broker.fetch(topic, 3, version=version) == start + fetched(topic, NO_ERROR, 3, b"")
    cut = stored[0][:20]
    assert await broker.fetch(topic, 0, 20, version) == start + fetched(topic, NO_ERROR, 3, cut)
    fits = stored[0] + stored[1]
    assert await broker.fetch(topic, 0, len(fits) + 5, version) == start + fetched(topic, NO_ERROR, 3, fits)


async def test_fetch_v3_sends_the_first_message_whole(broker: Asking) -> None:
    topic, now = await broker.topic(), int(time.time() * 1000)
    await broker.produce(topic, message(0, b"k", bytes(500), now), b"", version=2)
    whole = i32(0) + fetched(topic, NO_ERROR, 1, message(0, b"k", bytes(500), now))
    assert await broker.fetch(topic, 0, 20, version=3) == whole


async def test_produce_acks_0_has_no_response(broker: Asking) -> None:
    topic = await broker.topic()
    partitions = array(i32(0) + blob(message(0, None, b"v")))
    broker.write(PRODUCE, 0, i16(0) + i32(1_000) + array(string(topic) + partitions))
    answer = await broker.ask(OFFSETS, 0, i32(-1) + array(string(topic) + array(i32(0) + i64(LATEST) + i32(1))))
    assert answer == array(string(topic) + array(i32(0) + i16(NO_ERROR) + array(i64(1))))


MESSAGE = message(0, b"k", b"v")
BAD_CRC = MESSAGE[:12] + bytes(4) + MESSAGE[16:]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (BAD_CRC, CORRUPT),
        (MESSAGE[:-1], CORRUPT),
        (MESSAGE[:8] + i32(-5) + MESSAGE[12:], MESSAGE_SIZE),
        (message(0, b"k", bytes(2_000)), TOO_LARGE),
        (b"", CORRUPT),
    ],
    ids=["crc", "cut", "size", "large", "empty"],
)
async def test_produce_refuses(broker: Asking, data: bytes, code: int) -> None:
    topic = await broker.topic(max_message_bytes="1000")
    assert await broker.produce(topic, data, MESSAGE) == produced(topic, (code, -1), (NO_ERROR, 0))


async def test_produce_refuses_whole_requests(broker: Asking) -> None:
    topic = await broker.topic()
    partitions = array(i32(7) + blob(MESSAGE))
    unknown = array(string(topic) + array(i32(7) + i16(UNKNOWN_PARTITION) + i64(-1)))
    assert await broker.ask(PRODUCE, 0, i16(1) + i32(1_000) + array(string(topic) + partitions)) == unknown
    for acks in (2, -2):
        refused = array(string(topic) + array(i32(7) + i16(ACKS) + i64(-1)))
        assert await broker.ask(PRODUCE, 0, i16(acks) + i32(1_000) + array(string(topic) + partitions)) == refused
    internal = await broker.produce("__consumer_offsets", MESSAGE)
    assert internal == produced("__consumer_offsets", (INVALID_TOPIC, -1))
    assert await broker.produce("nobody-made-this", MESSAGE) == produced("nobody-made-this", (UNKNOWN_PARTITION, -1))


async def test_fetch_refuses(broker: Asking) -> None:
    topic = await broker.topic()
    assert await broker.fetch(topic, 5) == fetched(topic, OUT_OF_RANGE, -1, b"")
    assert await broker.fetch(topic, -1) == fetched(topic, OUT_OF_RANGE, -1, b"")
    assert await broker.fetch("nobody-made-this", 0) == fetched("nobody-made-this", UNKNOWN_PARTITION, -1, b"")
    assert await broker.fetch(topic, 0, index=9) == fetched(topic, UNKNOWN_PARTITION, -1, b"", 9)


async def test_fetch_waits_for_messages(broker: Asking) -> None:
    topic = await broker.topic()
    partition = array(i32(0) + i64(0) + i32(1 << 20))
    broker.write(FETCH, 0, i32(-1, 60_000, 1) + array(string(topic) + partition))
    other = await broker.neighbour()
    await other.produce(topic, MESSAGE)
    answer = await asyncio.wait_for(broker.client.receive_frame(), 40)
    assert answer[4:] == fetched(topic, NO_ERROR, 1, MESSAGE)
    await other.client.close()


async def test_fetch_waits_behind_transaction_markers(broker: Asking) -> None:
    """They are no messages: an answer without any would make clients ask again at once, forever."""
    topic = await broker.topic()
    [found] = [one for one in broker.app.broker.context.catalog.topics("default") if one.name == topic]
    marker = build_batch([NewRecord(bytes(6), bytes(4), 1)], attributes=TRANSACTIONAL | CONTROL)
    for _ in range(2):
        appended = asyncio.get_running_loop().create_future()
        log = broker.app.broker.context.logs.partition(found, 0)
        log.append(Batch.parse(marker), appended.set_result, acks_all=True)
        assert not isinstance(await appended, Exception)
    assert await broker.fetch(topic, 0) == fetched(topic, NO_ERROR, 2, b"")

    partition = array(i32(0) + i64(0) + i32(1 << 20))
    broker.write(FETCH, 0, i32(-1, 60_000, 1) + array(string(topic) + partition))
    receiving = asyncio.create_task(broker.client.receive_frame())
    await asyncio.sleep(0.3)
    assert not receiving.done()
    other = await broker.neighbour()
    await other.produce(topic, MESSAGE)
    assert (await asyncio.wait_for(receiving, 40))[4:] == fetched(topic, NO_ERROR, 3, message(2, b"k", b"v"))
    await other.client.close()


# -- Offsets


@pytest.mark.parametrize(
    ("at", "count", "offsets"),
    [
        (LATEST, 1, [3]),
        (LATEST, 2, [3, 0]),
        (EARLIEST, 1, [0]),
        (EARLIEST, 5, [0]),
        (LATEST, 0, []),
        (2_000, 9, [1, 0]),
        (9_000, 9, [3, 0]),
        (-9, 9, []),
    ],
)
async def test_offsets_v0(broker: Asking, at: int, count: int, offsets: list[int]) -> None:
    topic = await broker.topic()
    data = b"".join(message(0, None, b"v", timestamp) for timestamp in (1_000, 2_000, 3_000))
    await broker.produce(topic, data, b"", version=2)
    answer = await broker.ask(OFFSETS, 0, i32(-1) + array(string(topic) + array(i32(0) + i64(at) + i32(count))))
    assert answer == array(string(topic) + array(i32(0) + i16(NO_ERROR) + array(*map(i64, offsets))))


async def test_offsets_v0_refuses(broker: Asking) -> None:
    topic = await broker.topic()
    for name, index in ((topic, 8), ("nobody-made-this", 0)):
        answer = await broker.ask(OFFSETS, 0, i32(-1) + array(string(name) + array(i32(index) + i64(-1) + i32(1))))
        assert answer == array(string(name) + array(i32(index) + i16(UNKNOWN_PARTITION) + array()))


# -- committed offsets


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_offset_commit_and_fetch(broker: Asking, version: int) -> None:
    topic, read = await broker.topic(), min(version, 1)
    commit = await broker.ask(COMMIT, version, commit_body(version, "g", topic, 1, 42, "note"))
    assert commit == committed(topic, 1, NO_ERROR)
    for index, offset, metadata in ((1, 42, "note"), (0, -1, "")):
        answer = await broker.ask(OFFSET_FETCH, read, string("g") + array(string(topic) + array(i32(index))))
        assert answer == fetched_offset(topic, index, offset, metadata)
    large = await broker.ask(COMMIT, version, commit_body(version, "g", topic, 1, 43, "x" * 5_000))
    assert large == committed(topic, 1, METADATA_TOO_LARGE)
    unknown = await broker.ask(COMMIT, version, commit_body(version, "g", topic, 5, 43, None))
    assert unknown == committed(topic, 5, UNKNOWN_PARTITION)


async def test_offset_fetch_v0_alone_refuses_unknown_partitions(broker: Asking) -> None:
    topic = await broker.topic()
    for version, code in ((0, UNKNOWN_PARTITION), (1, NO_ERROR)):
        for name, index in ((topic, 5), ("nobody-made-this", 0)):
            answer = await broker.ask(OFFSET_FETCH, version, string("g") + array(string(name) + array(i32(index))))
            assert answer == fetched_offset(name, index, -1, "", code)


async def test_offset_commit_v1_timestamp_extends_the_retention(broker: Asking) -> None:
    topic, ahead_ms = await broker.topic(), int(time.time() * 1000) + 86_400_000
    for at, extended in ((ahead_ms, True), (1, False), (-1, False)):
        group = f"g{at}"
        partition = array(i32(0) + i64(7) + i64(at) + string(None))
        body = string(group) + i32(-1) + string("") + array(string(topic) + partition)
        assert await broker.ask(COMMIT, 1, body) == committed(topic, 0, NO_ERROR)
        store = broker.app.broker.context.store
        stored = await store.command("HGET", store.group_keys("default", group).offsets, f"{topic}:0")
        assert (b"expire_time" in stored) is extended


# -- groups


async def test_group_coordinator_v0(broker: Asking) -> None:
    node = broker.app.broker.context.broker_lease.node_id
    expected = i16(NO_ERROR) + i32(node) + string("guide.example") + i32(broker.port)
    assert await broker.ask(COORDINATOR, 0, string("g")) == expected


async def test_group_membership_v0(broker: Asking) -> None:
    protocols = array(string("range") + blob(b"subscription"))
    joining = string("g") + i32(10_000) + string("") + string("consumer") + protocols
    joined = await broker.ask(JOIN, 0, joining)
    assert joined.startswith(i16(NO_ERROR) + i32(1) + string("range"))
    (size,) = struct.unpack_from(">h", joined, 13)
    member = joined[15 : 15 + size].decode()
    members = array(string(member) + blob(b"subscription"))
    assert joined == i16(NO_ERROR) + i32(1) + string("range") + string(member) + string(member) + members

    assignment = array(string(member) + blob(b"assignment"))
    synced = await broker.ask(SYNC, 0, string("g") + i32(1) + string(member) + assignment)
    assert synced == i16(NO_ERROR) + blob(b"assignment")
    assert await broker.ask(HEARTBEAT, 0, string("g") + i32(1) + string(member)) == i16(NO_ERROR)

    described = await broker.ask(DESCRIBE, 0, array(string("g")))
    shown = string(member) + string("guide") + string("/127.0.0.1") + blob(b"subscription") + blob(b"assignment")
    state = string("g") + string("Stable") + string("consumer") + string("range")
    assert described == array(i16(NO_ERROR) + state + array(shown))
    assert await broker.ask(LIST, 0, b"") == i16(NO_ERROR) + array(string("g") + string("consumer"))

    for generation, name, code in ((2, member, GENERATION), (1, "nobody", MEMBER)):
        assert await broker.ask(HEARTBEAT, 0, string("g") + i32(generation) + string(name)) == i16(code)
        refused = await broker.ask(SYNC, 0, string("g") + i32(generation) + string(name) + array())
        assert refused == i16(code) + blob(b"")
        topic = await broker.topic()
        partition = array(i32(0) + i64(1) + i64(-1) + string(None))
        body = string("g") + i32(generation) + string(name) + array(string(topic) + partition)
        assert await broker.ask(COMMIT, 1, body) == committed(topic, 0, code)
    other = await broker.ask(JOIN, 0, joining.replace(string("consumer"), string("connect")))
    assert other[:2] == i16(PROTOCOL)

    again = await broker.neighbour()
    again.write(JOIN, 0, joining)
    deadline = time.monotonic() + 20
    while await broker.ask(HEARTBEAT, 0, string("g") + i32(1) + string(member)) != i16(REBALANCING):
        assert time.monotonic() < deadline
    assert await broker.ask(LEAVE, 0, string("g") + string(member)) == i16(NO_ERROR)
    assert await broker.ask(LEAVE, 0, string("g") + string(member)) == i16(MEMBER)
    await again.client.close()


@pytest.mark.parametrize(
    ("group", "timeout_ms", "code"),
    [("", 10_000, GROUP_ID), ("g", 1, SESSION_TIMEOUT), ("g", 2_000_000_000, SESSION_TIMEOUT)],
)
async def test_join_group_v0_refuses(broker: Asking, group: str, timeout_ms: int, code: int) -> None:
    protocols = array(string("range") + blob(b""))
    body = string(group) + i32(timeout_ms) + string("") + string("consumer") + protocols
    assert await broker.ask(JOIN, 0, body) == i16(code) + i32(-1) + string("") + string("") + string("") + array()


# -- error codes

GUIDE = {
    -1: "unknown_server_error", 0: "none", 1: "offset_out_of_range", 2: "corrupt_message",
    3: "unknown_topic_or_partition", 4: "invalid_fetch_size", 5: "leader_not_available", 6: "not_leader_or_follower",
    7: "request_timed_out", 8: "broker_not_available", 9: "replica_not_available", 10: "message_too_large",
    11: "stale_controller_epoch", 12: "offset_metadata_too_large", 14: "coordinator_load_in_progress",
    15: "coordinator_not_available", 16: "not_coordinator", 17: "invalid_topic_exception", 18: "record_list_too_large",
    19: "not_enough_replicas", 20: "not_enough_replicas_after_append", 21: "invalid_required_acks",
    22: "illegal_generation", 23: "inconsistent_group_protocol", 24: "invalid_group_id", 25: "unknown_member_id",
    26: "invalid_session_timeout", 27: "rebalance_in_progress", 28: "invalid_commit_offset_size",
    29: "topic_authorization_failed", 30: "group_authorization_failed", 31: "cluster_authorization_failed",
}  # fmt: skip


@pytest.mark.parametrize("code", GUIDE)
def test_error_codes_of_the_guide_keep_their_numbers(code: int) -> None:
    assert ErrorCode(code).name == GUIDE[code]
