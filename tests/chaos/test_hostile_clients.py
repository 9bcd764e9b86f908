"""Clients that are expensive by many requests or connections, with a neighbour beside them.

TIDEGATE_HOSTILE_FULL=1 takes the full sizes; what is measured and printed: `tests.chaos.hostile`.
"""

from __future__ import annotations

import socket
import struct
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial

import pytest
import redis
from confluent_kafka import Consumer, TopicPartition
from kio.schema.errors import ErrorCode

from bench.cluster import BrokerProcess, Cluster
from tests.chaos.hostile import (
    ANSWER_TIMEOUT_S,
    CORRELATION_ID,
    MeasuredBroker,
    answer_of,
    ask,
    connect,
    frame,
    heartbeat,
    make_topics,
    many,
    measure_work,
    measured_broker,
)
from tests.kit.wire import decode_response, encode_request
from tests.support.log_broker import produce_request
from tidegate.records.batch import Codec
from tidegate.records.build import NewRecord, build_batch, encode_record, seal
from tidegate.server.limits import EXHAUSTED_S

E = ErrorCode
MEMBERS_BYTES_MAX = (8 << 20) + 4_096
"""What the leader of a group is answered with at most: the metadata of all members, and their ids."""
FILLED_S = 15.0
"""Until a broker on a loaded machine has read what fills its memory; it closes unfinished frames after 30 s."""
GROUP_MIB_MAX = 64
"""What one group may take of Valkey."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=0) as cluster:
        measured_broker(cluster)
        yield cluster


@pytest.fixture
def broker(cluster: Cluster) -> MeasuredBroker:
    only = cluster.brokers[0]
    assert isinstance(only, MeasuredBroker)
    return only


def used_mib(cluster: Cluster) -> float:
    """Memory of Valkey."""
    with closing(redis.Redis(port=cluster.redis_port)) as server:
        return float(server.info("memory")["used_memory"]) / (1 << 20)


def produce(topic: str, batch: bytes) -> bytes:
    """A Produce v9 to partition 0."""
    return encode_request(produce_request([(topic, [(0, batch)])]), CORRELATION_ID)


def answers_of(broker: BrokerProcess, requests: Sequence[bytes]) -> list[bytes]:
    """Answers of requests on one connection, a hundred in flight."""
    answers: list[bytes] = []
    with closing(connect(broker)) as sock, sock.makefile("rb") as received:
        for first in range(0, len(requests), 100):
            some = requests[first : first + 100]
            sock.sendall(b"".join(some))
            answers += [received.read(*struct.unpack(">i", received.read(4))) for _ in some]
    return answers


def produced(broker: BrokerProcess, requests: Sequence[bytes]) -> list[tuple[ErrorCode, int]]:
    """Code and base offset of each Produce v9."""
    found = []
    for answer in answers_of(broker, requests):
        one = decode_response(0, 9, answer)[1].responses[0].partition_responses[0]
        found.append((one.error_code, one.base_offset))
    return found


# -- frames that never end


def readiness(broker: BrokerProcess) -> str:
    """What /health/ready answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.admin_port}/health/ready", timeout=60) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}"


def send_slowly(sockets: Sequence[socket.socket], seconds: float) -> int:
    """A byte on each connection now and then; how many."""
    ends_s, sent = time.monotonic() + seconds, 0
    while time.monotonic() < ends_s:
        for sock in sockets:
            with suppress(BlockingIOError):
                sent += sock.send(b"\0")
        time.sleep(0.2)
    return sent


def is_large_served(broker: BrokerProcess, address: str, within_s: float = ANSWER_TIMEOUT_S) -> bool:
    """Whether a new client's request of 900 kB is answered."""
    batch = build_batch([NewRecord(bytes(900_000), timestamp=int(time.time() * 1000))])
    with closing(connect(broker, address)) as sock:
        sock.settimeout(within_s)
        sock.sendall(produce("neighbour", batch))
        with suppress(TimeoutError):
            return decode_response(0, 9, answer_of(sock))[1].responses[0].partition_responses[0].error_code is E.none
    return False


def test_hostile_frames_of_one_byte_now_and_then_leave_broker_ready(broker: MeasuredBroker) -> None:
    found: list[tuple[str, bool]] = []

    def work() -> tuple[int, int]:
        with ExitStack() as opened:
            sockets = [opened.enter_context(closing(connect(broker))) for _ in range(7)]
            for sock in sockets:
                sock.sendall(struct.pack(">i", 100_000_000))
            sent = send_slowly(sockets, many(20, 3))
            found.append((readiness(broker), is_large_served(broker, "127.0.0.1")))
            return sent + 4 * len(sockets), 0

    measured = measure_work(broker, "7 frames of 100 MB, a byte now and then", work)

    measured.check()
    assert found == [("200", True)]


