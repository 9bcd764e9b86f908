"""A broker that has 512 MiB, under all hostile requests one after the other; 384 MiB, under many at once: alive."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.cluster import BrokerProcess, Cluster
from tests.chaos.test_hostile_requests import (
    MOST_TAKEN,
    ROWS,
    answer_of,
    ask,
    connect,
    make_topics,
    memory_mib,
    neighbour_of,
)

LIMIT_BYTES = 512 << 20
SMALL_LIMIT_BYTES = 384 << 20
AT_ONCE = 12


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
