"""What a client must not send, and what a broker does then: nothing crashes, hangs or grows."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
import struct
from typing import Any

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.heartbeat.v4.request import HeartbeatRequest

from tests.kit.wire import RawClient, decode_response, encode_request, frame, request_type
from tests.support.samples import sample
from tests.unit.server.fakes import (
    CREATE_TOPICS,
    FETCH,
    JOIN_GROUP,
    PRODUCE,
    Handlers,
    another,
    closed,
    connected,
    on_both_loops,
    until,
)
from tidegate.errors import GroupMaxSizeReached, StoreUnavailable
from tidegate.protocol.primitives import uvarint
from tidegate.server.connection import Connection
from tidegate.server.listener import Server

VERSIONS: Any = ApiVersionsRequest(client_software_name="t", client_software_version="1")
HEARTBEAT_REQUEST: Any = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)


async def still_serves(server: Server) -> None:
    async with await another(server) as client:
        await client.ask(HEARTBEAT_REQUEST, timeout_s=30)


async def refused(data: bytes, **settings: Any) -> bytes:
    """What a broker answers to these bytes before it closes; others are served all the same."""
    async with connected(Handlers(), **settings) as (server, client):
        client.writer.write(data)
        answered = await closed(client)
        await still_serves(server)
        assert server.request_bytes.held == 0
        return answered


@on_both_loops
async def test_frame_above_the_limit_closes_at_once_and_reserves_nothing() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert await refused(struct.pack(">i", 104_857_601)) == b""
    assert await refused(struct.pack(">i", 2**31 - 1)) == b""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


@on_both_loops
async def test_negative_length_closes_at_once() -> None:
    assert await refused(struct.pack(">i", -1)) == b""


@on_both_loops
async def test_frame_too_short_for_a_header_closes() -> None:
    assert await refused(frame(b"")) == b""
    assert await refused(frame(b"\0\x0c\0\0\0\0\0\1")) == b""


@on_both_loops
async def test_unknown_api_closes_without_an_answer() -> None:
    assert await refused(frame(struct.pack(">hhih", 9999, 0, 1, -1))) == b""


@on_both_loops
async def test_log_6_version_that_is_not_served_closes_without_an_answer() -> None:
    for version in (-1, 5, 32767):
        assert await refused(frame(struct.pack(">hhih", 12, version, 1, -1))) == b""


@on_both_loops
async def test_large_frame_that_becomes_no_request_is_released() -> None:
    """Else the frames of others find no capacity for ever: one that nobody serves, and headers that cannot be read."""
    filler = bytes(300_000)
    assert await refused(frame(struct.pack(">hhih", 9999, 0, 1, -1) + filler)) == b""
    assert await refused(frame(struct.pack(">hhih", 12, 5, 1, -1) + filler)) == b""
    assert await refused(frame(struct.pack(">hhih", 12, 0, 1, 30_000) + b"\xff" * 300_000)) == b""
    assert await refused(frame(struct.pack(">hhih", 12, 4, 1, -1) + b"\xff" * 300_000)) == b""


@on_both_loops
async def test_frame_that_cannot_be_started_closes() -> None:
    """What no check foresees (here: no memory) is not left without an answer."""

    def unable(*_: Any) -> Any:
        raise MemoryError

    for filler in (0, 300_000):
        async with connected(Handlers()) as (server, client):
            server.request_type = unable  # type: ignore[assignment]
            client.writer.write(frame(struct.pack(">hhih", 12, 0, 1, -1) + bytes(10 + filler)))
            assert await closed(client) == b""
            assert server.request_bytes.held == 0


@on_both_loops
async def test_request_that_cannot_be_decoded_for_want_of_memory_closes() -> None:
    def unable(*_: Any) -> Any:
        raise MemoryError

    for filler in (0, 300_000):
        async with connected(Handlers()) as (server, client):
            await client.ask(HEARTBEAT_REQUEST, timeout_s=30)
            for route in server.routes.values():
                route.decode = unable
            client.writer.write(frame(struct.pack(">hhihb", 12, 4, 1, -1, 0) + bytes(10 + filler)))
            assert await closed(client) == b""
            assert (server.request_bytes.held, server.large_requests.held) == (0, 0)


@on_both_loops
async def test_replies_that_cannot_be_sent_keep_those_of_others() -> None:
    async with connected(Handlers()) as (server, first), await another(server) as second:
        await first.ask(HEARTBEAT_REQUEST, timeout_s=30)
        await second.ask(HEARTBEAT_REQUEST, timeout_s=30)
        broken, other = server.connections

        def unable() -> None:
            raise MemoryError

        broken.flush = unable  # type: ignore[method-assign]
        for connection in (broken, other):
            connection._scheduled = True
            server.tick.flush_soon(connection)
        other.out.append(b"\0\0\0\0")

        assert await second.receive_frame() == b""
        assert await closed(first) == b""


@on_both_loops
async def test_client_id_longer_than_its_frame_closes() -> None:
    assert await refused(frame(struct.pack(">hhih", 12, 0, 1, 500) + b"abc")) == b""


@on_both_loops
async def test_client_id_that_is_not_utf8_is_answered() -> None:
    good = encode_request(HEARTBEAT_REQUEST, 1, None)
    async with connected(Handlers()) as (_, client):
        client.writer.write(frame(good[4:12] + struct.pack(">h", 2) + b"\xff\xfe" + good[14:]))
        assert struct.unpack_from(">i", await client.receive_frame())[0] == 1


@on_both_loops
async def test_body_that_ends_too_early_closes() -> None:
    assert await refused(frame(encode_request(HEARTBEAT_REQUEST, 1)[4:-1])) == b""


@on_both_loops
async def test_bytes_behind_a_body_are_ignored() -> None:
    async with connected(Handlers()) as (_, client):
        client.writer.write(frame(encode_request(HEARTBEAT_REQUEST, 1)[4:] + b"\0abc"))
        client.writer.write(encode_request(HEARTBEAT_REQUEST, 2))
        replies = [await client.reader.readexactly(16) for _ in range(2)]
        assert [struct.unpack_from(">i", reply, 4) for reply in replies] == [(1,), (2,)]


@on_both_loops
async def test_requests_before_the_refused_one_are_answered() -> None:
    good, bad = encode_request(HEARTBEAT_REQUEST, 1), frame(struct.pack(">hhih", 9999, 0, 2, -1))
    answered = await refused(good + good + bad + good)
    assert len(answered) == 2 * 16


@on_both_loops
async def test_requests_waiting_before_the_refused_one_are_answered() -> None:
    handlers = Handlers()
    async with connected(handlers) as (_, client):
        client.send(sample(request_type(FETCH, 12)))
        client.writer.write(frame(struct.pack(">hhih", 9999, 0, 2, -1)) + encode_request(HEARTBEAT_REQUEST, 3))
        await until(lambda: handlers.parked)
        await asyncio.sleep(0.02)
        handlers.answer_fetch(handlers.parked[0])
        assert (await client.receive())[0] == 1
        assert await closed(client) == b""
    assert handlers.started == ["fetch"]


@on_both_loops
async def test_malformed_request_closes_after_the_replies_before_it() -> None:
    handlers = Handlers()
    async with connected(handlers) as (_, client):
        client.send(sample(request_type(FETCH, 12)))
        client.writer.write(frame(encode_request(HEARTBEAT_REQUEST, 3)[4:-1]) + encode_request(HEARTBEAT_REQUEST, 4))
        await until(lambda: handlers.parked)
        await asyncio.sleep(0.02)
        handlers.answer_fetch(handlers.parked[0])
        assert (await client.receive())[0] == 1
        assert await closed(client) == b""


@on_both_loops
async def test_api_versions_from_the_future_is_answered_in_the_oldest_form() -> None:
    async with connected(Handlers()) as (_, client):
        client.writer.write(frame(struct.pack(">hhih", 18, 99, 77, 3) + b"abc" + b"\0\xff\x00anything"))
        correlation_id, answer = decode_response(18, 0, await client.receive_frame())
        assert correlation_id == 77
        assert answer.error_code.value == 35
        assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [(18, 0, 4)]

        answer = await client.ask(VERSIONS)
        assert answer.error_code.value == 0
        assert len(answer.api_keys) > 1


@on_both_loops
async def test_api_versions_v3_has_no_tags_in_its_header() -> None:
    async with connected(Handlers()) as (_, client):
        client.send(VERSIONS)
        answered = await client.receive_frame()
        assert answered[:6] == struct.pack(">ih", 1, 0)
        decode_response(18, 3, answered)


@on_both_loops
async def test_unknown_tagged_fields_are_skipped_in_header_and_body() -> None:
    async with connected(Handlers()) as (_, client):
        plain = encode_request(VERSIONS, 5, "raw")[4:]
        header_size = 10 + 3
        assert plain[header_size] == 0 and plain[-1] == 0
        tags = b"\1" + uvarint(5) + uvarint(3) + b"xyz"
        body_tags = b"\1" + uvarint(99) + uvarint(200) + bytes(200)
        client.writer.write(frame(plain[:header_size] + tags + plain[header_size + 1 : -1] + body_tags))
        correlation_id, answer = decode_response(18, 3, await client.receive_frame())
        assert correlation_id == 5
        assert answer.error_code.value == 0


@on_both_loops
async def test_null_client_id() -> None:
    async with connected(Handlers()) as (server, client):
        client.client_id = None
        await client.ask(HEARTBEAT_REQUEST)
        assert [connection.client_id for connection in server.connections] == [""]


async def feed(server: Server, data: bytes) -> None:
    """Bytes on a connection of their own, then the end."""
    client = await another(server)
    try:
        client.writer.write(data)
        client.writer.write_eof()
        await asyncio.wait_for(client.reader.read(), 30)
    except ConnectionError:
        pass
    finally:
        await client.close()


@on_both_loops
async def test_every_truncation() -> None:
    async with connected(Handlers()) as (server, _):
        samples = [
            encode_request(sample(request_type(*api)), 7) for api in ((12, 4), (19, 7), (18, 3), (1, 12), (12, 0))
        ]
        for whole in samples:
            for size in range(len(whole) - 4):
                await feed(server, frame(whole[4 : 4 + size]))
            for size in range(1, len(whole), 3):
                await feed(server, whole[:size])
        await still_serves(server)
        await until(lambda: len(server.connections) == 1)
        assert server.request_bytes.held == 0


@on_both_loops
async def test_random_bytes() -> None:
    rng = random.Random(20261121)
    wholes = [
        encode_request(sample(request_type(*api)), 7) for api in ((12, 4), (19, 7), (18, 3), (1, 12), (0, 9), (11, 9))
    ]
    async with connected(Handlers()) as (server, _):
        for _ in range(150):
            await feed(server, rng.randbytes(rng.randrange(1, 200)))
            mutated = bytearray(rng.choice(wholes))
            for _ in range(rng.randrange(1, 6)):
                mutated[rng.randrange(4, len(mutated))] = rng.randrange(256)
            await feed(server, bytes(mutated))
        await still_serves(server)
        await until(lambda: len(server.connections) == 1)
        assert server.request_bytes.held == 0


@on_both_loops
async def test_kafka_error_of_a_handler_is_answered() -> None:
    handlers = Handlers()
    handlers.error = GroupMaxSizeReached()
    async with connected(handlers) as (_, client):
        assert (await client.ask(HEARTBEAT_REQUEST)).error_code.value == 81
        answer = await client.ask(sample(request_type(CREATE_TOPICS, 7)))
        assert [topic.error_code.value for topic in answer.topics] == [81]


@on_both_loops
async def test_store_unavailable_is_answered_with_a_retriable_code() -> None:
    handlers = Handlers()
    handlers.error = StoreUnavailable()
    async with connected(handlers) as (_, client):
        assert (await client.ask(HEARTBEAT_REQUEST)).error_code.value == 15
        answer = await client.ask(sample(request_type(FETCH, 4)))
        assert [part.error_code.value for topic in answer.responses for part in topic.partitions] == [56]
        answer = await client.ask(sample(request_type(PRODUCE, 13)))
        assert [part.error_code.value for topic in answer.responses for part in topic.partition_responses] == [7]


@on_both_loops
async def test_bug_in_a_handler_is_an_unknown_server_error_and_the_connection_stays() -> None:
    handlers = Handlers()
    handlers.error = RuntimeError("a bug")
    async with connected(handlers) as (_, client):
        assert (await client.ask(HEARTBEAT_REQUEST)).error_code.value == -1
        await client.ask(sample(request_type(CREATE_TOPICS, 7)))
        handlers.error = None
        assert (await client.ask(HEARTBEAT_REQUEST)).error_code.value == 0


@on_both_loops
async def test_failed_produce_without_acks_closes() -> None:
    handlers = Handlers()
    handlers.error = StoreUnavailable()
    produce: Any = sample(request_type(PRODUCE, 9))
    object.__setattr__(produce, "acks", 0)
    async with connected(handlers) as (_, client):
        client.send(produce)
        assert await closed(client) == b""


@on_both_loops
async def test_connections_above_the_cap_are_refused() -> None:
    async with connected(Handlers(), connections_max=1) as (server, client):
        await client.ask(HEARTBEAT_REQUEST)
        async with await another(server) as refused_client:
            assert await closed(refused_client) == b""
        await client.ask(HEARTBEAT_REQUEST)


@pytest.mark.parametrize(("api_key", "size"), [(JOIN_GROUP, 5 << 20), (CREATE_TOPICS, 17 << 20)])
async def test_start_request_too_large_to_decode_is_refused_undecoded(api_key: int, size: int) -> None:
    async with connected(Handlers()) as (_, client):
        client.writer.write(struct.pack(">ihhih", size, api_key, 4, 1, -1) + bytes(size - 10))
        assert await closed(client) == b""


@on_both_loops
async def test_address_of_an_ipv4_client_of_an_ipv6_socket_is_ipv4() -> None:
    """Rules and ranges of IPv4 addresses apply to it."""
    async with connected(Handlers()) as (server, _):
        sock = socket.socket(socket.AF_INET6)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::ffff:127.0.0.1", 0))
        made: list[Connection] = []

        def connect() -> Connection:
            made.append(Connection(server, "PLAINTEXT"))
            return made[0]

        address = f"127.0.0.1:{sock.getsockname()[1]}"
        async with await server.loop.create_server(connect, sock=sock), await RawClient.connect(address) as client:
            await client.ask(HEARTBEAT_REQUEST, timeout_s=30)
            assert made[0].client.host == "127.0.0.1"
