"""Discovery and topic administration as clients see it: two brokers over one server, asked without sockets."""

from __future__ import annotations

import asyncio
import datetime
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.asking import ask
from tests.support.built import build_broker
from tidegate.apis import configs, discovery, topics
from tidegate.apis.call import BrokerContext, Client
from tidegate.cluster.broker_lease import SINGLE_NODE_ID, BrokerLease
from tidegate.log.logs import Logs
from tidegate.protocol import codec
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.topics.catalog import PARTITIONS_MAX, Catalog

assert discovery and topics and configs  # registered by being imported

MINUTE = datetime.timedelta(minutes=1)
NONE = ErrorCode.none
UNKNOWN_TOPIC = ErrorCode.unknown_topic_or_partition
Open = Callable[..., Any]


@pytest.fixture
async def opened(store: Store, settings: Settings) -> AsyncIterator[Open]:
    """Makes brokers: a store, a membership and a catalogue each."""
    made: list[tuple[BrokerLease, Catalog, Logs, Store]] = []

    async def open_one(port: int, **changes: Any) -> BrokerContext:
        own = settings.model_copy(update=changes)
        own_store = Store(own)
        await own_store.start()
        broker_lease = BrokerLease(own_store, own, {"PLAINTEXT": ("127.0.0.1", port)}, f"rack-{port}")
        await broker_lease.start()
        context = build_broker(own_store, broker_lease=broker_lease).context
        await context.catalog.start()
        await context.logs.start()
        made.append((broker_lease, context.catalog, context.logs, own_store))
        return context

    yield open_one
    for broker_lease, catalog, logs, own_store in made:
        await logs.close()
        await catalog.close()
        await broker_lease.close()
        await own_store.close()


@pytest.fixture
async def broker(opened: Open) -> BrokerContext:
    return cast(BrokerContext, await opened(9092))


@pytest.fixture
async def brokers(opened: Open) -> tuple[BrokerContext, BrokerContext]:
    """Two that know each other."""
    first, second = await opened(9092), await opened(9093)
    await first.broker_lease.renew()
    return first, second


def entity(**values: Any) -> dict[str, Any]:
    return values


def metadata(version: int, names: list[str] | None, create: bool = True, ids: list[uuid.UUID] | None = None) -> Any:
    values: dict[str, Any] = {}
    if version >= 4:
        values["allow_auto_topic_creation"] = create
    if version >= 8:
        values["include_topic_authorized_operations"] = False
    if 8 <= version <= 10:
        values["include_cluster_authorized_operations"] = False
    wanted: Any = None
    if names is not None or ids is not None:
        wanted = [entity(name=name, **({"topic_id": None} if version >= 10 else {})) for name in names or ()]
        wanted += [entity(name=None, topic_id=one) for one in ids or ()]
        wanted = tuple(wanted)
    return request(3, version, topics=wanted, **values)


def topic(name: str, partitions: int = -1, replicas: int = -1, assigned: Any = (), **config: str | None) -> Any:
    return entity(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=tuple(entity(partition_index=index, broker_ids=tuple(ids)) for index, ids in assigned),
        configs=tuple(entity(name=key.replace("_", "."), value=value) for key, value in config.items()),
    )


async def create(context: BrokerContext, *wanted: Any, validate_only: bool = False) -> dict[str, Any]:
    response = await ask(context, request(19, 7, topics=wanted, timeout=MINUTE, validate_only=validate_only))
    return {one.name: one for one in response.topics}


def codes(found: dict[str, Any]) -> dict[str, ErrorCode]:
    return {name: one.error_code for name, one in found.items()}


async def delete(context: BrokerContext, name: str | None = None, topic_id: uuid.UUID | None = None) -> Any:
    state = entity(name=name, topic_id=topic_id)
    return (await ask(context, request(20, 6, topics=(state,), timeout=MINUTE))).responses[0]


async def grow(
    context: BrokerContext, name: str, count: int, assignments: Any = None, validate_only: bool = False
) -> ErrorCode:
    wanted = entity(
        name=name,
        count=count,
        assignments=None if assignments is None else tuple(entity(broker_ids=ids) for ids in assignments),
    )
    response = await ask(context, request(37, 3, topics=(wanted,), timeout=MINUTE, validate_only=validate_only))
    return cast(ErrorCode, response.results[0].error_code)


