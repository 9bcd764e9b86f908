"""Broken input over a live broker: nothing crashes, hangs or grows, and other connections continue.

Every truncation of a request of every served API and version is sent with its length put right (a body
that ends too early) and with its first length (a client that dies in the middle); then random bytes.
"""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from tests.kit.wire import RawClient, encode_request
from tests.support.samples import sample
from tidegate.apis.registry import load_all
from tidegate.protocol.schemas import load_request_schema
from tidegate.protocol.versions import is_old

SLICE = 64
RANDOM_CONNECTIONS = int(os.environ.get("TIDEGATE_RANDOM_CONNECTIONS", "500"))


@pytest.fixture(scope="module")
def one_broker() -> Iterator[Cluster]:
    """One broker whose auto-creation is off, so that samples make nothing."""
    with Cluster(brokers=1, settings={"TIDEGATE_AUTO_CREATE_TOPICS_ENABLE": "false"}) as cluster:
        yield cluster


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def frames() -> list[bytes]:
    """A whole frame of every served API and version that kio has a schema of."""
    return [
        encode_request(sample(load_request_schema(api.key, version)), 7)
        for api in load_all().values()
        for version in range(api.first, api.last + 1)
        if not is_old(api.key, version)
    ]


async def feed(address: str, data: bytes) -> None:
    """Send bytes on a connection of their own, end it, and read whatever comes until the broker closes."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 100)
    except ConnectionError:
        pass  # closed by the broker while we wrote: that is an answer too
    finally:
        writer.close()


async def feed_all(address: str, inputs: list[bytes]) -> None:
    """Feed many inputs, some at a time."""
    for start in range(0, len(inputs), SLICE):
        await asyncio.gather(*(feed(address, data) for data in inputs[start : start + SLICE]))


@pytest.fixture
async def bystander(one_broker: Cluster) -> AsyncIterator[list[int]]:
    """Another connection that asks for ApiVersions all the while; its count of good answers."""
    from kio.schema.api_versions.v3.request import ApiVersionsRequest

    request = ApiVersionsRequest(client_software_name="bystander", client_software_version="1")
    answers = [0]

    async def ask() -> None:
        async with await RawClient.connect(one_broker.brokers[0].address) as client:
            while True:
                response = await client.ask(request, timeout_s=60)
                assert response.error_code.value == 0
                answers[0] += 1
                await asyncio.sleep(0.02)

    task = asyncio.create_task(ask())
    yield answers
    assert not task.done(), task.exception()
    task.cancel()


async def test_every_truncation_of_every_request(one_broker: Cluster, bystander: list[int]) -> None:
    broker = one_broker.brokers[0]
    shortened, died = [], []
    for frame in frames():
        for size in range(8, len(frame) - 4):
            shortened.append(struct.pack(">i", size) + frame[4 : 4 + size])
        died += [frame[:size] for size in range(1, len(frame), 5)]
    await feed_all(broker.address, shortened[: len(shortened) // 4])
    before = resident_mib(broker.pid)

    await feed_all(broker.address, shortened)
    await feed_all(broker.address, died)

    assert broker.process is not None and broker.process.poll() is None
    assert resident_mib(broker.pid) < before + 32
    assert bystander[0] > 10
    assert "Traceback" not in broker.log_path.read_text()


async def test_random_bytes(one_broker: Cluster, bystander: list[int], rng: random.Random) -> None:
    broker = one_broker.brokers[0]
    whole = frames()
    inputs = [rng.randbytes(rng.randrange(1, 600)) for _ in range(RANDOM_CONNECTIONS)]
    for _ in range(RANDOM_CONNECTIONS * 4):
        frame = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(1, 6)):
            frame[rng.randrange(4, len(frame))] = rng.randrange(256)
        inputs.append(bytes(frame))

    await feed_all(broker.address, inputs)

    assert broker.process is not None and broker.process.poll() is None
    assert bystander[0] > 10
    assert "Traceback" not in broker.log_path.read_text()
