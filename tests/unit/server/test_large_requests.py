"""Large requests are handled one after the other where they would take too much memory together."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import encode_request, request_type
from tests.support.samples import sample
from tests.unit.server.fakes import (
    CREATE_TOPICS,
    FETCH,
    HEARTBEAT,
    JOIN_GROUP,
    PRODUCE,
    Handlers,
    another,
    closed,
    connected,
    on_both_loops,
    until,
)
from tidegate.admissions import Admissions
from tidegate.apis.call import BrokerContext, Call
from tidegate.protocol import codec, group_writers
from tidegate.protocol.primitives import uvarint
from tidegate.server.dispatch import LARGE_ANSWER_BYTES, LARGE_BYTES
from tidegate.server.listener import Server
from tidegate.server.pending_request import ENCODED_INLINE_BYTES_MAX
from tidegate.store.tasks import TaskSet


async def test_large_requests_are_admitted_in_order_of_arrival() -> None:
    requests, admitted = Admissions(10), list[str]()

    async def handle(name: str, size: int) -> Any:
        admission = await requests.admit(size)
        admitted.append(name)
        return admission

    first = await handle("more than all may have", 99)
    second, third, fourth = (asyncio.create_task(handle(f"of {size}", size)) for size in (6, 4, 1))
    await asyncio.sleep(0)
    assert admitted == ["more than all may have"]

    first.end()
    first.end()
    admissions = [await second, await third]
    await asyncio.sleep(0)
    assert (admitted[1:], requests.held) == (["of 6", "of 4"], 10)

    admissions[0].end()
    (await fourth).end()
    admissions[1].end()
    assert requests.held == 0


async def test_cancelled_large_request_is_not_admitted() -> None:
    requests = Admissions(10)
    first = await requests.admit(10)
    cancelled, admitted, last = (asyncio.create_task(requests.admit(10)) for _ in range(3))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    first.end()
    admitted.cancel()  # it has been admitted
    await asyncio.wait([admitted])

    (await last).end()
    assert requests.held == 0


def large(key: int, version: int, **values: Any) -> bytes:
    """A frame that is decoded in the thread."""
    frame = encode_request(replace(sample(request_type(key, version)), **values), 1)
    assert len(frame) > LARGE_BYTES
    return frame


TOPIC = sample(request_type(CREATE_TOPICS, 7)).topics[0]
CREATE = large(CREATE_TOPICS, 7, topics=tuple(replace(TOPIC, name=f"{number:01000}") for number in range(100)))
PROTOCOL = sample(request_type(JOIN_GROUP, 9)).protocols[0]
JOIN = large(JOIN_GROUP, 9, protocols=(replace(PROTOCOL, metadata=bytes(LARGE_BYTES)),))


@on_both_loops
async def test_large_requests_of_several_connections_wait_for_each_other() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, first), await another(server) as second, await another(server) as gone:
        server.large_requests = Admissions(1)
        first.writer.write(CREATE)
        await until(lambda: handlers.started == ["create_topics"])
        gone.writer.write(CREATE)
        await until(lambda: sum(bool(one.pipeline) for one in server.connections) == 2)
        second.writer.write(CREATE)
        await until(lambda: sum(bool(one.pipeline) for one in server.connections) == 3)
        await gone.close()
        await until(lambda: len(server.connections) == 2)
        assert handlers.started == ["create_topics"]

        handlers.cold_gate.set()
        await first.receive_frame()
        await second.receive_frame()
        assert handlers.started == ["create_topics", "create_topics done"] * 2, "of the one that is gone, nothing"
        assert (server.large_requests.held, server.request_bytes.held) == (0, 0)


def heartbeat(group_id: str, size: int, correlation_id: int = 1) -> bytes:
    """A heartbeat with a tag of so many bytes that nobody knows."""
    frame = encode_request(replace(sample(request_type(HEARTBEAT, 4)), group_id=group_id), correlation_id)
    body = frame[4:-1] + b"\1\x63" + uvarint(size) + bytes(size)
    return len(body).to_bytes(4, "big") + body


HEARTBEATS = [heartbeat(name, LARGE_BYTES) for name in "ab"]
SMALL_HEARTBEAT = heartbeat("a", 10)


UNKNOWN_SERVER_ERROR = ErrorCode.unknown_server_error.value.to_bytes(2, "big", signed=True)


def with_tasks(server: Server) -> None:
    """A context that can run tasks."""
    server.context = cast(BrokerContext, SimpleNamespace(tasks=TaskSet()))


@on_both_loops
async def test_large_request_is_admitted_until_the_rest_of_its_handler_ends() -> None:
    """The rest may have a rest of its own."""
    handlers, gates = Handlers(), [asyncio.Event(), asyncio.Event()]

    async def rest(call: Call) -> None:
        await gates[0].wait()
        call.answer_later(rest_of_it(call), None)

    async def rest_of_it(call: Call) -> None:
        await gates[1].wait()
        handlers.started.append("done")
        call.reply(group_writers.heartbeat(call.version, 0))

    handlers.rest = rest
    async with connected(handlers) as (server, first), await another(server) as second:
        with_tasks(server)
        server.large_requests = Admissions(1)
        first.writer.write(HEARTBEATS[0])
        await until(lambda: handlers.started == ["heartbeat a"])
        second.writer.write(HEARTBEATS[1])
        await until(lambda: sum(bool(one.pipeline) for one in server.connections) == 2)
        gates[0].set()
        await asyncio.sleep(0.05)
        assert len(handlers.started) == 1

        gates[1].set()
        await first.receive_frame()
        await second.receive_frame()
        assert handlers.started == ["heartbeat a", "done", "heartbeat b", "done"]
        assert server.large_requests.held == 0


@on_both_loops
async def test_rest_of_a_handler_that_fails_is_answered() -> None:
    handlers = Handlers()

    async def rest(call: Call) -> None:
        raise MemoryError

    handlers.rest = rest
    async with connected(handlers) as (server, client):
        with_tasks(server)
        server.large_requests = Admissions(1)
        for frame in (*HEARTBEATS, encode_request(sample(request_type(HEARTBEAT, 4)), 7)):
            client.writer.write(frame)
            assert (await client.receive_frame())[9:11] == ErrorCode.unknown_server_error.value.to_bytes(
                2, "big", signed=True
            )
        assert server.large_requests.held == 0


@on_both_loops
async def test_large_request_that_waits_lets_others_be_admitted() -> None:
    handlers = Handlers()
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, first), await another(server) as second:
        server.large_requests = Admissions(1)
        first.writer.write(JOIN)
        await until(lambda: handlers.started == ["join_group"])
        second.writer.write(JOIN)
        await until(lambda: handlers.started == ["join_group"] * 2)

        handlers.cold_gate.set()
        await first.receive_frame()
        await second.receive_frame()
        assert server.large_requests.held == 0


SMALL_CREATE = encode_request(sample(request_type(CREATE_TOPICS, 7)), 1)


@on_both_loops
async def test_small_requests_with_large_answers_wait_for_each_other() -> None:
    handlers = Handlers()
    handlers.answers_large = True
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, first), await another(server) as second, await another(server) as gone:
        server.large_requests = Admissions(1)
        first.writer.write(SMALL_CREATE)
        await until(lambda: handlers.started == ["create_topics"])
        for connection in (gone, second):
            connection.writer.write(SMALL_CREATE)
        await until(lambda: sum(bool(one.pipeline) for one in server.connections) == 3)
        await gone.close()
        await until(lambda: len(server.connections) == 2)
        assert handlers.started == ["create_topics"]

        handlers.cold_gate.set()
        await first.receive_frame()
        await second.receive_frame()
        assert handlers.started == ["create_topics", "create_topics done"] * 2, "of the one that is gone, nothing"
        assert server.large_requests.held == 0


@on_both_loops
async def test_large_request_with_a_large_answer_is_admitted_as_its_answer() -> None:
    handlers = Handlers()
    handlers.answers_large = True
    handlers.cold_gate.clear()
    async with connected(handlers) as (server, client):
        client.writer.write(CREATE)
        await until(lambda: handlers.started == ["create_topics"])
        assert server.large_requests.held == LARGE_ANSWER_BYTES > len(CREATE)
        handlers.cold_gate.set()
        await client.receive_frame()


def created(size: int) -> bytes:
    """A CreateTopics of about so many bytes."""
    topic = replace(TOPIC, name="t", assignments=(), configs=())
    count = size // 20
    return encode_request(replace(sample(request_type(CREATE_TOPICS, 7)), topics=(topic,) * count), 1)


class Encoding:
    """Encodes in place of `codec.encode`, and notes the thread; in threads it waits for `gate`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self._encode = codec.encode
        monkeypatch.setattr(codec, "encode", self.encode)

    def encode(self, *args: Any) -> bytes:
        thread = threading.current_thread()
        self.threads.append("event loop" if thread is threading.main_thread() else thread.name)
        if thread is not threading.main_thread():
            assert self.gate.wait(30)
        return self._encode(*args)


