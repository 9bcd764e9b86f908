"""A broker of 512 MiB under hostile requests, clients and pipelines; of 384 MiB under large requests at once: alive."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from bench.classic_member import ClassicMember
from bench.cluster import BrokerProcess, Cluster
from tests.chaos.hostile import (
    answer_of,
    ask,
    asked,
    codes_of,
    connect,
    frame,
    joined,
    make_topics,
    many,
    memory_mib,
    neighbour_of,
)
from tests.chaos.test_hostile_clients import commit, commit_codes, join, poisons, produce, produced
from tests.chaos.test_hostile_requests import MOST_TAKEN, ROWS
from tests.kit.wire import decode_response
from tidegate.protocol.primitives import uvarint
from tidegate.records.build import NewRecord, build_batch
from tidegate.store.keys import GROUP_ID_LENGTH_MAX

LIMIT_BYTES = 512 << 20
SMALL_LIMIT_BYTES = 384 << 20
AT_ONCE = 12
TRIES_MAX = 30
"""Of one large heartbeat: each time some of those that wait are served."""
PIPELINES = 100
IN_PIPELINE = 1_020
GROWTH_MIB_MAX = 128
"""What small requests, or many names, may take; the share of requests is 60 MiB."""


@contextmanager
def limited(limit_bytes: int) -> Iterator[BrokerProcess]:
    """A broker whose data segment, which is all private writable memory, cannot grow above the limit."""
    settings = {
        "TIDEGATE_AUTO_CREATE_TOPICS_ENABLE": "false",
        "TIDEGATE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "TIDEGATE_GROUP_CONSUMER_SESSION_TIMEOUT_MS": "600000",
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
        answers = list(clients.map(partial(answered, broker), joins))
        print(f"| {len(joins)} joins of 1 MB, 40 at once | {memory_mib(broker, 'VmHWM')} MiB at most |")

    assert broker.process is not None and broker.process.poll() is None
    assert committed == [{ErrorCode.none}] * AT_ONCE
    assert all(answers) and neighbour.answers
    assert "MemoryError" not in broker.log_path.read_text()


def list_offsets_of(name: bytes, partition_count: int) -> bytes:
    """A ListOffsets of the ends of all partitions of a topic."""
    head = struct.pack(">ibih", -1, 0, 1, len(name)) + name + struct.pack(">i", partition_count)
    return frame(2, 2, head + b"".join(struct.pack(">iq", index, -1) for index in range(partition_count)))


@pytest.mark.timeout(600)
def test_memory_limit_of_512_mib_survives_frames_producers_ids_and_topics(broker: BrokerProcess) -> None:
    """Frames that do not end, poisoned batches, many producers, long group ids, Metadata and ends of everything."""
    topics = [f"broad{i}" for i in range(many(11, 2))]
    make_topics(broker, [(name, 10_000) for name in topics])
    now_ms = int(time.time() * 1000)
    batches = [batch for batch, _ in poisons()] * many(1_000, 50)
    of_producers = [
        build_batch([NewRecord(b"v", timestamp=now_ms)], producer_id=1_000_000 + i, producer_epoch=0, base_sequence=0)
        for i in range(many(20_000, 3_000))
    ]
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    with neighbour_of(broker) as neighbour, ExitStack() as opened:
        for _ in range(7):
            opened.enter_context(closing(connect(broker))).sendall(struct.pack(">i", 100_000_000) + bytes(9))
        for requests in (batches, of_producers):
            codes = {code for code, _ in produced(broker, [produce("wide1", batch) for batch in requests])}
            assert (ErrorCode.none in codes) == (requests is of_producers), codes
        for i in range(500):
            group = b"%06d" % i + b"/" * 32_000
            found = ask(broker, frame(10, 1, struct.pack(">h", len(group)) + group + b"\0"))
            assert ErrorCode.none in codes_of(frame(10, 1, b""), found)
            heartbeat = frame(12, 0, struct.pack(">h", len(group)) + group + struct.pack(">i", 1) + b"\0\1m")
            assert codes_of(heartbeat, ask(broker, heartbeat)) == {ErrorCode.invalid_group_id}
        for _ in range(3):
            assert len(ask(broker, frame(3, 4, b"\xff\xff\xff\xff\0"))) > 20 * 10_000
        before = memory_mib(broker, "VmRSS")
        for name in topics:
            ends = list_offsets_of(name.encode(), 10_000)
            assert codes_of(ends, answered(broker, ends)) == {ErrorCode.none}
        grown = memory_mib(broker, "VmRSS") - before
        print(f"| frames, producers, ids, topics | {memory_mib(broker, 'VmHWM')} MiB at most, {grown} MiB of logs |")

    assert broker.process is not None and broker.process.poll() is None
    assert neighbour.answers
    assert grown < GROWTH_MIB_MAX
    assert "MemoryError" not in broker.log_path.read_text()


def belong_to(broker: BrokerProcess, group_id: str) -> None:
    """A member of a classic group joins, sends two heartbeats and commits."""
    member = joined(broker, group_id)
    for _ in range(2):
        assert asked(broker, member.heartbeat_request()).error_code is ErrorCode.none
    committed = asked(broker, member.commit_request({"neighbour": {0: 1}}))
    assert committed.topics[0].partitions[0].error_code is ErrorCode.none


@pytest.mark.timeout(600)
def test_memory_limit_of_512_mib_survives_groups_with_long_names(broker: BrokerProcess) -> None:
    """Members that stay, commits without members, and consumer groups; keys have three bytes for one of their names."""
    names = [f"{number:06d}".ljust(GROUP_ID_LENGTH_MAX - 8, "/") for number in range(300)]
    belong_to(broker, "usual")
    before = memory_mib(broker, "VmRSS")
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    with neighbour_of(broker) as neighbour:
        for name in names:
            belong_to(broker, name)
            alone = ClassicMember()
            alone.group_id = "alone" + name
            committed = asked(broker, alone.commit_request({"neighbour": {0: 1}}))
            assert committed.topics[0].partitions[0].error_code is ErrorCode.none
            heartbeat = consumer_heartbeat("consumer" + name, ["neighbour"])
            assert codes_of(heartbeat, ask(broker, heartbeat)) == {ErrorCode.none}
        grown = memory_mib(broker, "VmRSS") - before
        print(f"| 3 x {len(names)} groups with long names | {memory_mib(broker, 'VmHWM')} MiB at most, {grown} kept |")

    assert broker.process is not None and broker.process.poll() is None
    assert neighbour.answers
    assert grown < GROWTH_MIB_MAX
    assert "MemoryError" not in broker.log_path.read_text()


def consumer_heartbeat(group: str, names: Sequence[str], epoch: int = 0, timeout_ms: int = 30_000) -> bytes:
    """A ConsumerGroupHeartbeat v0 that asks for a decision: of the member `m`, which subscribes to topics."""

    def text(value: str) -> bytes:
        return uvarint(len(value) + 1) + value.encode()

    subscription = uvarint(len(names) + 1) + b"".join(map(text, names)) if names else b"\0"
    head = text(group) + text("m") + struct.pack(">i", epoch) + b"\0\0" + struct.pack(">i", timeout_ms)
    return frame(68, 0, head + subscription + b"\0" + b"\1\0", tags=b"\0")


def entered(broker: BrokerProcess, heartbeat: bytes) -> Any:
    """The answer to a heartbeat, which is sent again after it waited 10 s for its turn, as clients do."""
    for _ in range(TRIES_MAX):
        answer = decode_response(68, 0, answered(broker, heartbeat))[1]
        if answer.error_code is not ErrorCode.coordinator_load_in_progress:
            break
    return answer


@pytest.mark.timeout(600)
def test_memory_limit_of_512_mib_survives_consumer_groups_of_large_subscriptions(broker: BrokerProcess) -> None:
    """Groups of KIP-848 whose member subscribes to 1 MB of names; then small requests that decide on all of them."""
    groups = [f"large{i}" for i in range(many(1_000, 60))]
    names = [f"a.topic.that.does.not.exist.{i:012d}" for i in range(1_000_000 // 40)]
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    with neighbour_of(broker) as neighbour, ThreadPoolExecutor(64) as clients:
        joins = [consumer_heartbeat(group, names) for group in groups]
        answers = list(clients.map(partial(entered, broker), joins))
        print(f"| {len(groups)} joins with 1 MB of names | {memory_mib(broker, 'VmHWM')} MiB at most |")
        epochs = [answer.member_epoch for answer in answers]
        changes = [consumer_heartbeat(group, (), epoch, 40_000) for group, epoch in zip(groups, epochs, strict=True)]
        changed = [codes_of(changes[0], answer) for answer in clients.map(partial(answered, broker), changes)]
        print(f"| {len(groups)} changes of them, 64 at once | {memory_mib(broker, 'VmHWM')} MiB at most |")

    assert broker.process is not None and broker.process.poll() is None
    assert {answer.error_code for answer in answers} == {ErrorCode.none}
    assert {ErrorCode.none} in changed
    assert set().union(*changed) <= {ErrorCode.none, ErrorCode.coordinator_load_in_progress}, "the other: after 10 s"
    assert neighbour.answers
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
