"""What clients are answered whose rights are for a part of a request, as Apache Kafka answers them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as E

from tests.kit.wire import RawClient, request
from tests.scripts.test_security_scenarios import (
    CLUSTER,
    GROUP,
    NONE,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WAIT,
    Listener,
    _create_rules,
    _create_topics,
    _rule,
    listening,
)
from tests.support.samples import sample
from tests.support.valkey import ValkeyServer
from tests.support.versions import VERSIONS
from tidegate.protocol.schemas import load_request_schema

CREATE, DELETE, DESCRIBE, CLUSTER_ACTION = 5, 6, 8, 9
NO_OPERATIONS = -(1 << 31)


@pytest.fixture
async def listener(valkey: ValkeyServer) -> AsyncIterator[Listener]:
    async with listening(valkey, auto_create_topics_enable=False) as opened:
        yield opened


async def _user(listener: Listener, *rules: Any, topics: tuple[str, ...] = ("t",)) -> RawClient:
    """A user with these rules, in a cluster with these topics."""
    admin = await listener.login("admin")
    assert set(await _create_topics(admin, *topics)) == {NONE}
    assert set(await _create_rules(admin, *rules)) <= {NONE}
    return await listener.login("u")


async def _commit(client: RawClient, group: str) -> None:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topic = {"name": "t", "partitions": [partition]}
    answer = await client.ask(request(8, 8, group_id=group, member_id="", topics=[topic]))
    assert answer.topics[0].partitions[0].error_code is NONE


async def _offset_delete(client: RawClient, group: str, *topics: str) -> tuple[E, dict[str, E]]:
    asked = [{"name": name, "partitions": [{"partition_index": 0}]} for name in topics]
    answer = await client.ask(request(47, 0, group_id=group, topics=asked))
    return answer.error_code, {one.name: one.partitions[0].error_code for one in answer.topics}


async def test_offset_delete_of_unauthorized_topics(listener: Listener) -> None:
    rules = (_rule(GROUP, "g", DELETE), _rule(GROUP, "absent", DELETE), _rule(TOPIC, "t", READ))
    user = await _user(listener, *rules, topics=("t", "denied"))
    await _commit(await listener.login("admin"), "g")

    denied = E.topic_authorization_failed
    assert await _offset_delete(user, "g", "denied") == (NONE, {"denied": denied})
    assert await _offset_delete(user, "g", "t", "denied") == (NONE, {"t": NONE, "denied": denied})
    for topics in (("denied",), ("t", "denied")):
        assert await _offset_delete(user, "absent", *topics) == (E.group_id_not_found, {})
    assert await _offset_delete(user, "other", "t") == (E.group_authorization_failed, {})


async def _cluster_operations(client: RawClient) -> list[int]:
    """Of DescribeCluster and of Metadata."""
    described = await client.ask(request(60, 1, include_cluster_authorized_operations=True))
    metadata = await client.ask(request(
        3, 9, topics=[], allow_auto_topic_creation=False, include_cluster_authorized_operations=True,
        include_topic_authorized_operations=False,
    ))  # fmt: skip
    return [described.cluster_authorized_operations, metadata.cluster_authorized_operations]


async def test_operations_of_the_cluster_need_describe(listener: Listener) -> None:
    user = await _user(listener, _rule(CLUSTER, "kafka-cluster", CLUSTER_ACTION))
    assert await _cluster_operations(user) == [0, 0]

    admin = await listener.login("admin")
    assert await _create_rules(admin, _rule(CLUSTER, "kafka-cluster", DESCRIBE)) == [NONE]
    assert await _cluster_operations(user) == [1 << CLUSTER_ACTION | 1 << DESCRIBE] * 2


async def _metadata(client: RawClient, name: str, *, create: bool = False) -> tuple[E, int]:
    topic = {"topic_id": None, "name": name}
    asked = request(
        3, 12, topics=[topic], allow_auto_topic_creation=create, include_topic_authorized_operations=True
    )  # fmt: skip
    (one,) = (await client.ask(asked)).topics
    return one.error_code, one.topic_authorized_operations


async def _topic_partitions(client: RawClient, name: str) -> tuple[E, int]:
    (one,) = (await client.ask(request(75, 0, topics=[{"name": name}]))).topics
    return one.error_code, one.topic_authorized_operations


async def test_absent_topics_that_may_be_described(listener: Listener) -> None:
    user = await _user(listener, _rule(TOPIC, "a-", READ, prefixed=True))
    readable, denied = 1 << READ | 1 << DESCRIBE, (E.topic_authorization_failed, NO_OPERATIONS)
    every = 0b1101_1111_1000
    for ask in (_metadata, _topic_partitions):
        assert await ask(user, "a-absent") == (E.unknown_topic_or_partition, readable)
        assert await ask(user, "b-absent") == denied
        assert await ask(await listener.login("admin"), "a-absent") == (E.unknown_topic_or_partition, every)
    assert await _metadata(user, "a-absent", create=True) == (E.unknown_topic_or_partition, readable)


async def test_topics_that_would_be_created_need_create(valkey: ValkeyServer) -> None:
    async with listening(valkey, auto_create_topics_enable=True) as listener:
        user = await _user(listener, _rule(TOPIC, "a-", READ, prefixed=True))
        code, _ = await _metadata(user, "a-1")
        assert code is E.unknown_topic_or_partition
        code, _ = await _metadata(user, "a-1", create=True)
        assert code is E.topic_authorization_failed
        assert await _create_rules(await listener.login("admin"), _rule(TOPIC, "a-1", CREATE)) == [NONE]
        code, _ = await _metadata(user, "a-1", create=True)
        assert code is NONE


async def test_delete_topics_of_an_absent_topic_that_may_be_described(listener: Listener) -> None:
    user = await _user(listener, _rule(TOPIC, "a-", DESCRIBE, prefixed=True), topics=("a-present", "t"))
    asked = ("a-present", "a-absent", "b-absent")
    states = [{"name": name, "topic_id": None} for name in asked]
    answer = await user.ask(request(20, 6, topics=states, timeout=WAIT))
    assert {one.name: one.error_code for one in answer.responses} == {
        "a-present": E.topic_authorization_failed,
        "a-absent": E.unknown_topic_or_partition,
        "b-absent": E.topic_authorization_failed,
    }


async def test_id_of_a_topic_without_describe_is_unknown(listener: Listener) -> None:
    admin = await listener.login("admin")
    for operation, expected in ((CREATE, E.unknown_topic_id), (DESCRIBE, E.topic_authorization_failed)):
        name = f"t-{operation}"
        user = await _user(listener, _rule(TOPIC, name, operation), topics=(name,))
        asked = {"topic_id": None, "name": name}
        values = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        (topic,) = (await admin.ask(request(3, 12, topics=[asked], **values))).topics
        by_id = asked | {"topic_id": topic.topic_id, "name": None}
        (described,) = (await user.ask(request(3, 12, topics=[by_id], **values))).topics
        assert described.error_code is (NONE if operation == DESCRIBE else E.unknown_topic_id)
        state = {"name": None, "topic_id": topic.topic_id}
        (deleted,) = (await user.ask(request(20, 6, topics=[state], timeout=WAIT))).responses
        assert deleted.error_code is expected


async def test_refused_requests_repeat_the_code_for_each_thing(listener: Listener) -> None:
    user, refused = await _user(listener), E.cluster_authorization_failed
    users = await user.ask(request(50, 0, users=[{"name": name} for name in ("u", "v")]))
    assert users.error_code is refused
    assert [(one.user, one.error_code) for one in users.results] == [("u", refused), ("v", refused)]
    assert not (await user.ask(request(50, 0, users=None))).results

    topic = {
        "name": "t", "partitions": [{"partition_index": 0, "replicas": None}],
    }  # fmt: skip
    moved = await user.ask(request(45, 0, timeout=WAIT, topics=[topic]))
    assert (moved.error_code, moved.responses[0].partitions[0].error_code) == (refused, refused)


@pytest.mark.parametrize("version", [5, 8])
async def test_offset_fetch_of_a_denied_group(listener: Listener, version: int) -> None:
    """Up to v7 each partition has the code too; from v8 on the group alone, as in Kafka."""
    user, refused = await _user(listener), E.group_authorization_failed
    if version < 8:
        topic = {"name": "t", "partition_indexes": [0]}
        answer = await user.ask(request(9, version, group_id="g", topics=[topic]))
        codes = [one.error_code for topic in answer.topics for one in topic.partitions]
        assert (answer.error_code, codes) == (refused, [refused])
        return
    topic = {"name": "t", "partition_indexes": [0]}
    group = {"group_id": "g", "topics": [topic]}
    (answered,) = (await user.ask(request(9, version, groups=[group]))).groups
    assert (answered.error_code, answered.topics) == (refused, ())


@pytest.mark.parametrize("api_key", [1, 8, 9], ids=["Fetch", "OffsetCommit", "OffsetFetch"])
async def test_every_version_is_judged(listener: Listener, api_key: int) -> None:
    """Topics have names, names and ids, or ids alone."""
    user = await _user(listener)
    first, last = VERSIONS[api_key]
    for version in range(first, last + 1):
        asked = sample(load_request_schema(api_key, version))
        if api_key == 1 and version >= 7:  # sessions
            asked = replace(asked, session_id=0, session_epoch=-1)
        answer = repr(await user.ask(asked))
        assert "authorization_failed" in answer or "unknown_topic_id" in answer, version
        assert "unknown_server_error" not in answer, version


async def test_consumer_group_of_a_client_with_some_rights(listener: Listener) -> None:
    """Its operations are the client's; names and partitions of topics that it may not describe are not shown."""
    user = await _user(listener, _rule(GROUP, "g", DESCRIBE))
    admin = await listener.login("admin")
    joined = await admin.ask(request(
        68, 1, group_id="g", member_id="A" * 22, member_epoch=0, rebalance_timeout=WAIT, subscribed_topic_names=["t"],
        topic_partitions=[],
    ))  # fmt: skip
    assert joined.error_code is NONE
    describe = request(69, 0, group_ids=["g"], include_authorized_operations=True)
    (group,) = (await user.ask(describe)).groups
    assert (group.error_code, group.members) == (E.topic_authorization_failed, ())
    assert await _create_rules(admin, _rule(TOPIC, "t", DESCRIBE)) == [NONE]
    (group,) = (await user.ask(describe)).groups
    assert (group.error_code, group.authorized_operations, len(group.members)) == (NONE, 1 << DESCRIBE, 1)


async def test_transaction_is_described_without_topics_that_may_not_be(listener: Listener) -> None:
    admin_of = {"transactional_id": "tx", "producer_id": -1, "producer_epoch": -1}
    rules = (_rule(TRANSACTIONAL_ID, "tx", DESCRIBE), _rule(TOPIC, "t", DESCRIBE))
    user = await _user(listener, *rules, topics=("t", "secret"))
    admin = await listener.login("admin")
    made = await admin.ask(request(22, 4, transaction_timeout=WAIT, **admin_of))
    added = [{"name": name, "partitions": [0]} for name in ("t", "secret")]
    producer = {"v3_and_below_producer_id": made.producer_id, "v3_and_below_producer_epoch": made.producer_epoch}
    await admin.ask(request(24, 3, v3_and_below_transactional_id="tx", v3_and_below_topics=added, **producer))

    for client, described in ((user, ["t"]), (admin, ["secret", "t"])):
        (one,) = (await client.ask(request(65, 0, transactional_ids=["tx"]))).transaction_states
        assert (one.error_code, sorted(topic.topic for topic in one.topics)) == (NONE, described)
