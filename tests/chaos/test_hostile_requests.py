"""Requests made to be expensive, one after the other over a live broker, with a neighbour beside them.

A request that no client sends is refused before anything is built from it; what clients may send runs in slices
or beside the event loop. The neighbour heartbeats and produces all the while; what is measured: `tests.chaos.hostile`.
"""

from __future__ import annotations

import struct
import time
import urllib.request
from collections.abc import Callable, Iterator

import cramjam
import pytest
from kio.schema.errors import ErrorCode

from bench.cluster import BrokerProcess, Cluster
from tests.chaos.hostile import (
    ANSWER_TIMEOUT_S,
    Measured,
    MeasuredBroker,
    ask,
    codes_of,
    frame,
    make_topics,
    many,
    measure,
    measure_work,
    measured_broker,
)
from tests.kit.wire import decode_response, encode_request
from tests.support.log_broker import produce_request
from tidegate.apis.streams_groups import SUBTOPOLOGIES_MAX
from tidegate.protocol.primitives import uvarint
from tidegate.protocol.produce_request import PARTITIONS_MAX
from tidegate.protocol.schema_walk import ELEMENTS_MAX, FEW_ELEMENTS_MAX
from tidegate.records.batch import Codec
from tidegate.records.build import NewRecord, build_batch, encode_record, seal
from tidegate.server.dispatch import LARGE_BYTES


def produce_bomb() -> bytes:
    """A small zstd batch of identical records whose header names a time beyond what the topic takes."""
    count = many(19_000_000, 3_000_000)
    ahead_ms = int(time.time() * 1000) + 2 * 3_600_000
    batch = bytearray(build_batch([NewRecord(b"", timestamp=ahead_ms)], codec=Codec.ZSTD))
    batch[61:] = bytes(cramjam.zstd.compress(encode_record(NewRecord(b"", timestamp=0), 0, 0) * count))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    return encode_request(produce_request([("neighbour", [(0, bytes(seal(batch)))])]), 7)


def produce_nulls(full: int, reduced: int) -> bytes:
    count = many(full, reduced)
    partitions = struct.pack(">ii", 0, -1) * count
    return frame(0, 3, struct.pack(">hhii", -1, -1, 30_000, 1) + b"\0\1t" + struct.pack(">i", count) + partitions)


def list_offsets() -> bytes:
    count = many(1_000_000, 200_000)
    body = struct.pack(">ibi", -1, 0, 1) + b"\0\1t" + struct.pack(">i", count)
    return frame(2, 2, body + struct.pack(">iq", 0, -1) * count)


def metadata(names: list[bytes]) -> bytes:
    body = struct.pack(">i", len(names)) + b"".join(struct.pack(">h", len(name)) + name for name in names)
    return frame(3, 4, body + b"\0")


def offset_fetch() -> bytes:
    count = many(1_900_000, 400_000)
    return frame(9, 1, b"\0\1g" + struct.pack(">i", 1) + b"\0\1t" + struct.pack(">i", count) + bytes(4) * count)


def fetch() -> bytes:
    count = many(1_000_000, 300_000)
    body = struct.pack(">iiiibi", -1, 0, 1, 1 << 20, 0, 1) + b"\0\1t" + struct.pack(">i", count)
    return frame(1, 4, body + struct.pack(">iqi", 0, 0, 1) * count)


def join_group() -> bytes:
    subscription = struct.pack(">hi", 0, many(20_000_000, 3_000_000))
    subscription += bytes(2 * many(20_000_000, 3_000_000)) + struct.pack(">i", -1)
    body = b"\0\1j" + struct.pack(">ii", 10_000, 10_000) + b"\0\0" + b"\0\x08consumer" + struct.pack(">i", 1)
    return frame(11, 3, body + b"\0\1r" + struct.pack(">i", len(subscription)) + subscription)


def api_versions() -> bytes:
    count = many(1_000_000, 1_000_000)
    tags = b"".join(uvarint(tag) + b"\0" for tag in range(count))
    return frame(18, 3, b"\x02a\x02a" + uvarint(count) + tags, tags=b"\0")


def header_tags() -> bytes:
    count = many(1_000_000, 1_000_000)
    tags = b"".join(uvarint(tag) + b"\0" for tag in range(count))
    return frame(18, 3, b"\x02a\x02a\0", tags=uvarint(count) + tags)


def create_topics() -> bytes:
    name = b"cleanup.policy"
    text = b"\x01" * 32_760
    body = struct.pack(">i", 1) + b"\0\1n" + struct.pack(">ihii", 1, 1, 0, 1)
    body += struct.pack(">h", len(name)) + name + struct.pack(">h", len(text)) + text
    return frame(19, 2, body + struct.pack(">ib", 1_000, 0))


