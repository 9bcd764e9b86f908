"""What the guide to the Kafka protocol says in sentences and in its lists of error codes, byte for byte."""

from __future__ import annotations

import asyncio
import gzip
import struct
import time
from asyncio import IncompleteReadError
from collections.abc import AsyncIterator
from zlib import crc32

import pytest
from cramjam import snappy

from tests.support.guide_wire import (
    API_VERSIONS,
    COMMIT,
    COORDINATOR,
    DESCRIBE,
    FETCH,
    GENERATION,
    HEARTBEAT,
    JOIN,
    LATEST,
    LEAVE,
    LIST,
    MEMBER,
    METADATA,
    NO_ERROR,
    OFFSET_FETCH,
    OFFSETS,
    PRODUCE,
    REBALANCING,
    SYNC,
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

GZIP, SNAPPY = 1, 2
UNSUPPORTED_VERSION, TOPIC_DENIED, GROUP_DENIED = 35, 29, 30
WAIT_S = 60.0


@pytest.fixture
async def broker(valkey: ValkeyServer) -> AsyncIterator[Asking]:
    async with broker_of_the_guide(valkey, auto_create_topics_enable=False) as opened:
        yield opened


# -- Network, versioning


async def test_responses_keep_the_order_of_requests(broker: Asking) -> None:
    topic = await broker.topic()
    waiting = i32(-1, 300, 1) + array(string(topic) + array(i32(0) + i64(0) + i32(1 << 20)))
    first = broker.correlation_id + 1
    broker.write(FETCH, 0, waiting)  # waits for messages, and everything behind it waits too
    for _ in range(3):
        broker.write(COORDINATOR, 0, string("g"))
    answers = [await asyncio.wait_for(broker.client.receive_frame(), WAIT_S) for _ in range(4)]
    assert [answer[:4] for answer in answers] == [i32(first + n) for n in range(4)]
    assert answers[0][4:] == fetched(topic, NO_ERROR, 0, b"")


async def test_request_above_the_limit_is_disconnected(valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.server.limits.REQUEST_BYTES_MAX", 65_536)
    async with broker_of_the_guide(valkey) as broker:
        broker.client.writer.write(i32(65_537))
        with pytest.raises(IncompleteReadError):
            await asyncio.wait_for(broker.client.receive_frame(), WAIT_S)


async def test_unknown_versions_are_rejected(broker: Asking) -> None:
    answer = await broker.ask(API_VERSIONS, 99, b"\0")  # the header of every newer version ends with tags
    assert answer[:2] == i16(UNSUPPORTED_VERSION)
    broker.write(HEARTBEAT, 99, string("g") + i32(1) + string("m"))
    with pytest.raises(IncompleteReadError):
        await asyncio.wait_for(broker.client.receive_frame(), WAIT_S)


# -- Compression


def wrapper(offset: int, codec: int, inner: bytes, timestamp: int | None = None) -> bytes:
    """A message with a compressed message set in its value."""
    squeezed = gzip.compress(inner) if codec == GZIP else bytes(snappy.compress_raw(inner))
    start = bytes([0, codec]) if timestamp is None else bytes([1, codec]) + i64(timestamp)
    body = start + blob(None) + blob(squeezed)
    return i64(offset) + i32(len(body) + 4) + struct.pack(">I", crc32(body)) + body


def unwrapped(data: bytes) -> tuple[int, int, int, bytes]:
    """Offset, magic, attributes and decompressed value of the one message in the set."""
    offset, size, crc, magic, attributes = struct.unpack_from(">qiIbb", data)
    assert len(data) == 12 + size
    assert crc == crc32(data[16:])
    start = 26 if magic else 18
    assert data[start : start + 4] == i32(-1)
    assert len(data) == start + 8 + int.from_bytes(data[start + 4 : start + 8], "big")
    value = data[start + 8 :]
    if attributes & 3 == GZIP:
        return offset, magic, attributes, gzip.decompress(value)
    xerial = value.startswith(b"\x82SNAPPY\0")
    return offset, magic, attributes, bytes(snappy.decompress_raw(value[20:] if xerial else value))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY])
