"""Connections and ApiVersions, scenarios by number: raw sockets against a live cluster."""

from __future__ import annotations

import asyncio
import datetime
import struct
import time
import uuid
from typing import Any

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.metadata.v12.request import MetadataRequest

from bench.cluster import Cluster
from tests.kit.wire import RawClient, decode_response, encode_request, frame, request_type
from tests.support.log_broker import fetch_request, produce_request
from tidegate.protocol.primitives import uvarint
from tidegate.records.batch import iter_headers
from tidegate.records.build import NewRecord, build_batch

VERSIONS: Any = ApiVersionsRequest(client_software_name="test-client", client_software_version="1.0")
NO_TOPICS: Any = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)


async def client_of(cluster: Cluster, broker: int = 0) -> RawClient:
    return await RawClient.connect(cluster.brokers[broker].address)


def creation_of(topic: str) -> Any:
    """A request for a topic of one partition."""
    one = CreatableTopic(name=topic, num_partitions=1, replication_factor=1, assignments=(), configs=())  # type: ignore[arg-type]
    return CreateTopicsRequest(topics=(one,))


async def closed(client: RawClient) -> bytes:
    """What else comes until the broker closes; fails when it stays open."""
    try:
        return await asyncio.wait_for(client.reader.read(), 30)
    except ConnectionError:
        return b""


async def test_log_1_api_versions_from_the_future(cluster: Cluster) -> None:
    async with await client_of(cluster) as client:
        client.writer.write(frame(struct.pack(">hhih", 18, 99, 7, -1) + b"\0arbitrary bytes"))
        correlation_id, answer = decode_response(18, 0, await client.receive_frame())
        assert correlation_id == 7
        assert answer.error_code.value == 35
        assert (18, 0, 5) in [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys]

        assert len((await client.ask(VERSIONS)).api_keys) > 20


async def test_log_2_api_versions_v3_has_the_plain_header(cluster: Cluster) -> None:
    async with await client_of(cluster) as client:
        correlation_id = client.send(VERSIONS)
        answered = await client.receive_frame()
        assert answered[:6] == struct.pack(">ih", correlation_id, 0)
        _, answer = decode_response(18, 3, answered)
        assert answer.finalized_features_epoch >= 0 or not answer.finalized_features


async def test_log_3_bad_software_name(cluster: Cluster) -> None:
    bad: Any = ApiVersionsRequest(client_software_name="bad name!", client_software_version="1")
    async with await client_of(cluster) as client:
        assert (await client.ask(bad)).error_code.value == 42
        assert (await client.ask(VERSIONS)).error_code.value == 0


async def test_log_4_unknown_tagged_fields_are_skipped(cluster: Cluster) -> None:
    plain = encode_request(VERSIONS, 5, "raw")[4:]
    header_tags = b"\1" + uvarint(5) + uvarint(1) + b"x"
    body_tags = b"\1" + uvarint(99) + uvarint(2) + b"xy"
    async with await client_of(cluster) as client:
        client.writer.write(frame(plain[:13] + header_tags + plain[14:-1] + body_tags))
        _, answer = decode_response(18, 3, await client.receive_frame())
        assert answer.error_code.value == 0


@pytest.mark.parametrize(("api_key", "version"), [(9999, 0), (3, 14), (3, -1)], ids=["5-key", "6-version", "negative"])
async def test_log_5_unknown_api_closes_without_an_answer(cluster: Cluster, api_key: int, version: int) -> None:
    async with await client_of(cluster) as client:
        client.writer.write(frame(struct.pack(">hhih", api_key, version, 1, -1)))
        assert await closed(client) == b""


@pytest.mark.parametrize("size", [104_857_601, -1])
async def test_log_7_a_length_that_no_frame_has_closes_at_once(cluster: Cluster, size: int) -> None:
    async with await client_of(cluster) as client:
        client.writer.write(struct.pack(">i", size))
        assert await closed(client) == b""


async def test_log_8_correlation_ids(cluster: Cluster) -> None:
    ids = [-1, 0, 2147483647]
    async with await client_of(cluster) as client:
        client.writer.write(b"".join(encode_request(NO_TOPICS, correlation_id) for correlation_id in ids))
        assert [struct.unpack_from(">i", await client.receive_frame())[0] for _ in ids] == ids


