"""A group id of more than 256 characters is refused by every API that names a group; a broker holds what it knows of
groups in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import RawClient, request
from tests.support.valkey import ValkeyServer, free_port
from tidegate.app import App
from tidegate.settings import Settings
from tidegate.store.keys import GROUP_ID_LENGTH_MAX

LONG = "/" * (GROUP_ID_LENGTH_MAX + 1)
COMMITTED = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]}]
EPOCH_MEMBER = {"member_id": "m", "member_epoch": 0, "rack_id": None, "subscribed_topic_names": ["t"]}
REQUESTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "OffsetCommit": (8, 8, {
        "group_id": LONG, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": COMMITTED,
    }),
    "OffsetFetch 5": (9, 5, {"group_id": LONG, "topics": [{"name": "t", "partition_indexes": [0]}]}),
    "OffsetFetch": (9, 8, {
        "groups": [{"group_id": LONG, "topics": [{"name": "t", "partition_indexes": [0]}]}], "require_stable": False,
    }),
    "JoinGroup": (11, 3, {
        "group_id": LONG, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }),
    "Heartbeat": (12, 4, {"group_id": LONG, "generation_id": 1, "member_id": "m", "group_instance_id": None}),
    "LeaveGroup": (13, 3, {"group_id": LONG, "members": [{"member_id": "m", "group_instance_id": None}]}),
    "SyncGroup": (14, 4, {
        "group_id": LONG, "generation_id": 1, "member_id": "m", "group_instance_id": None, "assignments": [],
    }),
    "DescribeGroups": (15, 4, {"groups": [LONG], "include_authorized_operations": False}),
    "AddOffsetsToTxn": (25, 3, {
        "transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "group_id": LONG,
    }),
    "TxnOffsetCommit": (28, 3, {
        "transactional_id": "x", "group_id": LONG, "producer_id": 1, "producer_epoch": 0, "generation_id": -1,
        "member_id": "", "group_instance_id": None, "topics": COMMITTED,
    }),
    "DeleteGroups": (42, 2, {"groups_names": [LONG]}),
    "IncrementalAlterConfigs": (44, 1, {
        "resources": [{
            "resource_type": 32, "resource_name": LONG,
            "configs": [{"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "50000"}],
        }],
        "validate_only": False,
    }),
    "OffsetDelete": (47, 0, {"group_id": LONG, "topics": [{"name": "t", "partitions": [{"partition_index": 0}]}]}),
    "ConsumerGroupHeartbeat": (68, 0, {
        **EPOCH_MEMBER, "group_id": LONG, "instance_id": None, "rebalance_timeout": 30_000, "server_assignor": None,
        "topic_partitions": [],
    }),
    "ConsumerGroupDescribe": (69, 0, {"group_ids": [LONG], "include_authorized_operations": False}),
    "ShareGroupHeartbeat": (76, 1, {**EPOCH_MEMBER, "group_id": LONG}),
    "ShareGroupDescribe": (77, 1, {"group_ids": [LONG], "include_authorized_operations": False}),
    "StreamsGroupDescribe": (89, 0, {"group_ids": [LONG], "include_authorized_operations": False}),
    "DescribeShareGroupOffsets": (90, 0, {"groups": [{"group_id": LONG, "topics": None}]}),
    "AlterShareGroupOffsets": (91, 0, {
        "group_id": LONG, "topics": [{"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 0}]}],
    }),
    "DeleteShareGroupOffsets": (92, 0, {"group_id": LONG, "topics": [{"topic_name": "t"}]}),
}  # fmt: skip


@pytest.fixture
async def client(valkey: ValkeyServer) -> AsyncIterator[RawClient]:
    """A connection to a broker of its own."""
    port = free_port()
    app = App(Settings(redis_url=valkey.url, key_prefix=f"tidegate:long-{port}", port=port, admin_port=free_port()))
    await app.start()
    connected = await RawClient.connect(f"127.0.0.1:{port}")
    made = request(19, 4, topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [],
                                   "configs": []}], timeout=10_000, validate_only=False)  # fmt: skip
    assert (await connected.ask(made)).topics[0].error_code is ErrorCode.none
    yield connected
    await connected.close()
    await app.close()


def codes_of(answer: Any) -> set[ErrorCode]:
    """All error codes of an answer."""
    if isinstance(answer, ErrorCode):
        return {answer}
    if isinstance(answer, tuple):
        return set().union(*map(codes_of, answer))
    if is_dataclass(answer):
        return set().union(*(codes_of(getattr(answer, one.name)) for one in fields(answer)))
    return set()


@pytest.mark.parametrize("name", REQUESTS)
async def test_group_id_that_is_too_long_is_refused(client: RawClient, name: str) -> None:
    api_key, version, values = REQUESTS[name]

    answer = await client.ask(request(api_key, version, **values))

    assert codes_of(answer) - {ErrorCode.none} == {ErrorCode.invalid_group_id}


async def test_group_id_of_the_most_characters_is_taken(client: RawClient) -> None:
    api_key, version, values = REQUESTS["JoinGroup"]

    answer = await client.ask(request(api_key, version, **{**values, "group_id": "/" * GROUP_ID_LENGTH_MAX}))

    assert answer.error_code is ErrorCode.none