def test_hostile_frames_that_fill_the_memory_of_requests_are_reported(cluster: Cluster) -> None:
    """Small requests are answered; the readiness probe is negative as long as no large one is taken."""
    small = measured_broker(cluster, TIDEGATE_MEMORY_MAX=str(384 << 20))
    found: list[tuple[str, bool]] = []

    def is_full() -> bool:
        return "memory_max" in readiness(small)

    def fill(sockets: Sequence[socket.socket]) -> int:
        sent = dict.fromkeys(sockets, 0)
        ends_s = time.monotonic() + EXHAUSTED_S + many(15, 2)
        while (now_s := time.monotonic()) < ends_s or (now_s < ends_s + FILLED_S and not is_full()):
            for sock in sockets:
                with suppress(BlockingIOError):
                    while sent[sock] < 29_000_000:
                        sent[sock] += sock.send(bytes(1 << 18))
            time.sleep(0.02)
        return sum(sent.values())

    def work() -> tuple[int, int]:
        with ExitStack() as opened:
            sockets = [opened.enter_context(closing(connect(small, f"127.0.0.{last}"))) for last in range(11, 18)]
            for sock in sockets:
                sock.sendall(struct.pack(">i", 30_000_000))
                sock.setblocking(False)
            sent = fill(sockets)
            found.append((readiness(small), is_large_served(small, "127.0.0.30", within_s=3)))
            return sent, 0

    measured = measure_work(small, "7 frames of 30 MB that do not end, in 384 MiB", work)

    measured.check()
    assert [(status[:3], served) for status, served in found] == [("503", False)]
    assert "memory_max" in found[0][0]
    small.wait_ready()
    assert is_large_served(small, "127.0.0.30")


# -- batches that no reader can read


def claims(batch: bytes, area: bytes, record_count: int) -> bytes:
    """A batch with another area and number of records, and a right CRC."""
    changed = bytearray(batch[:61] + area)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">i", changed, 23, record_count - 1)
    struct.pack_into(">i", changed, 57, record_count)
    return bytes(seal(changed))


def poisons() -> list[tuple[bytes, ErrorCode]]:
    """Batches, and how each is refused."""
    now_ms = int(time.time() * 1000)
    plain = build_batch([NewRecord(b"poison", timestamp=now_ms)])
    one = encode_record(NewRecord(b"poison"), 0, 0)
    refused = [
        (claims(build_batch([NewRecord(b"poison", timestamp=now_ms)] * 3, codec=codec), b"\xd9garbage" * 9, 3),
         E.corrupt_message)
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
    ]  # fmt: skip
    refused.append((claims(plain, one[:9], 2**31 - 1), E.invalid_record))
    refused.append((claims(plain, one * 3, 3), E.invalid_record))
    epoch = build_batch([NewRecord(b"poison", timestamp=now_ms)], producer_id=5, producer_epoch=-7, base_sequence=0)
    refused.append((epoch, E.invalid_producer_epoch))
    return refused