@pytest.mark.parametrize("version", [0, 2])
async def test_compressed_message_sets(broker: Asking, version: int, codec: int) -> None:
    """Inner offsets are absolute in magic 0 and relative in magic 1; the wrapper has the last one."""
    topic, now = await broker.topic(), int(time.time() * 1000) if version else None
    throttle = i32(0) if version else b""
    pairs = [(b"a", b"1"), (None, b""), (b"gone", None)]
    inner = b"".join(message(n, key, value, now) for n, (key, value) in enumerate(pairs))
    sent = wrapper(2, codec, inner, now)
    for base in (0, 3):
        after = i64(-1) if version else b""
        answer = await broker.produce(topic, sent, sent, version=version)
        assert answer == produced(topic, (NO_ERROR, base), (NO_ERROR, base), after=after) + throttle

    answer = await broker.fetch(topic, 4, version=version)  # inside the second set
    head = throttle + array(string(topic) + array(i32(0) + i16(NO_ERROR) + i64(6) + blob(b"")))[:-4]
    assert answer[: len(head)] == head
    first = 0 if version else 4
    stored = b"".join(message(first + n, key, value, now) for n, (key, value) in enumerate(pairs[1:]))
    assert unwrapped(answer[len(head) + 4 :]) == (5, 1 if version else 0, codec, stored)


# -- Fetch


async def test_fetch_min_bytes(broker: Asking) -> None:
    topic = await broker.topic()

    def asked(wait_ms: int, min_bytes: int, replica: int = -1) -> bytes:
        return i32(replica, wait_ms, min_bytes) + array(string(topic) + array(i32(0) + i64(0) + i32(1 << 20)))

    started = time.monotonic()
    assert await broker.ask(FETCH, 0, asked(600_000, 0)) == fetched(topic, NO_ERROR, 0, b"")
    assert time.monotonic() - started < 300

    one = message(0, None, bytes(100))
    broker.write(FETCH, 0, asked(600_000, 2 * len(one)))
    waiting = asyncio.create_task(broker.client.receive_frame())
    other = await broker.neighbour()
    await other.produce(topic, one)
    await other.produce(topic, one)
    both = one + message(1, None, bytes(100))
    assert (await asyncio.wait_for(waiting, WAIT_S))[4:] == fetched(topic, NO_ERROR, 2, both)

    assert await broker.ask(FETCH, 0, asked(50, 1 << 20)) == fetched(topic, NO_ERROR, 2, both)  # its time is over
    assert await broker.ask(FETCH, 0, asked(50, 1, replica=-2)) == fetched(topic, NO_ERROR, 2, both)
    await other.client.close()


# -- Metadata


async def test_metadata_unknown_topic(broker: Asking) -> None:
    answer = await broker.ask(METADATA, 0, array(string("nobody-made-this")))
    assert answer.endswith(array(i16(UNKNOWN_PARTITION) + string("nobody-made-this") + array()))


# -- group membership


def join_body(member: str, *protocols: str, session_ms: int = 60_000, kind: str = "consumer") -> bytes:
    offered = array(*[string(name) + blob(f"{name} metadata".encode()) for name in protocols])
    return string("g") + i32(session_ms) + string(member) + string(kind) + offered


def sync_body(generation: int, member: str, *plan: tuple[str, bytes]) -> bytes:
    return string("g") + i32(generation) + string(member) + array(*[string(one) + blob(data) for one, data in plan])


def strings(data: bytes, position: int, count: int) -> tuple[list[str], int]:
    """As many strings from there, and where they end."""
    found = []
    for _ in range(count):
        (size,) = struct.unpack_from(">h", data, position)
        found.append(data[position + 2 : position + 2 + size].decode())
        position += 2 + size
    return found, position


async def test_two_members_join_sync_and_rejoin(broker: Asking) -> None:
    """All rejoin when one joins; the leader alone sees the members; a protocol that all support; nobody syncs alone."""
    other = await broker.neighbour()
    joined = await broker.ask(JOIN, 0, join_body("", "sticky", "range"))
    assert joined.startswith(i16(NO_ERROR) + i32(1) + string("sticky"))
    [protocol, leader, first], _ = strings(joined, 6, 3)
    assert (protocol, leader) == ("sticky", first)
    assert await broker.ask(SYNC, 0, sync_body(1, first, (first, b"all"))) == i16(NO_ERROR) + blob(b"all")

    other.write(JOIN, 0, join_body("", "range"))
    while await broker.ask(HEARTBEAT, 0, string("g") + i32(1) + string(first)) != i16(REBALANCING):
        await asyncio.sleep(0.01)
    assert await broker.ask(SYNC, 0, sync_body(1, first)) == i16(REBALANCING) + blob(b"")
    rejoined = await broker.ask(JOIN, 0, join_body(first, "sticky", "range"))
    followed = (await asyncio.wait_for(other.client.receive_frame(), WAIT_S))[4:]
    start = i16(NO_ERROR) + i32(2) + string("range") + string(first)
    [second], _ = strings(followed, len(start), 1)
    assert followed == start + string(second) + array()
    members = [string(one) + blob(b"range metadata") for one in (first, second)]
    assert rejoined in [start + string(first) + array(*order) for order in (members, members[::-1])]

    topic = await broker.topic()
    assert await broker.ask(COMMIT, 2, commit_of(2, first, topic, 1)) == committed(topic, 0, REBALANCING)
    other.write(SYNC, 0, sync_body(2, second))  # answered only once the leader sends its plan
    synced = await broker.ask(SYNC, 0, sync_body(2, first, (first, b"one"), (second, b"two")))
    assert synced == i16(NO_ERROR) + blob(b"one")
    assert (await asyncio.wait_for(other.client.receive_frame(), WAIT_S))[4:] == i16(NO_ERROR) + blob(b"two")
    for generation, code in ((1, GENERATION), (2, NO_ERROR)):
        assert await broker.ask(HEARTBEAT, 0, string("g") + i32(generation) + string(second)) == i16(code)
        assert await broker.ask(COMMIT, 2, commit_of(generation, second, topic, 7)) == committed(topic, 0, code)
    assert await broker.ask(JOIN, 0, join_body("nobody", "range")) == (
        i16(MEMBER) + i32(-1) + string("") + string("") + string("nobody") + array()
    )
    await other.client.close()


