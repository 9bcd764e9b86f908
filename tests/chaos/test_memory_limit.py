"""A broker of 512 MiB under hostile requests, clients and pipelines; of 384 MiB under large requests at once: alive."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from bench.cluster import BrokerProcess, Cluster
from tests.chaos.hostile import answer_of, ask, connect, frame, make_topics, many, memory_mib, neighbour_of
from tests.chaos.test_hostile_clients import commit, commit_codes, join
from tests.chaos.test_hostile_requests import MOST_TAKEN, ROWS

LIMIT_BYTES = 512 << 20
SMALL_LIMIT_BYTES = 384 << 20
AT_ONCE = 12
PIPELINES = 100
IN_PIPELINE = 1_020
GROWTH_MIB_MAX = 128
"""What small requests may take; the share of requests is 60 MiB."""


@contextmanager
def limited(limit_bytes: int) -> Iterator[BrokerProcess]:
    """A broker whose data segment, which is all private writable memory, cannot grow above the limit."""
    settings = {
        "TIDEGATE_AUTO_CREATE_TOPICS_ENABLE": "false",
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "TIDEGATE_MEMORY_MAX": str(limit_bytes),
    }
    with Cluster(brokers=1, settings=settings) as cluster:
        only = cluster.brokers[0]
        make_topics(only, [("neighbour", 1), *((f"wide{i}", 2_000) for i in range(6))])
        resource.prlimit(only.pid, resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
        yield only


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with limited(LIMIT_BYTES) as only:
        yield only


@pytest.fixture
def small_broker() -> Iterator[BrokerProcess]:
    with limited(SMALL_LIMIT_BYTES) as only:
        yield only


@pytest.mark.timeout(600)
def test_memory_limit_of_512_mib_survives_hostile_requests(broker: BrokerProcess) -> None:
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    with neighbour_of(broker) as neighbour:
        for name, request in (ROWS | MOST_TAKEN).items():
            for _ in range(2):
                ask(broker, request())
            print(f"| {name} | {memory_mib(broker, 'VmRSS')} MiB | {memory_mib(broker, 'VmHWM')} MiB at most |")

    assert broker.process is not None and broker.process.poll() is None
    assert neighbour.answers
    assert memory_mib(broker, "VmHWM") < LIMIT_BYTES >> 20
    assert "MemoryError" not in broker.log_path.read_text()


def answered(broker: BrokerProcess, request: bytes) -> bytes:
    """The answer of a request, however long others are before it."""
    with closing(connect(broker)) as sock:
        sock.settimeout(580)
        sock.sendall(request)
        return answer_of(sock)


@pytest.mark.timeout(600)
def test_memory_limit_of_512_mib_survives_hostile_clients(broker: BrokerProcess) -> None:
    """Commits whose metadata has six characters in Valkey for each, and joins of one group with 1 MB, both at once."""
    commits = [commit(f"large{i}", "wide0", many(2_000, 500), bytes(4_096)) for i in range(AT_ONCE)]
    joins = [join(bytes(1_000_000))] * many(1_000, 100)
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    with neighbour_of(broker) as neighbour, ThreadPoolExecutor(40) as clients:
        committed = [commit_codes(answer) for answer in clients.map(partial(answered, broker), commits)]
        print(f"| {AT_ONCE} commits of {len(commits[0]):,} at once | {memory_mib(broker, 'VmHWM')} MiB at most |")
        joined = list(clients.map(partial(answered, broker), joins))
        print(f"| {len(joins)} joins of 1 MB, 40 at once | {memory_mib(broker, 'VmHWM')} MiB at most |")

    assert broker.process is not None and broker.process.poll() is None
    assert committed == [{ErrorCode.none}] * AT_ONCE
    assert all(joined) and neighbour.answers
    assert "MemoryError" not in broker.log_path.read_text()


def fetch_of(name: bytes, wait_ms: int) -> bytes:
    """A Fetch of one partition."""
    body = struct.pack(">iiiibi", -1, wait_ms, 1, 1 << 20, 0, 1) + struct.pack(">h", len(name)) + name
    return frame(1, 4, body + struct.pack(">iiqi", 1, 0, 0, 1 << 20))


def send_what_is_read(pipeline: bytes, connections: list[socket.socket]) -> int:
    """Send a pipeline on each connection until the broker has read nothing for a while; the bytes that were sent."""
    sent = dict.fromkeys(connections, 0)
    read_s = time.monotonic()
    while time.monotonic() - read_s < 3:
        for sock, start in sent.items():
            with suppress(BlockingIOError):
                count = sock.send(pipeline[start : start + (1 << 18)])
                sent[sock] += count
                if count:
                    read_s = time.monotonic()
        time.sleep(0.001)
    return sum(sent.values())


@pytest.mark.timeout(600)
def test_memory_limit_of_512_mib_survives_small_requests_in_pipelines(broker: BrokerProcess) -> None:
    """Each pipeline has a Fetch that waits, and 31 MiB of small ones behind it."""
    pipeline = fetch_of(b"wide0", 600_000) + fetch_of(b"t" * 31_000, 0) * IN_PIPELINE
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    before = memory_mib(broker, "VmRSS")
    with ExitStack() as opened, neighbour_of(broker) as neighbour:
        connections = [opened.enter_context(closing(connect(broker))) for _ in range(PIPELINES)]
        for sock in connections:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            sock.setblocking(False)
        sent = send_what_is_read(pipeline, connections)
        grown = memory_mib(broker, "VmHWM") - before
        slowest = f"{neighbour.p99_ms:.0f} ms | {neighbour.worst_ms:.0f} ms"
        print(f"| {sent >> 20} MiB sent | {grown} MiB more at most | {slowest} |")

    assert broker.process is not None and broker.process.poll() is None
    assert grown < GROWTH_MIB_MAX
    assert "MemoryError" not in broker.log_path.read_text()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("most list offsets", marks=pytest.mark.slow),  # 1.5 million lookups
        "most offset fetch",
        "most offset commit",
    ],
)
def test_memory_limit_of_384_mib_survives_large_requests_at_once(small_broker: BrokerProcess, name: str) -> None:
    """Each takes 30 MiB while it is handled."""
    Path(f"/proc/{small_broker.pid}/clear_refs").write_text("5")
    with ThreadPoolExecutor(AT_ONCE) as clients:
        answers = list(clients.map(partial(answered, small_broker), [MOST_TAKEN[name]()] * AT_ONCE))
    print(f"| {name} x {AT_ONCE} | {memory_mib(small_broker, 'VmHWM')} MiB at most |")

    assert small_broker.process is not None and small_broker.process.poll() is None
    assert all(answers)
    assert "MemoryError" not in small_broker.log_path.read_text()