def values_of(broker: BrokerProcess, topic: str, record_count: int) -> list[bytes]:
    """Values that a consumer reads from the beginning of partition 0, and for a second more."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", "enable.auto.commit": False})
    values: list[bytes] = []
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0, 0)])
        ends_s = time.monotonic() + 60
        while len(values) < record_count and time.monotonic() < ends_s:
            for message in consumer.consume(record_count, 1):
                assert message.error() is None
                values.append(message.value())
        return values + [message.value() for message in consumer.consume(1, 1)]


def test_hostile_batches_that_poison_readers_are_refused(broker: MeasuredBroker) -> None:
    make_topics(broker, [("poisoned", 1)])
    rounds = many(1_000, 100)
    refused = poisons()
    good = [build_batch([NewRecord(b"good%d" % i, timestamp=int(time.time() * 1000))]) for i in range(rounds)]
    requests = [produce("poisoned", batch) for one in good for batch in (*(batch for batch, _ in refused), one)]
    found: list[ErrorCode] = []

    def work() -> tuple[int, int]:
        found.extend(code for code, _ in produced(broker, requests))
        return sum(map(len, requests)), 0

    measured = measure_work(broker, f"{rounds * len(refused):,} batches that no reader can read", work)

    measured.check()
    assert found == [*(code for _, code in refused), E.none] * rounds
    assert values_of(broker, "poisoned", rounds) == [b"good%d" % i for i in range(rounds)]


# -- one group, much metadata


def join(metadata: bytes) -> bytes:
    """A JoinGroup v3 of a new member of the group `wide`."""
    body = b"\0\4wide" + struct.pack(">ii", 6_000, 1_000) + b"\0\0" + b"\0\x08consumer" + struct.pack(">i", 1)
    return frame(11, 3, body + b"\0\5range" + struct.pack(">i", len(metadata)) + metadata)


def test_hostile_joins_of_large_metadata_are_refused_above_the_groups_limit(
    cluster: Cluster, broker: MeasuredBroker
) -> None:
    members = many(1_000, 100)
    request = join(bytes(1_000_000))
    before_mib = used_mib(cluster)
    answers: list[bytes] = []

    def work() -> tuple[int, int]:
        with ThreadPoolExecutor(40) as clients:
            answers.extend(clients.map(partial(ask, broker), [request] * members))
        return members * len(request), sum(map(len, answers))

    measured = measure_work(broker, f"{members:,} joins of one group with 1 MB of metadata", work)

    codes = Counter(ErrorCode(struct.unpack_from(">h", answer, 8)[0]) for answer in answers)
    grown_mib, largest = used_mib(cluster) - before_mib, max(map(len, answers))
    print(f"| | {dict(codes)}; the largest answer {largest:,}; Valkey {grown_mib:+.1f} MiB |")
    measured.check()
    assert set(codes) == {E.none, E.group_max_size_reached}
    assert codes[E.group_max_size_reached] > members // 2
    assert largest <= MEMBERS_BYTES_MAX
    assert grown_mib < GROUP_MIB_MAX


# -- a full Valkey


def commit(group: str, topic: str, partitions: int, metadata: bytes) -> bytes:
    """An OffsetCommit v6 of no member, of the first partitions of a topic."""
    body = struct.pack(">h", len(group)) + group.encode() + struct.pack(">i", -1) + b"\0\0"
    body += struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">i", partitions)
    text = struct.pack(">h", len(metadata)) + metadata
    return frame(8, 6, body + b"".join(struct.pack(">iqi", index, 5, -1) + text for index in range(partitions)))


def commit_codes(answer: bytes) -> set[ErrorCode]:
    """Of an OffsetCommit v6."""
    return {one.error_code for topic in decode_response(8, 6, answer)[1].topics for one in topic.partitions}


def test_hostile_commits_to_a_full_valkey_are_refused() -> None:
    """The neighbour heartbeats and commits: its records would be refused. Each character has six in Valkey."""
    commits, partitions, free_mib = many(40, 12), many(2_000, 500), many(64, 16)
    codes: list[ErrorCode] = []
    small = commit("small", "neighbour", 1, b"")

    with Cluster(brokers=0) as cluster:
        broker = measured_broker(cluster)
        make_topics(broker, [("broad", partitions)])
        requests = [commit(f"large{i}", "broad", partitions, bytes(4_096)) for i in range(commits)]
        before_mib = used_mib(cluster)
        with closing(redis.Redis(port=cluster.redis_port)) as server:
            server.config_set("maxmemory", int((before_mib + free_mib) * (1 << 20)))

        def work() -> tuple[int, int]:
            received = 0
            for request in requests:
                answer = ask(broker, request)
                (code,) = commit_codes(answer)
                codes.append(code)
                received += len(answer)
                assert commit_codes(ask(broker, small)) == {E.none}
            return sum(map(len, requests)), received

        measured = measure_work(broker, "commits to a full Valkey", work, [heartbeat(broker), small])
        grown_mib = used_mib(cluster) - before_mib
        sizes = f"{commits} of 4 kB x {partitions:,} partitions"
        print(f"| | {sizes}: {dict(Counter(codes))}; Valkey {grown_mib:+.1f} MiB of {free_mib} |")

        measured.check(len(requests[0]))
        assert codes[-1] is E.coordinator_not_available
        assert set(codes) <= {E.none, E.coordinator_not_available}
        assert codes == sorted(codes, key=lambda code: code is not E.none), "once full, all are refused"
        assert grown_mib < free_mib + 2 * len(requests[0]) / (1 << 20)


# -- many producers of one partition


def test_hostile_producers_of_one_partition_are_loaded_in_slices(cluster: Cluster, broker: MeasuredBroker) -> None:
    make_topics(broker, [("producers", 1)])
    producers = many(20_000, 3_000)
    now_ms = int(time.time() * 1000)

    def batch_of(producer_id: int, sequence: int) -> bytes:
        batch = build_batch(
            [NewRecord(b"v", timestamp=now_ms)], producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )
        return produce("producers", batch)

    requests = [batch_of(1_000_000 + i, 0) for i in range(producers)]
    found: list[tuple[ErrorCode, int]] = []

    def work(broker: BrokerProcess, requests: Sequence[bytes]) -> tuple[int, int]:
        found[:] = produced(broker, requests)
        return sum(map(len, requests)), 0

    wrote = measure_work(broker, f"{producers:,} producers of one partition", lambda: work(broker, requests))
    assert found == [(E.none, offset) for offset in range(producers)]
    other = measured_broker(cluster)
    again = [batch_of(1_000_000, 0), batch_of(1_000_001, 1), batch_of(1_000_002, 7)]
    loaded = measure_work(other, f"{producers:,} producers, loaded", lambda: work(other, again))

    wrote.check()
    loaded.check()
    assert found == [(E.none, 0), (E.none, producers), (E.out_of_order_sequence_number, -1)]
