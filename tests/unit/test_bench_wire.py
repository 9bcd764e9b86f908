"""The measuring client: frames are cut right, and a wrong answer stops a measure."""

from __future__ import annotations

import asyncio
import struct

import pytest

from bench.hot import Flood
from bench.kafka_wire import HEARTBEAT, MeasureFailed, Wire, decode, encode, request
from bench.members import Group, Member

GOOD = struct.pack(">iibihb", 12, 1, 0, 0, 0, 0)
REFUSED = struct.pack(">iibihb", 12, 1, 0, 0, 25, 0)


class Pipe(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...


async def test_answers_reach_waiters_in_order_however_they_are_split() -> None:
    wire, pipe = Wire(), Pipe()
    wire.connection_made(pipe)
    first, second = wire.send(b"a"), wire.send(b"b")

    for byte in GOOD + REFUSED:
        wire.data_received(bytes([byte]))

    assert [await first, await second] == [GOOD[4:], REFUSED[4:]]
    assert decode(HEARTBEAT, await second).error_code.value == 25


async def test_lost_connection_fails_its_waiters() -> None:
    wire = Wire()
    wire.connection_made(Pipe())
    waiting = wire.send(b"a")

    wire.connection_lost(None)

    with pytest.raises(ConnectionError):
        await waiting


async def test_frame_contains_its_api_version_and_length() -> None:
    message = request(HEARTBEAT, group_id="g", generation_id=3, member_id="m", group_instance_id=None)

    frame = encode(message, correlation_id=9)

    assert struct.unpack_from(">ihhi", frame) == (len(frame) - 4, HEARTBEAT, 4, 9)


async def test_flood_counts_good_answers_and_sends_as_many_again() -> None:
    flood, pipe = Flood(HEARTBEAT, b"ask", GOOD, depth=2), Pipe()
    flood.connection_made(pipe)
    flood.start()

    flood.data_received(GOOD + GOOD[:7])
    flood.data_received(GOOD[7:])

    assert flood.count == 2
    assert pipe.written == [b"askask", b"ask", b"ask"]
    flood.close()


async def test_flood_stops_at_an_answer_that_differs() -> None:
    flood = Flood(HEARTBEAT, b"ask", GOOD, depth=1)
    flood.connection_made(Pipe())
    flood.start()

    flood.data_received(REFUSED)

    with pytest.raises(MeasureFailed, match="unknown_member_id"):
        await flood.failed


async def test_group_is_stable_when_all_share_one_generation() -> None:
    group = Group("g", 2)
    first, second = Member(group, Wire(), 1.0), Member(group, Wire(), 1.0)

    group.synced(first, 1)
    group.synced(second, 2)
    with pytest.raises(MeasureFailed):
        await group.wait_stable(0.01)
    group.synced(first, 2)

    await group.wait_stable(0.01)