def commit_of(generation: int, member: str, topic: str, offset: int) -> bytes:
    """OffsetCommit v2 of a member."""
    whole = commit_body(2, "g", topic, 0, offset, None)
    anonymous = string("g") + i32(-1) + string("")
    return string("g") + i32(generation) + string(member) + whole[len(anonymous) :]


async def test_silent_member_is_removed_after_its_session(valkey: ValkeyServer) -> None:
    async with broker_of_the_guide(valkey, group_min_session_timeout_ms=100) as broker:
        joined = await broker.ask(JOIN, 0, join_body("", "range", session_ms=200))
        [_, member, _], _ = strings(joined, 6, 3)
        await broker.ask(SYNC, 0, sync_body(1, member, (member, b"")))
        deadline = time.monotonic() + WAIT_S
        empty = array(i16(NO_ERROR) + string("g") + string("Empty") + string("consumer") + string("") + array())
        while await broker.ask(DESCRIBE, 0, array(string("g"))) != empty:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert await broker.ask(HEARTBEAT, 0, string("g") + i32(1) + string(member)) == i16(MEMBER)


async def test_describe_groups_unknown_group(broker: Asking) -> None:
    dead = i16(NO_ERROR) + string("nobody") + string("Dead") + string("") + string("") + array()
    assert await broker.ask(DESCRIBE, 0, array(string("nobody"))) == array(dead)


# -- authorization


async def test_requests_without_rights(valkey: ValkeyServer) -> None:
    """TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED: each API of the guide in its own shape."""
    async with broker_of_the_guide(valkey, acl_enabled=True) as broker:
        topic = await broker.topic()
        part = array(string(topic) + array(i32(0) + i64(0) + i32(1 << 20)))
        at = array(string(topic) + array(i32(0) + i64(LATEST) + i32(1)))
        member = string("g") + i32(1) + string("m")
        nobody = i32(-1) + string("") + string("") + string("")
        produce = i16(1) + i32(1_000) + array(string(topic) + array(i32(0) + blob(message(0, None, b"v"))))
        denied_topic = array(i16(TOPIC_DENIED) + string(topic) + array())
        assert (await broker.ask(METADATA, 0, array(string(topic)))).endswith(denied_topic)
        asked = {
            PRODUCE: (produce, produced(topic, (TOPIC_DENIED, -1))),
            FETCH: (i32(-1, 0, 1) + part, fetched(topic, TOPIC_DENIED, -1, b"")),
            OFFSETS: (i32(-1) + at, array(string(topic) + array(i32(0) + i16(TOPIC_DENIED) + array()))),
            COMMIT: (commit_body(0, "g", topic, 0, 1, None), committed(topic, 0, GROUP_DENIED)),
            OFFSET_FETCH: (
                string("g") + array(string(topic) + array(i32(0))),
                fetched_offset(topic, 0, -1, "", GROUP_DENIED),
            ),
            COORDINATOR: (string("g"), i16(GROUP_DENIED) + i32(-1) + string("") + i32(-1)),
            JOIN: (join_body("", "range"), i16(GROUP_DENIED) + nobody + array()),
            SYNC: (sync_body(1, "m"), i16(GROUP_DENIED) + blob(b"")),
            HEARTBEAT: (member, i16(GROUP_DENIED)),
            LEAVE: (string("g") + string("m"), i16(GROUP_DENIED)),
            DESCRIBE: (
                array(string("g")),
                array(i16(GROUP_DENIED) + string("g") + string("") + string("") + string("") + array()),
            ),
            LIST: (b"", i16(NO_ERROR) + array()),
        }
        assert {key: await broker.ask(key, 0, body) for key, (body, _) in asked.items()} == {
            key: answer for key, (_, answer) in asked.items()
        }
