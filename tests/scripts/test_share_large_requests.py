"""Share requests of many partitions: the event loop runs other work meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.shares import ACCEPT, ACKNOWLEDGE, Acks, Member, ShareWorld
from tidegate.apis import share_sessions
from tidegate.apis.slices import SLICE
from tidegate.protocol import codec, share_writers
from tidegate.protocol.primitives import DecodeError
from tidegate.protocol.schema_walk import FEW_ELEMENTS_MAX

COUNT = 4 * SLICE


class Steps:
    """How many partitions' topics were asked for in each iteration of the event loop."""

    def __init__(self) -> None:
        self.of_iterations = [0]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.of_iterations.append(0)


@pytest.fixture
async def steps(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Steps]:
    found, find = Steps(), share_sessions.find_topic

    async def counting(*args: Any) -> Any:
        found.of_iterations[-1] += 1
        return await find(*args)

    monkeypatch.setattr(share_sessions, "find_topic", counting)
    task = asyncio.ensure_future(found.run())
    yield found
    task.cancel()


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that write responses, by the kind of their work."""
    threads: list[str] = []

    def noting(write: Any) -> Any:
        def run(*args: Any) -> Any:
            threads.append(threading.current_thread().name.rpartition("_")[0])
            return write(*args)

        return run

    monkeypatch.setattr(codec, "encode", noting(codec.encode))
    monkeypatch.setattr("tidegate.apis.share_fetch.share_fetch_response", noting(share_writers.share_fetch))
    return threads


async def reading(shares: ShareWorld) -> Member:
    """A member with a share session."""
    a = shares.member("a", "t4")
    await shares.joined(a)
    assert await a.fetch(0) == ""
    return a


def of_partitions(count: int) -> Acks:
    """Acknowledgements of so many partitions, of which four exist."""
    return {index: [(0, 0, (ACCEPT,))] for index in range(count)}


async def ask(member: Member, api: str, acks: Acks) -> int:
    """Acknowledge with ShareAcknowledge or ShareFetch; how many partitions were refused."""
    if api == "acknowledge":
        return len((await member.acknowledge(acks)).split())
    return (await member.fetch(acks=acks, max_records=0)).count(" / ")


@pytest.mark.parametrize("api", ["acknowledge", "fetch"])
async def test_acknowledgements_of_many_partitions_are_checked_in_slices(
    shares: ShareWorld, steps: Steps, api: str
) -> None:
    a = await reading(shares)
    steps.of_iterations[:] = [0]

    assert await ask(a, api, of_partitions(COUNT)) == COUNT

    assert sum(steps.of_iterations) == COUNT
    assert max(steps.of_iterations) <= SLICE


@pytest.mark.parametrize(("count", "thread"), [(3, ""), (COUNT, "encode")])
@pytest.mark.parametrize("api", ["acknowledge", "fetch"])
async def test_answers_of_many_partitions_are_written_in_a_thread(
    shares: ShareWorld, encoders: list[str], api: str, count: int, thread: str
) -> None:
    a = await reading(shares)
    encoders.clear()

    assert await ask(a, api, of_partitions(count)) == count

    assert encoders == [thread]


def test_request_has_limited_acknowledge_types() -> None:
    """They count as elements, so their checks are short."""
    topic, no_tags = bytes(16) + b"\2" + bytes(4), b"\0"
    head = b"\2g" + b"\2m" + bytes(4) + b"\0" + b"\2" + topic + b"\2" + bytes(16)
    count = FEW_ELEMENTS_MAX - 3  # beside the topic, the partition and the batch

    def body(count: int) -> bytes:
        varint = bytes([(count + 1) & 127 | 128, (count + 1) >> 7 & 127 | 128, (count + 1) >> 14])
        return head + varint + bytes(count) + 4 * no_tags

    request = codec.decode(ACKNOWLEDGE, 2, body(count))
    assert len(request.topics[0].partitions[0].acknowledgement_batches[0].acknowledge_types) == count
    with pytest.raises(DecodeError, match="too many array elements"):
        codec.decode(ACKNOWLEDGE, 2, body(count + 1))