async def test_log_10_acks_0_shifts_no_reply(cluster: Cluster) -> None:
    topic = f"silent-{uuid.uuid4().hex[:8]}"
    async with await client_of(cluster) as client:
        assert (await client.ask(creation_of(topic))).topics[0].error_code.value == 0
        batch = build_batch([NewRecord(b"v", None, time.time_ns() // 1_000_000)])  # retention would delete an old one
        client.send(produce_request([(topic, [(0, batch)])], acks=0))
        asked = client.send(NO_TOPICS)
        assert (await asyncio.wait_for(client.receive(), 20))[0] == asked
        fetched = await client.ask(fetch_request([(topic, [(0, 0)])], max_wait_ms=10_000))
        assert len(list(iter_headers(fetched.responses[0].partitions[0].records))) == 1


async def test_log_11_an_error_with_acks_0_closes(cluster: Cluster) -> None:
    async with await client_of(cluster) as client:
        client.send(produce_request([("nope", [(0, build_batch([NewRecord(b"v", None, 1)]))])], acks=0))
        assert await closed(client) == b""


async def test_log_121_api_versions_names_the_broker(cluster: Cluster) -> None:
    """Kafka compares the node id as well; here any broker may stand behind one address."""
    async with await client_of(cluster) as client:
        cluster_id = (await client.ask(NO_TOPICS)).cluster_id

        async def asked(**identity: Any) -> tuple[int, int]:
            request: Any = request_type(18, 5)(client_software_name="t", client_software_version="1", **identity)
            answer = await client.ask(request)
            return answer.error_code.value, len(answer.api_keys)

        code, listed = await asked()
        assert code == 0 and listed > 20
        assert await asked(cluster_id=cluster_id, node_id=0) == (0, listed)
        assert await asked(cluster_id=cluster_id) == (42, 0)
        assert await asked(node_id=0) == (42, 0)
        assert await asked(cluster_id="another-cluster-000000", node_id=0) == (129, 0)
        assert await asked(cluster_id=cluster_id, node_id=77) == (0, listed)


async def test_log_122_text_that_is_not_utf_8(cluster: Cluster) -> None:
    async with await client_of(cluster) as client:
        no_topics = encode_request(NO_TOPICS, 7, None)
        client.writer.write(no_topics)
        assert struct.unpack_from(">i", await client.receive_frame())[0] == 7
        body = no_topics[4 + 10 :]
        client.writer.write(frame(struct.pack(">hhih", 3, 12, 8, 2) + b"\xff\xfe" + body))
        assert struct.unpack_from(">i", await client.receive_frame())[0] == 8
        client.writer.write(frame(struct.pack(">hhih", 3, 1, 9, -1) + struct.pack(">ih", 1, 3) + b"a\xffb"))
        _, answer = decode_response(3, 1, await client.receive_frame())
        assert [(one.error_code.value, one.name) for one in answer.topics] == [(17, "a\ufffdb")]


async def test_log_123_a_header_that_is_too_short(cluster: Cluster) -> None:
    async with await client_of(cluster) as client:
        client.writer.write(frame(struct.pack(">hhih", 18, -1, 7, -1) + b"\0"))
        correlation_id, answer = decode_response(18, 0, await client.receive_frame())
        assert (correlation_id, answer.error_code.value) == (7, 35)
    async with await client_of(cluster) as client:
        client.writer.write(frame(struct.pack(">hhih", 18, 99, 7, -1)))
        assert await closed(client) == b""


async def test_log_9_answers_keep_their_order_behind_a_long_poll(cluster: Cluster) -> None:
    topic = f"poll-{uuid.uuid4().hex[:8]}"
    fetch: Any = FetchRequest(
        max_wait=datetime.timedelta(seconds=1),
        min_bytes=1,
        topics=(
            FetchTopic(
                topic=topic, partitions=(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20),)
            ),
        ),
        forgotten_topics_data=(),
    )
    async with await client_of(cluster) as client:
        assert (await client.ask(creation_of(topic))).topics[0].error_code.value == 0
        started = asyncio.get_running_loop().time()
        sent = [client.send(fetch), client.send(NO_TOPICS)]
        received = []
        correlation_id, answer = await asyncio.wait_for(client.receive(), 30)
        received.append(correlation_id)
        assert asyncio.get_running_loop().time() - started > 0.9
        assert answer.responses[0].partitions[0].error_code.value == 0
        received.append((await asyncio.wait_for(client.receive(), 30))[0])
        assert received == sent