def streams_heartbeat(length: int) -> bytes:
    """A join whose subtopologies each read what the one after it writes; only the last one reads another topic."""

    def text(value: str) -> bytes:
        return uvarint(len(value) + 1) + value.encode()

    def subtopology(name: str, source: bytes, sink: str, repartition: bytes) -> bytes:
        return text(name) + source + b"\1\1\2" + text(sink) + repartition + b"\1\0"

    body = b"".join(
        subtopology(str(i), b"\1", f"r{i}", b"\2" + text(f"r{i + 1}") + bytes(6) + b"\1\0") for i in range(length)
    ) + subtopology("last", b"\2" + text("t"), f"r{length}", b"\1")
    body = struct.pack(">i", 0) + uvarint(length + 2) + body + b"\0"
    head = text("streams") + text("m") + struct.pack(">ii", 0, 0) + b"\0\0" + struct.pack(">i", 1_000)
    return frame(88, 0, head + b"\1" + body + b"\1\1\1" + text("p") + b"\xff\0\0\0\0\0", tags=b"\0")


ROWS: dict[str, Callable[[], bytes]] = {
    "produce, a small batch of many records": produce_bomb,
    "produce, partitions by the frame": lambda: produce_nulls(13_000_000, 2_000_000),
    "produce, null partitions": lambda: produce_nulls(2_000_000, 400_000),
    "list offsets": list_offsets,
    "metadata, illegal names": lambda: metadata([b"!"] * many(1_000_000, 300_000)),
    "metadata, unknown names": lambda: metadata([b"u%d" % i for i in range(many(200_000, 140_000))]),
    "offset fetch": offset_fetch,
    "fetch": fetch,
    "join group, empty topics": join_group,
    "api versions, empty tags": api_versions,
    "api versions, header tags": header_tags,
    "create topics, long text": create_topics,
    "streams heartbeat, subtopologies": lambda: streams_heartbeat(FEW // 3 - 1),
}


METADATA_PARTITION_BYTES = 26
"""Of Metadata v4: code, index, leader, one replica, which is in sync."""
MOST: int = ELEMENTS_MAX - 10
FEW: int = FEW_ELEMENTS_MAX - 10


def _tagged_list_offsets() -> bytes:
    """Each element has a tagged field that nobody knows, so the native reader refuses the body."""
    body = b"\xff\xff\xff\xff\0\x02\x02t" + uvarint(MOST // 2 + 1)
    element = struct.pack(">iiq", 0, -1, -1) + b"\x01\x63\x00"
    return frame(2, 10, body + element * (MOST // 2) + b"\0" + struct.pack(">i", 1) + b"\0", tags=b"\0")


def _offset_commit() -> bytes:
    body = b"\0\1g" + struct.pack(">i", -1) + b"\0\0" + struct.pack(">i", 1) + b"\0\x09neighbour"
    return frame(8, 6, body + struct.pack(">i", MOST) + (struct.pack(">iqi", 0, 5, -1) + b"\0\0") * MOST)


MOST_TAKEN: dict[str, Callable[[], bytes]] = {
    "most produce, null partitions": lambda: frame(
        0, 3, struct.pack(">hhiih", -1, -1, 30_000, 1, 9) + b"neighbour" + struct.pack(">i", PARTITIONS_MAX - 1)
        + struct.pack(">ii", 0, -1) * (PARTITIONS_MAX - 1),
    ),
    "most list offsets": lambda: frame(
        2, 2, struct.pack(">ibih", -1, 0, 1, 9) + b"neighbour" + struct.pack(">i", MOST)
        + b"".join(struct.pack(">iq", index, -1) for index in range(MOST)),
    ),
    "most list offsets, unknown tags": _tagged_list_offsets,
    "most offset commit": _offset_commit,
    "most offset fetch": lambda: frame(
        9, 1, b"\0\1g" + struct.pack(">ih", 1, 9) + b"neighbour" + struct.pack(">i", MOST)
        + b"".join(struct.pack(">i", index) for index in range(MOST)),
    ),
    "most fetch": lambda: frame(
        1, 4, struct.pack(">iiiibih", -1, 0, 1, 1 << 20, 0, 1, 9) + b"neighbour" + struct.pack(">i", FEW)
        + b"".join(struct.pack(">iqi", index, 0, 1) for index in range(FEW)),
    ),
    "most metadata, illegal names": lambda: metadata([b"!"] * FEW),
    "most metadata, unknown names": lambda: metadata([b"u%d" % i for i in range(many(FEW, 10_000))]),
    "most find coordinator": lambda: frame(
        10, 4, b"\0" + uvarint(FEW + 1) + b"\x03ab" * FEW + b"\0", tags=b"\0"
    ),
    "most delete groups": lambda: frame(42, 1, struct.pack(">i", many(FEW, 10_000)) + b"\0\2ab" * many(FEW, 10_000)),
    "most delete topics": lambda: frame(
        20, 3, struct.pack(">i", many(FEW, 10_000)) + b"\0\2ab" * many(FEW, 10_000) + struct.pack(">i", 1_000)
    ),
    "most leave group": lambda: frame(13, 3, b"\0\1g" + struct.pack(">i", FEW) + b"\0\1m\xff\xff" * FEW),
    "most describe groups": lambda: frame(
        15, 3, struct.pack(">i", many(FEW, 10_000)) + b"\0\2ab" * many(FEW, 10_000) + b"\1"
    ),
    "describe configs of 1,000 topics": lambda: frame(
        32, 3, struct.pack(">i", 1_000) + b"\2\0\x09neighbour\xff\xff\xff\xff" * 1_000 + b"\1\1"
    ),
    "most describe producers": lambda: frame(
        61, 0, b"\2\x0aneighbour" + uvarint(FEW + 1) + bytes(4 * FEW) + b"\0\0", tags=b"\0"
    ),
    "most subtopologies": lambda: streams_heartbeat(SUBTOPOLOGIES_MAX - 1),
    "most epochs": lambda: frame(
        23, 2, struct.pack(">ih", 1, 9) + b"neighbour" + struct.pack(">i", MOST) + struct.pack(">iii", 0, -1, 0) * MOST
    ),
}  # fmt: skip
"""The most elements that are taken: they are legal, and answered in slices."""


E = ErrorCode
CODES: dict[str, set[ErrorCode]] = {
    "produce, a small batch of many records": {E.invalid_record},
    "create topics, long text": {E.invalid_config},
    "streams heartbeat, subtopologies": {E.invalid_request},
    "most produce, null partitions": {E.invalid_record},
    "most list offsets": {E.none, E.unknown_topic_or_partition},
    "most list offsets, unknown tags": {E.invalid_request},
    "most offset commit": {E.none},
    "most offset fetch": {E.none},
    "most fetch": {E.none, E.unknown_topic_or_partition},
    "most metadata, illegal names": {E.invalid_topic_exception},
    "most metadata, unknown names": {E.unknown_topic_or_partition},
    "most find coordinator": {E.none},
    "most delete groups": {E.group_id_not_found},
    "most delete topics": {E.invalid_request},
    "most leave group": {E.none, E.unknown_member_id},
    "most describe groups": {E.none},
    "describe configs of 1,000 topics": {E.none},
    "most describe producers": {E.none},
    "most subtopologies": {E.none},
    "most epochs": {E.none},
}
"""What is answered; the connection is closed for the others, which no client sends."""


@pytest.fixture(scope="module")
def broker() -> Iterator[MeasuredBroker]:
    with Cluster(brokers=0) as cluster:
        yield measured_broker(cluster)


def measure_answer(broker: MeasuredBroker, name: str, request: bytes) -> tuple[Measured, bytes]:
    """The measurements of a request, and its answer."""
    answers: list[bytes] = []

    def asked(broker: BrokerProcess, request: bytes) -> bytes:
        answers.append(ask(broker, request))
        return answers[0]

    return measure(broker, name, request, asked), answers[0]


@pytest.mark.parametrize("name", [*ROWS, *MOST_TAKEN])
def test_hostile_request_leaves_neighbour_served(broker: MeasuredBroker, name: str) -> None:
    request = (ROWS | MOST_TAKEN)[name]()

    measured, answer = measure_answer(broker, name, request)

    assert codes_of(request, answer) == CODES.get(name, set()), "none: the connection is closed"
    assert broker.process is not None and broker.process.poll() is None
    measured.check()
    log = broker.log_path.read_text()
    assert "Traceback" not in log and "exception" not in log


def test_hostile_metadata_of_all_topics_leaves_neighbour_served(broker: MeasuredBroker) -> None:
    make_topics(broker, [(f"wide{i}", 10_000) for i in range(12)])

    request = frame(3, 4, b"\xff\xff\xff\xff\0")
    measured, answer = measure_answer(broker, "metadata of 12 topics of 10,000 partitions", request)

    assert len(answer) > 12 * 10_000 * METADATA_PARTITION_BYTES
    measured.check()


@pytest.fixture(scope="module")
def broad_group(broker: MeasuredBroker) -> str:
    """A group that has committed for 12,000 partitions."""
    for name, partitions in (("broad", 10_000), ("beside", 2_000)):
        make_topics(broker, [(name, partitions)])
        body = b"\0\5broad" + struct.pack(">i", -1) + b"\0\0" + struct.pack(">ih", 1, len(name)) + name.encode()
        body += struct.pack(">i", partitions)
        body += b"".join(struct.pack(">iqi", index, 0, -1) + b"\0\0" for index in range(partitions))
        assert len(ask(broker, frame(8, 6, body))) > 6 * partitions
    return "broad"


@pytest.mark.parametrize(
    "path", ["/api/v1/groups/{}", "/api/v1/groups/{}/explain", "/console/group?group={}", "/api/v1/groups"]
)
def test_page_of_a_group_of_many_partitions_leaves_neighbour_served(
    broker: MeasuredBroker, broad_group: str, path: str
) -> None:
    def read(broker: BrokerProcess, request: bytes) -> bytes:
        url = f"http://127.0.0.1:{broker.admin_port}{request.decode()}"
        with urllib.request.urlopen(url, timeout=ANSWER_TIMEOUT_S) as answer:
            page: bytes = answer.read()
        return page

    path = path.format(broad_group)
    measured = measure(broker, path, path.encode(), read)  # the 12,000 logs that it loads stay in memory

    measured.check_loop()


def test_offset_fetch_that_repeats_a_group_leaves_neighbour_served(broker: MeasuredBroker, broad_group: str) -> None:
    count = 8_000
    element = uvarint(len(broad_group) + 1) + broad_group.encode() + b"\0\0"
    request = frame(9, 8, uvarint(count + 1) + element * count + b"\0\0", tags=b"\0")

    measured, answer = measure_answer(broker, "offset fetch, one group repeated", request)

    assert len(request) < LARGE_BYTES, "so it is handled inline"
    assert codes_of(request, answer) == {E.none, E.coordinator_load_in_progress}
    measured.check()


def test_batch_to_each_of_many_partitions_leaves_neighbour_served(broker: MeasuredBroker, broad_group: str) -> None:
    """About once a second, as often as a broker sweeps the logs that were appended to."""
    batch = build_batch([NewRecord(b"v", timestamp=int(time.time() * 1000))])
    partitions = [(index, batch) for index in range(10_000)]
    request = encode_request(produce_request([(broad_group, partitions)], timeout_ms=120_000), 7)
    answers = [ask(broker, request)]  # opens the logs, which is not measured here

    def work() -> tuple[int, int]:
        for _ in range(many(10, 3)):
            answers.append(ask(broker, request))
            time.sleep(1)
        return len(request) * len(answers), sum(map(len, answers))

    measured = measure_work(broker, "a batch to each of 10,000 partitions, each second", work)

    assert {code for answer in answers for code in codes_of(request, answer)} == {E.none}
    measured.check_loop()  # the 10,000 logs stay in memory


@pytest.fixture(scope="module")
def large_group(broker: MeasuredBroker) -> str:
    """A stable group of one member with 1 MiB of metadata."""
    metadata = bytes((1 << 20) - 100)
    body = b"\0\5large" + struct.pack(">ii", 600_000, 10_000) + b"\0\0" + b"\0\1x" + struct.pack(">i", 1)
    join = frame(11, 3, body + b"\0\1r" + struct.pack(">i", len(metadata)) + metadata)
    member_id = decode_response(11, 3, ask(broker, join))[1].member_id.encode()
    name = struct.pack(">h", len(member_id)) + member_id
    sync = frame(14, 1, b"\0\5large" + struct.pack(">i", 1) + name + struct.pack(">i", 0))
    assert codes_of(sync, ask(broker, sync)) == {E.none}
    return "large"


def test_describe_groups_that_repeats_a_large_group_leaves_neighbour_served(
    broker: MeasuredBroker, large_group: str
) -> None:
    count = 5_000
    name = struct.pack(">h", len(large_group)) + large_group.encode()
    request = frame(15, 3, struct.pack(">i", count) + name * count + b"\0")

    measured, answer = measure_answer(broker, "describe groups, a large one repeated", request)

    assert codes_of(request, answer) == {E.none, E.coordinator_load_in_progress}
    measured.check()


def test_offset_delete_of_most_partitions_leaves_neighbour_served(broker: MeasuredBroker, broad_group: str) -> None:
    head = struct.pack(">h", len(broad_group)) + broad_group.encode() + struct.pack(">ih", 1, 6) + b"beside"
    request = frame(47, 0, head + struct.pack(">i", MOST) + b"".join(struct.pack(">i", index) for index in range(MOST)))

    measured, answer = measure_answer(broker, "most offset delete", request)

    assert codes_of(request, answer) == {E.none, E.unknown_topic_or_partition}
    measured.check()