# -- ApiVersions


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_lists_the_served_in_every_version(broker: BrokerContext, version: int) -> None:
    software = {"client_software_name": "test-client", "client_software_version": "1.0"} if version >= 3 else {}
    client = Client(1, "127.0.0.1", 1)
    response = await ask(broker, request(18, version, **software), client)

    assert response.error_code is NONE
    ranges = {one.api_key: (one.min_version, one.max_version) for one in response.api_keys}
    assert (ranges[18], ranges[3], ranges[10], ranges[19]) == ((0, 5), (0, 13), (0, 6), (2, 7))
    if version >= 3:
        assert response.finalized_features_epoch >= 0
        assert (client.software_name, client.software_version) == ("test-client", "1.0")


@pytest.mark.parametrize("name", ["bad name!", "", "-x", "x-", "a" * 300, "x\n"])
async def test_bad_software_name_is_refused_and_not_stored(broker: BrokerContext, name: str) -> None:
    """Scenario 3."""
    client = Client(1, "127.0.0.1", 1)
    response = await ask(broker, request(18, 3, client_software_name=name, client_software_version="1"), client)

    assert response.error_code is ErrorCode.invalid_request
    assert client.software_name == "unknown"


# -- Metadata


async def test_log_13_null_is_all_topics_and_empty_is_none(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    """Scenario 13."""
    await create(brokers[0], topic("a"), topic("b"))
    for context in brokers:
        await context.catalog.refresh()
        everything = await ask(context, metadata(9, None))
        nothing = await ask(context, metadata(9, []))

        assert [one.name for one in everything.topics] == ["a", "b"]
        assert nothing.topics == ()
        assert [(one.node_id, one.port, one.rack) for one in nothing.brokers] == [
            (1, 9092, "rack-9092"),
            (2, 9093, "rack-9093"),
        ]
        assert nothing.controller_id in (1, 2)
        assert len(nothing.cluster_id) == 22
    assert [one.name for one in (await ask(brokers[0], metadata(0, []))).topics] == ["a", "b"]


@pytest.mark.parametrize("version", range(14))
async def test_every_version_names_the_same_leader(brokers: tuple[BrokerContext, BrokerContext], version: int) -> None:
    await create(brokers[0], topic("a", 20))
    leaders = []
    for context in brokers:
        (found,) = (await ask(context, metadata(version, ["a"]))).topics
        assert found.error_code is NONE
        leaders.append([(one.partition_index, one.leader_id) for one in found.partitions])
        for one in found.partitions:
            assert one.replica_nodes == one.isr_nodes == (one.leader_id,)

    assert leaders[0] == leaders[1]
    assert {leader for _, leader in leaders[0]} == {1, 2}


async def test_log_14_unknown_topic_is_made_where_that_is_allowed(broker: BrokerContext) -> None:
    """Scenario 14, in one request each."""
    (new,) = (await ask(broker, metadata(4, ["new1"], create=True))).topics
    (refused,) = (await ask(broker, metadata(4, ["new2"], create=False))).topics
    (again,) = (await ask(broker, metadata(4, ["new2"], create=False))).topics

    assert new.error_code is NONE and len(new.partitions) == 1
    assert refused.error_code is again.error_code is UNKNOWN_TOPIC
    assert [one.name for one in broker.catalog.topics("default")] == ["new1"]


async def test_nothing_is_made_where_the_broker_forbids_it(opened: Open) -> None:
    context = await opened(9092, auto_create_topics_enable=False)
    (refused,) = (await ask(context, metadata(1, ["new"]))).topics

    assert refused.error_code is UNKNOWN_TOPIC


async def test_metadata_creates_no_more_partitions_than_create_topics(opened: Open) -> None:
    """The others stay unknown, as in Kafka: clients ask again."""
    context = await opened(9092, num_partitions=PARTITIONS_MAX // 2 + 1)

    found = (await ask(context, metadata(4, ["a", "b"]))).topics
    again = (await ask(context, metadata(4, ["a", "b"]))).topics

    assert [one.error_code for one in found] == [NONE, UNKNOWN_TOPIC]
    assert [one.error_code for one in again] == [NONE, NONE]


async def test_internal_topics_are_not_made_by_asking(broker: BrokerContext) -> None:
    (refused,) = (await ask(broker, metadata(4, ["__consumer_offsets"]))).topics

    assert refused.error_code is UNKNOWN_TOPIC


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
async def test_create_topics_internal_name_answers_invalid_topic(broker: BrokerContext, name: str) -> None:
    refused = (await create(broker, topic(name)))[name]

    assert refused.error_code is ErrorCode.invalid_topic_exception
    assert name in refused.error_message and not broker.catalog.topics("default")


async def test_two_brokers_asked_for_a_new_topic_make_one(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    found = await asyncio.gather(*(ask(context, metadata(12, ["new"])) for context in brokers * 3))

    assert {one.topics[0].error_code for one in found} == {NONE}
    assert len({one.topics[0].topic_id for one in found}) == 1


@pytest.mark.parametrize("name", ["bad/name", "x" * 250, "", ".", ".."])
async def test_log_15_bad_name_is_invalid_and_nothing_is_made(broker: BrokerContext, name: str) -> None:
    """Scenario 15."""
    (refused,) = (await ask(broker, metadata(4, [name]))).topics

    assert refused.error_code is ErrorCode.invalid_topic_exception
    assert broker.catalog.topics("default") == []


async def test_log_16_metadata_by_topic_id(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    """Scenario 16."""
    made = await create(brokers[0], topic("a"))
    nobody = uuid.uuid4()
    found, missing = (await ask(brokers[1], metadata(12, None, ids=[made["a"].topic_id, nobody]))).topics

    assert (found.error_code, found.name, found.topic_id) == (NONE, "a", made["a"].topic_id)
    assert (missing.error_code, missing.name, missing.topic_id) == (ErrorCode.unknown_topic_id, None, nobody)


@pytest.mark.parametrize("version", [10, 11])
async def test_log_17_topic_ids_are_not_read_before_version_12(broker: BrokerContext, version: int) -> None:
    """Scenario 17."""
    wanted = entity(topic_id=uuid.uuid4(), name="a")
    values = {"include_cluster_authorized_operations": False} if version == 10 else {}
    response = await ask(
        broker, request(3, version, topics=(wanted,), include_topic_authorized_operations=False, **values)
    )

    assert [one.error_code for one in response.topics] == [ErrorCode.invalid_request]


@pytest.mark.parametrize("version", [12, 13])
async def test_log_17_neither_name_nor_id(broker: BrokerContext, version: int) -> None:
    """Scenario 17; Kafka's UNKNOWN_SERVER_ERROR is a defect of its own."""
    nameless = entity(topic_id=None, name=None)
    response = await ask(broker, request(3, version, topics=(nameless,), include_topic_authorized_operations=False))

    assert [(one.name, one.topic_id, one.error_code) for one in response.topics] == [
        (None, None, ErrorCode.invalid_request)
    ]


async def test_librdkafka_asks_for_all_topics_with_a_null_that_is_too_long() -> None:
    decoded = codec.decode(3, 13, bytes.fromhex("00000000010000"))

    assert decoded.topics is None


async def test_metadata_topic_requested_twice_is_returned_once(broker: BrokerContext) -> None:
    made = await create(broker, topic("a"))
    response = await ask(broker, metadata(12, ["a", "a", "nope", "nope"], create=False, ids=[made["a"].topic_id]))

    assert [(one.name, one.error_code) for one in response.topics] == [("a", NONE), ("nope", UNKNOWN_TOPIC)]


async def test_authorized_operations_are_returned_on_request(broker: BrokerContext) -> None:
    await create(broker, topic("a"))
    silent = await ask(broker, metadata(9, None))
    reported = await ask(
        broker,
        request(
            3,
            9,
            topics=None,
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        ),
    )

    assert (silent.cluster_authorized_operations, silent.topics[0].topic_authorized_operations) == (-(1 << 31),) * 2
    assert (reported.cluster_authorized_operations, reported.topics[0].topic_authorized_operations) == (8096, 3576)


async def test_encoded_answer_is_given_again_until_something_changes(broker: BrokerContext) -> None:
    encoded = discovery.answers.encoded_of(broker.catalog)
    await create(broker, topic("a"))
    first = await ask(broker, metadata(9, None))
    assert await ask(broker, metadata(9, None)) == first
    assert len(encoded._bodies) == 1

    await create(broker, topic("b"))
    assert [one.name for one in (await ask(broker, metadata(9, None))).topics] == ["a", "b"]

    await broker.broker_lease.drain()
    await ask(broker, metadata(9, None))
    assert len(encoded._bodies) == 1


async def test_leaders_move_away_from_a_draining_broker(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    await create(brokers[0], topic("a", 20))
    await brokers[0].broker_lease.drain()
    await brokers[1].broker_lease.renew()
    response = await ask(brokers[1], metadata(9, ["a"]))

    assert {one.leader_id for one in response.topics[0].partitions} == {2}
    assert [one.node_id for one in response.brokers] == [1, 2]


@pytest.mark.one_server
async def test_log_22_leader_epoch_is_that_of_the_logs_and_never_decreases(
    brokers: tuple[BrokerContext, BrokerContext],
) -> None:
    """Scenario 22; and a fetch is checked against what Metadata returns."""
    await create(brokers[0], topic("a", 3))
    epochs = []
    keys = brokers[0].store.cluster_keys
    for replid in ("", "another", "a-third"):
        if replid:  # as if the server were the one that took that one's place
            await brokers[0].store.command("HSET", keys.info, "master_replid", replid)
            await brokers[0].store.command("DEL", keys.replids)
        for context in brokers:
            context.store.metadata_node.control._drop("cut by the test")
            context.store.metadata_node.data_in._drop("cut by the test")
            await context.store.metadata_node.control.wait_up(30)
            await context.store.metadata_node.data_in.wait_up(30)
            reported = (await ask(context, metadata(9, ["a"]))).topics[0].partitions
            await context.logs.failover_epochs.ready()
            now = (await ask(context, metadata(9, ["a"]))).topics[0].partitions
            found = context.catalog.get("default", "a")
            assert found is not None
            for one in now:
                known = await context.logs.partition(found, one.partition_index).ensure()
                assert known.leader_epoch == one.leader_epoch
            assert reported[0].leader_epoch <= now[0].leader_epoch
            epochs.append(now[0].leader_epoch)

    first, second, third = epochs[::2]
    assert epochs[1::2] == [first, second, third]
    assert 0 == first < second < third


async def test_one_address_shows_one_broker(opened: Open) -> None:
    both = [await opened(9092, address_mode="single") for _ in range(2)]
    for context in both:
        response = await ask(context, metadata(9, ["a"]))
        found = await ask(context, request(10, 0, key="g"))

        assert [one.node_id for one in response.brokers] == [SINGLE_NODE_ID]
        assert response.controller_id == SINGLE_NODE_ID
        assert {one.leader_id for one in response.topics[0].partitions} == {SINGLE_NODE_ID}
        assert found.node_id == SINGLE_NODE_ID


# -- FindCoordinator, DescribeCluster


@pytest.mark.parametrize("version", range(7))
async def test_all_brokers_name_the_same_coordinator(
    brokers: tuple[BrokerContext, BrokerContext], version: int
) -> None:
    named = []
    for group in (f"group-{n}" for n in range(12)):
        key: dict[str, Any] = {"coordinator_keys": (group,)} if version >= 4 else {"key": group}
        kind = {"key_type": 0} if version >= 1 else {}
        answers = []
        for context in brokers:
            response = await ask(context, request(10, version, **key, **kind))
            one = response.coordinators[0] if version >= 4 else response
            assert one.error_code is NONE
            answers.append((one.node_id, one.host, one.port))
        assert answers[0] == answers[1]
        named.append(answers[0])

    assert set(named) == {(1, "127.0.0.1", 9092), (2, "127.0.0.1", 9093)}


async def test_several_coordinators_in_order_and_none_for_none(broker: BrokerContext) -> None:
    response = await ask(broker, request(10, 4, key_type=1, coordinator_keys=("b", "", "a")))
    nothing = await ask(broker, request(10, 4, key_type=0, coordinator_keys=()))

    assert [(one.key, one.error_code, one.node_id) for one in response.coordinators] == [
        ("b", NONE, 1),
        ("", NONE, 1),
        ("a", NONE, 1),
    ]
    assert nothing.coordinators == ()


@pytest.mark.parametrize("key_type", [2, 3, -1])
async def test_other_kinds_of_coordinator_are_invalid(broker: BrokerContext, key_type: int) -> None:
    old = await ask(broker, request(10, 2, key="g", key_type=key_type))
    new = await ask(broker, request(10, 6, coordinator_keys=("g",), key_type=key_type))

    for one in (old, new.coordinators[0]):
        assert (one.error_code, one.node_id, one.host, one.port) == (ErrorCode.invalid_request, -1, "", -1)
        assert one.error_message


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(brokers: tuple[BrokerContext, BrokerContext], version: int) -> None:
    values: dict[str, Any] = {"include_cluster_authorized_operations": True}
    if version >= 2:
        values["include_fenced_brokers"] = True
    response = await ask(brokers[1], request(60, version, **values))

    assert response.error_code is NONE
    assert [(one.broker_id, one.port) for one in response.brokers] == [(1, 9092), (2, 9093)]
    assert response.cluster_authorized_operations == 8096
    assert response.cluster_id == brokers[0].broker_lease.cluster_id


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.mismatched_endpoint_type), (3, ErrorCode.unsupported_endpoint_type)],
)
async def test_describe_cluster_knows_brokers_only(broker: BrokerContext, endpoint_type: int, code: ErrorCode) -> None:
    response = await ask(
        broker, request(60, 1, include_cluster_authorized_operations=False, endpoint_type=endpoint_type)
    )

    assert response.error_code is code


# -- CreateTopics, DeleteTopics, CreatePartitions


async def test_create_topics_returns_the_whole_topic(broker: BrokerContext) -> None:
    made = (await create(broker, topic("a", 3, 2, retention_ms="5")))["a"]

    assert (made.error_code, made.num_partitions, made.replication_factor) == (NONE, 3, 1)
    assert made.topic_id == broker.catalog.get("default", "a").topic_id  # type: ignore[union-attr]
    assert {one.name: (one.value, one.config_source) for one in made.configs}["retention.ms"] == ("5", 1)


async def test_log_18_topic_made_again_is_another(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    """Scenario 18."""
    first = (await create(brokers[0], topic("a")))["a"]
    assert (await delete(brokers[0], "a")).error_code is NONE
    second = (await create(brokers[1], topic("a")))["a"]
    (gone,) = (await ask(brokers[0], metadata(12, None, ids=[first.topic_id]))).topics

    assert first.topic_id != second.topic_id
    assert gone.error_code is ErrorCode.unknown_topic_id


async def test_log_19_two_brokers_race_to_create(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    """Scenario 19."""
    results = await asyncio.gather(*(create(context, topic("c", 2)) for context in brokers))
    reported = [(await ask(context, metadata(12, ["c"], create=False))).topics[0] for context in brokers]

    assert sorted(one["c"].error_code.name for one in results) == ["none", "topic_already_exists"]
    assert reported[0] == reported[1]
    assert len(reported[0].partitions) == 2


async def test_log_20_validation_of_new_topics(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    """Scenario 20."""
    await create(brokers[0], topic("a.b"))
    refused = await create(
        brokers[1],
        topic("a_b"),
        topic("."),
        topic("dup"),
        topic("dup", 2),
        topic("none", 0),
        topic("bare", 1, 0),
        topic("neither", 0, 0),
        topic("throttled", leader_replication_throttled_replicas="everyone"),
        topic("odd", foo="bar"),
        topic("null", retention_ms=None),
        topic("text", retention_ms="soon"),
        topic("tiered", remote_storage_enable="true"),
        topic("both", 3, assigned=[(0, [1])]),
        topic("hole", assigned=[(0, [1]), (2, [1])]),
        topic("twice", assigned=[(0, [1, 1])]),
        topic("nowhere", assigned=[(0, [1]), (1, [77])]),
        topic("a.b"),
    )

    assert codes(refused) == {
        "a_b": ErrorCode.invalid_topic_exception,
        ".": ErrorCode.invalid_topic_exception,
        "dup": ErrorCode.invalid_request,
        "none": ErrorCode.invalid_partitions,
        "bare": ErrorCode.invalid_replication_factor,
        "neither": ErrorCode.invalid_replication_factor,
        "throttled": ErrorCode.invalid_config,
        "odd": ErrorCode.invalid_config,
        "null": ErrorCode.invalid_config,
        "text": ErrorCode.invalid_config,
        "tiered": ErrorCode.invalid_config,
        "both": ErrorCode.invalid_request,
        "hole": ErrorCode.invalid_replica_assignment,
        "twice": ErrorCode.invalid_replica_assignment,
        "nowhere": ErrorCode.invalid_replica_assignment,
        "a.b": ErrorCode.topic_already_exists,
    }
    assert {one.configs for one in refused.values()} == {()}
    tried = await create(brokers[1], topic("good"), validate_only=True)
    assert tried["good"].error_code is NONE and tried["good"].topic_id is not None
    assert [one.name for one in brokers[1].catalog.topics("default")] == ["a.b"]


async def test_too_many_partitions_refuse_the_request(broker: BrokerContext) -> None:
    """A topic that the request names twice is not counted, nor is a count beside assignments."""
    refused = await create(broker, topic("large", 6_000), topic("larger", 6_000))
    repeated = await create(broker, topic("a", 1), topic("twice", 9_000), topic("twice", 9_000))
    assigned = await create(broker, topic("b", 10_001, assigned=[(0, [1])]))

    assert codes(refused) == {"large": ErrorCode.policy_violation, "larger": ErrorCode.policy_violation}
    assert {one.configs for one in refused.values()} == {()}
    assert codes(repeated) == {"a": NONE, "twice": ErrorCode.invalid_request}
    assert codes(assigned) == {"b": ErrorCode.invalid_request}


async def test_assignment_gives_the_count(broker: BrokerContext) -> None:
    node_id = broker.broker_lease.node_id
    made = await create(broker, topic("a", assigned=[(1, [node_id]), (0, [node_id])]))

    assert (made["a"].error_code, made["a"].num_partitions) == (NONE, 2)
    assert await grow(broker, "a", 3, assignments=[(77,)]) is ErrorCode.invalid_replica_assignment
    assert await grow(broker, "a", 3, assignments=[(node_id,)]) is NONE


@pytest.mark.parametrize("version", range(2, 8))
async def test_every_version_creates(broker: BrokerContext, version: int) -> None:
    wanted = entity(name="a", num_partitions=2, replication_factor=1, assignments=(), configs=())
    response = await ask(broker, request(19, version, topics=(wanted,), timeout=MINUTE, validate_only=False))

    assert [one.error_code for one in response.topics] == [NONE]
    assert broker.catalog.get("default", "a").partition_count == 2  # type: ignore[union-attr]


async def test_log_21_partitions_are_added_at_both_brokers(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    """Scenario 21, without its group."""
    await create(brokers[0], topic("t", 3))
    for count in (3, 2, 20_000):
        assert await grow(brokers[0], "t", count) is ErrorCode.invalid_partitions
    assert await grow(brokers[0], "t", 5, assignments=[(1,)]) is ErrorCode.invalid_replica_assignment
    assert await grow(brokers[0], "t", 5, validate_only=True) is NONE
    assert await grow(brokers[1], "t", 5) is NONE
    assert await grow(brokers[0], "nope", 5) is UNKNOWN_TOPIC

    for context in brokers:
        await context.catalog.refresh()
        (found,) = (await ask(context, metadata(9, ["t"]))).topics
        assert len(found.partitions) == 5


async def test_deletion_by_name_or_by_id(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    made = await create(brokers[0], topic("a"), topic("b"))
    by_id = await delete(brokers[1], topic_id=made["a"].topic_id)
    both = await delete(brokers[1], "b", made["b"].topic_id)
    unknown_id = await delete(brokers[1], topic_id=made["a"].topic_id)
    unknown_name = await delete(brokers[1], "a")

    assert (by_id.error_code, by_id.name) == (NONE, "a")
    assert both.error_code is ErrorCode.invalid_request
    assert (unknown_id.error_code, unknown_id.name) == (ErrorCode.unknown_topic_id, None)
    assert unknown_name.error_code is UNKNOWN_TOPIC


async def test_each_deletion_without_name_and_id_is_answered(broker: BrokerContext) -> None:
    nobody = entity(name=None, topic_id=None)
    response = await ask(broker, request(20, 6, topics=(nobody, nobody), timeout=MINUTE))

    assert [one.error_code for one in response.responses] == [ErrorCode.invalid_request] * 2


@pytest.mark.parametrize("version", range(1, 6))
async def test_older_versions_delete_by_name(broker: BrokerContext, version: int) -> None:
    await create(broker, topic("a"))
    response = await ask(broker, request(20, version, topic_names=("a", "b"), timeout=MINUTE))

    assert [(one.name, one.error_code) for one in response.responses] == [("a", NONE), ("b", UNKNOWN_TOPIC)]


async def test_deletion_can_be_forbidden(opened: Open) -> None:
    context = await opened(9092, delete_topic_enable=False)
    await create(context, topic("a"))
    old = await ask(context, request(20, 1, topic_names=("a",), timeout=MINUTE))

    assert (await delete(context, "a")).error_code is ErrorCode.topic_deletion_disabled
    assert old.responses[0].error_code is ErrorCode.invalid_request


# -- DescribeConfigs


async def describe(
    context: BrokerContext, kind: int, name: str, version: int = 4, keys: Any = None, synonyms: bool = True
) -> Any:
    resource = entity(resource_type=kind, resource_name=name, configuration_keys=keys)
    more = {"include_documentation": True} if version >= 3 else {}
    response = await ask(context, request(32, version, resources=(resource,), include_synonyms=synonyms, **more))
    return response.results[0]


async def test_configs_of_a_topic_with_their_sources(opened: Open) -> None:
    context = await opened(9092, log_retention_bytes=77)
    await create(context, topic("t", retention_ms="1000"))
    found = {one.name: one for one in (await describe(context, 2, "t")).configs}

    own, broker_wide, default = found["retention.ms"], found["retention.bytes"], found["cleanup.policy"]
    assert (own.value, own.config_source, own.config_type) == ("1000", 1, 5)
    assert [(one.name, one.value, one.source) for one in own.synonyms] == [
        ("retention.ms", "1000", 1),
    ]
    assert (broker_wide.value, broker_wide.config_source) == ("77", 4)
    assert (default.value, default.config_source, default.config_type) == ("delete", 5, 7)
    assert own.documentation and not own.read_only


@pytest.mark.parametrize("version", range(1, 5))
@pytest.mark.parametrize("keys", [None, ()])
async def test_no_keys_are_all_keys(broker: BrokerContext, version: int, keys: Any) -> None:
    await create(broker, topic("t"))
    everything = await describe(broker, 2, "t", version, keys)
    one = await describe(broker, 2, "t", version, ("retention.ms",), synonyms=False)

    assert len(everything.configs) > 25
    assert [(config.name, config.synonyms) for config in one.configs] == [("retention.ms", ())]


async def test_configs_of_the_broker_without_its_secrets(broker: BrokerContext) -> None:
    own = {one.name: one for one in (await describe(broker, 4, "1")).configs}
    other = await describe(broker, 4, "2")

    assert own["message.max.bytes"].value == "1048588"
    assert own["num.partitions"].read_only
    replicas = own["default.replication.factor"]
    assert (replicas.value, replicas.config_type, replicas.read_only) == ("1", 3, True)
    assert not own["message.max.bytes"].read_only
    assert not any("redis.url" in name for name in own)
    assert other.error_code is ErrorCode.invalid_request
    assert (await describe(broker, 4, "")).configs == ()


async def test_configs_of_what_is_not_there(broker: BrokerContext) -> None:
    assert (await describe(broker, 2, "nope")).error_code is UNKNOWN_TOPIC
    assert (await describe(broker, 2, "no/pe")).error_code is ErrorCode.invalid_topic_exception
    assert (await describe(broker, 8, "2")).error_code is ErrorCode.invalid_request  # another broker's log level
    assert (await describe(broker, 64, "1")).error_code is ErrorCode.invalid_request


# -- AlterConfigs, IncrementalAlterConfigs


SET, DELETE, APPEND, SUBTRACT = range(4)


async def change(
    context: BrokerContext,
    name: str,
    *changes: tuple[str, int, str | None],
    kind: int = 2,
    validate_only: bool = False,
    times: int = 1,
) -> list[ErrorCode]:
    resource = entity(
        resource_type=kind,
        resource_name=name,
        configs=tuple(entity(name=key, config_operation=operation, value=value) for key, operation, value in changes),
    )
    response = await ask(context, request(44, 1, resources=(resource,) * times, validate_only=validate_only))
    return [one.error_code for one in response.responses]


async def replace(context: BrokerContext, version: int, name: str, **config: str | None) -> ErrorCode:
    resource = entity(
        resource_type=2,
        resource_name=name,
        configs=tuple(entity(name=key.replace("_", "."), value=value) for key, value in config.items()),
    )
    response = await ask(context, request(33, version, resources=(resource,), validate_only=False))
    return cast(ErrorCode, response.responses[0].error_code)


async def sources(context: BrokerContext, name: str) -> dict[str, tuple[str, int]]:
    await context.catalog.refresh()
    return {one.name: (one.value, one.config_source) for one in (await describe(context, 2, name)).configs}


@pytest.mark.parametrize("version", range(3))
async def test_log_24_configs_round_trip(brokers: tuple[BrokerContext, BrokerContext], version: int) -> None:
    """Scenario 24."""
    one, other = brokers
    await create(one, topic("t"))
    assert await change(one, "t", ("retention.ms", SET, "1000"), ("cleanup.policy", APPEND, "compact")) == [NONE]
    found = await sources(other, "t")
    assert (found["retention.ms"], found["cleanup.policy"]) == (("1000", 1), ("delete,compact", 1))
    assert other.catalog.get("default", "t").config.retention_ms == 1000  # type: ignore[union-attr]

    assert await replace(other, version, "t", max_message_bytes="77") is NONE
    found = await sources(one, "t")
    assert (found["retention.ms"], found["cleanup.policy"]) == (("604800000", 5), ("delete", 5))
    assert found["max.message.bytes"] == ("77", 1)

    assert await change(one, "t", ("max.message.bytes", DELETE, None)) == [NONE]
    assert (await sources(other, "t"))["max.message.bytes"] == ("1048588", 5)
    assert await one.store.command("HGETALL", "tidegate:{cluster}:topic:default:t") == {}


async def test_log_25_config_changes_that_are_refused_change_nothing(broker: BrokerContext) -> None:
    """Scenario 25."""
    await create(broker, topic("t", retention_ms="5"))
    invalid_config, invalid_request = ErrorCode.invalid_config, ErrorCode.invalid_request

    assert await change(broker, "t", ("retention.ms", SET, "7"), ("foo", SET, "1")) == [invalid_config]
    assert await change(broker, "t", ("retention.ms", APPEND, "1")) == [invalid_config]
    assert await change(broker, "t", ("cleanup.policy", APPEND, "shred")) == [invalid_config]
    assert await change(broker, "t", ("retention.ms", SET, None)) == [invalid_request]
    assert await change(broker, "t", ("retention.ms", 9, "7")) == [invalid_request]
    assert await change(broker, "t", ("retention.ms", SET, "7"), ("retention.ms", DELETE, None)) == [invalid_request]
    assert await change(broker, "t", ("retention.ms", SET, "7"), times=2) == [invalid_request] * 2
    assert await change(broker, "1", ("num.partitions", SET, "7"), kind=4) == [invalid_request]
    assert await change(broker, "nope", ("retention.ms", SET, "7")) == [UNKNOWN_TOPIC]
    assert await change(broker, "nope", ("foo", SET, "1")) == [invalid_config]
    assert await change(broker, "nope", ("foo", DELETE, None)) == [UNKNOWN_TOPIC]
    assert await change(broker, "..", ("retention.ms", APPEND, "7")) == [invalid_config]
    assert await change(broker, "", ("foo", APPEND, "1"), ("foo.bar", SET, None)) == [invalid_request]
    assert await change(broker, "t", ("foo", DELETE, None)) == [NONE]
    assert await replace(broker, 2, "nope", retention_ms="soon") is invalid_config
    assert await replace(broker, 2, "t", foo="bar") is invalid_config
    assert await change(broker, "t", ("retention.ms", SET, "7"), validate_only=True) == [NONE]
    assert (await sources(broker, "t"))["retention.ms"] == ("5", 1)


async def test_changes_of_two_brokers_at_one_time_all_count(brokers: tuple[BrokerContext, BrokerContext]) -> None:
    await create(brokers[0], topic("t"))
    keys = ["retention.ms", "retention.bytes", "max.message.bytes", "segment.ms", "flush.ms", "file.delete.delay.ms"]
    results = await asyncio.gather(
        *(change(brokers[n % 2], "t", (key, SET, str(100 + n))) for n, key in enumerate(keys))
    )
    found = await sources(brokers[0], "t")

    assert results == [[NONE]] * len(keys)
    assert [found[key] for key in keys] == [(str(100 + n), 1) for n in range(len(keys))]


# -- Redis away


async def test_metadata_redis_unavailable_cached_topics_are_returned_and_others_retriable(
    broker: BrokerContext,
) -> None:
    await create(broker, topic("a"))
    await broker.store.close()
    response = await ask(broker, metadata(12, ["a", "b"]))
    made = await create(broker, topic("c"))

    assert [(one.name, one.error_code) for one in response.topics] == [
        ("a", NONE),
        ("b", ErrorCode.leader_not_available),
    ]
    assert made["c"].error_code is ErrorCode.request_timed_out
    assert (await delete(broker, "a")).error_code is ErrorCode.request_timed_out