IN_THREAD, AT_ONCE = ["encode_0"], ["event loop"]


@on_both_loops
async def test_answers_to_requests_of_many_elements_are_encoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = Encoding(monkeypatch)
    async with connected(Handlers()) as (_, client):
        for frame, threads in ((SMALL_CREATE, AT_ONCE), (created(3_000), IN_THREAD), (CREATE, IN_THREAD)):
            encoding.threads.clear()
            client.writer.write(frame)
            await client.receive_frame()
            assert encoding.threads == threads


@on_both_loops
async def test_errors_of_requests_of_many_elements_are_encoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of task requests, of inline requests, and of the rest of an inline request."""
    encoding, handlers = Encoding(monkeypatch), Handlers()

    async def rest(call: Call) -> None:
        raise MemoryError

    async with connected(handlers) as (server, client):
        with_tasks(server)
        handlers.error = MemoryError()
        for frames in ((SMALL_CREATE, created(3_000), CREATE), (SMALL_HEARTBEAT, heartbeat("a", 3_000), HEARTBEATS[0])):
            for frame, threads in zip(frames, (AT_ONCE, IN_THREAD, IN_THREAD), strict=True):
                encoding.threads.clear()
                client.writer.write(frame)
                assert UNKNOWN_SERVER_ERROR in await client.receive_frame()
                assert encoding.threads == threads
        handlers.error, handlers.rest = None, rest
        for frame, threads in ((SMALL_HEARTBEAT, AT_ONCE), (heartbeat("a", 3_000), IN_THREAD)):
            encoding.threads.clear()
            client.writer.write(frame)
            assert UNKNOWN_SERVER_ERROR in await client.receive_frame()
            assert encoding.threads == threads
        await until(lambda: not server.request_bytes.held)


@on_both_loops
async def test_later_requests_wait_for_an_error_that_a_thread_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not decoded before, so that one connection has one such answer at a time."""
    encoding, handlers = Encoding(monkeypatch), Handlers()
    handlers.error = MemoryError()
    async with connected(handlers) as (server, client):
        encoding.gate.clear()
        client.writer.write(b"".join(heartbeat(name, 3_000, number) for number, name in enumerate("abc")))
        await until(lambda: encoding.threads == IN_THREAD)
        await asyncio.sleep(0.05)
        assert handlers.started == ["heartbeat a"]

        encoding.gate.set()
        replies = [await client.receive_frame() for _ in "abc"]
        assert [int.from_bytes(reply[:4], "big") for reply in replies] == [0, 1, 2]
        assert encoding.threads == IN_THREAD * 3
        await until(lambda: not server.request_bytes.held)


