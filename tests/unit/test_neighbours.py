"""The neighbours of hostile and of random requests find a broker that stalls once, refuses, or does not answer."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.chaos.hostile import Measured, Neighbour, frame, neighbour_of
from tests.fuzz import live, neighbour
from tests.fuzz.live import Findings, Fuzzer
from tidegate.apis.registry import load_all

FETCH, HEARTBEAT, JOIN_GROUP, SYNC_GROUP = 1, 12, 11, 14


@contextmanager
def broker_that(answers: Callable[[int], bytes]) -> Iterator[Any]:
    """A socket that answers the n-th Heartbeat v0 with a body; it waits for no processor."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            for number in range(1 << 20):
                if not connection.recv(1 << 16):
                    return
                body = answers(number)
                connection.sendall(struct.pack(">ii", 4 + len(body), 7) + body)

    thread = threading.Thread(target=serve)
    thread.start()
    with listening:
        yield SimpleNamespace(pid="thread-self", port=listening.getsockname()[1])
        thread.join()


def code(error: ErrorCode) -> bytes:
    return struct.pack(">h", error.value)


def heartbeat() -> bytes:
    return frame(HEARTBEAT, 0, b"\0\1g" + struct.pack(">i", 1) + b"\0\1m")


@asynccontextmanager
async def mute_broker() -> AsyncIterator[str]:
    """The address of one that reads, and answers nothing."""
    reading = set()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reading.add(asyncio.current_task())
        with suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()

    async with await asyncio.start_server(read, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*reading)


def wait_for_answers(one: Neighbour, count: int) -> None:
    deadline = time.monotonic() + 30
    while one.answers < count and time.monotonic() < deadline:
        time.sleep(0.01)


def measured(took_s: list[float]) -> Measured:
    one: Any = None
    return Measured(1.0, "", Neighbour(one, (), took_s, len(took_s)), 0, "a row")


@pytest.mark.parametrize("others", [0, 50, 1_000])
def test_measured_one_stall_fails(others: int) -> None:
    with pytest.raises(AssertionError):
        measured([0.001] * others + [2.5]).check_loop()


def test_measured_quick_answers_pass() -> None:
    measured([0.001] * 1_000).check_loop()


def test_neighbour_stalled_once_has_the_time_of_it() -> None:
    def answers(number: int) -> bytes:
        time.sleep(2.5 if number == 20 else 0)
        return code(ErrorCode.none)

    with broker_that(answers) as broker, neighbour_of(broker, [heartbeat()]) as one:
        wait_for_answers(one, 22)

    with pytest.raises(AssertionError):
        Measured(1.0, "", one, 0, "a row").check_loop()


def test_neighbour_refused_fails() -> None:
    def answers(number: int) -> bytes:
        return code(ErrorCode.coordinator_not_available if number == 20 else ErrorCode.none)

    with (
        broker_that(answers) as broker,
        pytest.raises(AssertionError, match="coordinator_not_available"),
        neighbour_of(broker, [heartbeat()]) as one,
    ):
        wait_for_answers(one, 22)


def test_findings_one_stall_is_a_failure() -> None:
    findings = Findings(neighbour={"p99_ms": 1.0, "max_ms": 2_500.0})

    assert findings.failures() == ["the neighbour's slowest answer took 2500 ms"]


async def test_neighbour_of_random_requests_refused_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        async def __aenter__(self) -> Refused:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def ask(self, *_: Any) -> Any:
            return ErrorCode.kafka_storage_error

    async def connect(*_: Any) -> Refused:
        return Refused()

    monkeypatch.setattr(neighbour.RawClient, "connect", connect)
    with pytest.raises(AssertionError):
        async with asyncio.timeout(5):
            await neighbour.ask("127.0.0.1:1", ["self"], [])


async def test_probe_of_a_mute_broker_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ANSWER_S", 0.05)
    async with mute_broker() as address:
        found = await live.probe(address)

    assert found == ["Fetch: no answer to a well-formed request: TimeoutError()"]


@pytest.mark.parametrize("api_key", [FETCH, JOIN_GROUP, SYNC_GROUP])
async def test_fuzzer_of_a_mute_broker_finds_each_api(api_key: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "ANSWER_S", 0.05)
    monkeypatch.setattr(live, "PARKED_S", 0.01)
    monkeypatch.setattr(live, "LOADED_S", 0.0)
    async with mute_broker() as address:
        findings = Findings()
        await Fuzzer(address, 1, findings, [load_all()[api_key]]).run(time.monotonic() + 0.5)

    assert any("no answer" in one for one in findings.wrong)