@on_both_loops
async def test_error_that_a_thread_encodes_lets_later_requests_start_behind_a_delayed_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoding, handlers = Encoding(monkeypatch), Handlers()
    async with connected(handlers) as (_, client):
        client.writer.write(encode_request(sample(request_type(FETCH, 12)), 1))
        await until(lambda: handlers.parked)
        handlers.error = MemoryError()
        client.writer.write(heartbeat("a", 3_000, 2) + heartbeat("b", 10, 3))
        await until(lambda: handlers.started == ["fetch", "heartbeat a", "heartbeat b"])
        handlers.answer_fetch(handlers.parked[0])
        assert [int.from_bytes((await client.receive_frame())[:4], "big") for _ in range(3)] == [1, 2, 3]
        assert encoding.threads == IN_THREAD + AT_ONCE


@on_both_loops
async def test_error_that_a_thread_encodes_for_a_client_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, handlers = Encoding(monkeypatch), Handlers()
    handlers.error = MemoryError()
    async with connected(handlers) as (server, _):
        for number, frame in enumerate((created(3_000), JOIN, heartbeat("a", 3_000), CREATE, HEARTBEATS[0]), 1):
            encoding.gate.clear()
            gone = await another(server)
            gone.writer.write(frame)
            await until(lambda number=number: len(encoding.threads) == number)
            [pending] = [one for connection in server.connections for one in connection.pipeline]
            await gone.close()
            await until(lambda: len(server.connections) == 1)
            encoding.gate.set()
            await until(lambda pending=pending: pending.task is None)
            await until(lambda: not (server.request_bytes.held or server.large_requests.held))
        assert encoding.threads == IN_THREAD * 5


@on_both_loops
async def test_produce_without_acks_that_fails_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = Handlers()
    handlers.error = MemoryError()
    produced = sample(request_type(PRODUCE, 9))
    [topic] = produced.topic_data
    [partition] = topic.partition_data
    for acks, answered in ((1, True), (0, False)):
        many = (replace(topic, partition_data=(replace(partition, records=b""),) * 500),)
        frame = encode_request(replace(produced, acks=acks, topic_data=many), 1)
        assert len(frame) > ENCODED_INLINE_BYTES_MAX
        async with connected(handlers) as (_, client):
            client.writer.write(frame)
            if answered:
                assert UNKNOWN_SERVER_ERROR in await client.receive_frame()
            else:
                assert await closed(client) == b""
