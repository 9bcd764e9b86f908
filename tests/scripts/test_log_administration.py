"""DeleteRecords and what tools of administrators ask of partitions and the cluster, by the specification's scenarios.

Each runs with one broker, and with two that take turns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, brokers_of
from tidegate.apis import cluster_admin, configs, delete_records, log_dirs, partition_admin, topic_partitions
from tidegate.settings import Settings
from tidegate.store.store import Store

assert cluster_admin and configs and delete_records and log_dirs and partition_admin and topic_partitions  # registered

E = ErrorCode
_TIMEOUT = timedelta(seconds=5)


@pytest.fixture(params=[1, 2], ids=["one broker", "two brokers"])
async def brokers(request: pytest.FixtureRequest, store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Brokers without topics; `store` has emptied the server."""
    async with brokers_of(settings, request.param) as opened:
        yield opened


async def _delete(brokers: Brokers, offset: int, topic: str = "t", index: int = 0, version: int = 2) -> Any:
    """(code, low watermark) of DeleteRecords of one partition."""
    partition = {"partition_index": index, "offset": offset}
    topics = [{"name": topic, "partitions": [partition]}]
    answer = await brokers.ask(request(21, version, topics=topics, timeout=_TIMEOUT))
    [found] = answer.topics[0].partitions
    return found.error_code, found.low_watermark


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_log_55_delete_records(brokers: Brokers, version: int) -> None:
    await brokers.create("t")
    await brokers.clients[0].produce("t", *[10] * 10)
    assert await _delete(brokers, 40, version=version) == (NONE, 40)
    assert await _delete(brokers, 10, version=version) == (NONE, 40)
    assert await _delete(brokers, -1, version=version) == (NONE, 100)
    assert await _delete(brokers, 101, version=version) == (E.offset_out_of_range, -1)
    assert await _delete(brokers, -2, version=version) == (E.offset_out_of_range, -1)


async def test_log_55_delete_records_by_cleanup_policy(brokers: Brokers) -> None:
    await brokers.create("compacted", cleanup_policy="compact")
    await brokers.create("both", cleanup_policy="compact,delete")
    await brokers.create("uncleaned", cleanup_policy="")
    assert await _delete(brokers, 0, "compacted") == (E.policy_violation, -1)
    assert await _delete(brokers, 0, "compacted", 1) == (E.unknown_topic_or_partition, -1)
    assert await _delete(brokers, 0, "both") == (NONE, 0)
    assert await _delete(brokers, 0, "uncleaned") == (NONE, 0)


async def test_log_55_delete_records_refusals(brokers: Brokers) -> None:
    await brokers.create("t")
    assert await _delete(brokers, 0, "__consumer_offsets") == (E.invalid_topic_exception, -1)
    assert await _delete(brokers, 0, "nope") == (E.unknown_topic_or_partition, -1)
    assert await _delete(brokers, 0, "t", 1) == (E.unknown_topic_or_partition, -1)


async def test_log_56_offsets_survive_emptying(brokers: Brokers) -> None:
    await brokers.create("t")
    await brokers.clients[0].produce("t", 100)
    assert await _delete(brokers, -1) == (NONE, 100)
    await brokers.clients[-1].produce("t", 1)
    found = await brokers.fetch("t", 100, end=101)
    assert found.offsets == [100]


async def test_log_delete_records_of_a_record_topic(brokers: Brokers) -> None:
    await brokers.create("r", tidegate_format="record")
    await brokers.clients[0].produce("r", 3)
    code, low_watermark = await _delete(brokers, -1, "r")
    assert code is NONE and low_watermark > 0
    assert await _delete(brokers, low_watermark + 1, "r") == (E.offset_out_of_range, -1)


# -- DescribeTopicPartitions


async def _page(brokers: Brokers, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None) -> Any:
    """(name, code, partitions) of a page, and the next cursor."""
    asked = request(
        75, 0, topics=[{"name": name} for name in names], response_partition_limit=limit,
        cursor={"topic_name": cursor[0], "partition_index": cursor[1]} if cursor else None,
    )  # fmt: skip
    answer = await brokers.ask(asked)
    topics = [(one.name, one.error_code, [p.partition_index for p in one.partitions]) for one in answer.topics]
    following = answer.next_cursor
    return topics, following and (following.topic_name, following.partition_index)


async def test_log_23_describe_topic_partitions_pages(brokers: Brokers) -> None:
    await brokers.create("a", 2)
    await brokers.create("b", 3)
    assert await _page(brokers, limit=3) == ([("a", NONE, [0, 1]), ("b", NONE, [0])], ("b", 1))
    assert await _page(brokers, limit=3, cursor=("b", 1)) == ([("b", NONE, [1, 2])], None)
    assert await _page(brokers, limit=2) == ([("a", NONE, [0, 1])], ("b", 0))
    assert await _page(brokers, cursor=("b", 7)) == ([("b", NONE, [])], None)


async def test_log_150_describe_topic_partitions_edges(brokers: Brokers) -> None:
    await brokers.create("a", 2)
    await brokers.create("b", 3)
    for limit in (0, -1):
        assert await _page(brokers, limit=limit) == ([("a", NONE, [0])], ("a", 1))
    refused = [("a", E.invalid_request, []), ("b", E.invalid_request, [])]
    assert await _page(brokers, "a", "b", cursor=("a", -1)) == (refused, None)
    assert await _page(brokers, "a", "b", cursor=("c", 0)) == (refused, None)
    assert await _page(brokers, "b", "a", "b") == ([("a", NONE, [0, 1]), ("b", NONE, [0, 1, 2])], None)
    missing = [("bad/name", E.invalid_topic_exception, []), ("nope", E.unknown_topic_or_partition, [])]
    assert await _page(brokers, "nope", "bad/name") == (missing, None)


# -- elections and reassignments


async def test_log_151_elections_and_reassignments(brokers: Brokers) -> None:
    await brokers.create("t")
    assert await _elect(brokers, ("t", 0), ("t", 9), ("nope", 0)) == [
        E.election_not_needed, E.unknown_topic_or_partition, E.unknown_topic_or_partition,
    ]  # fmt: skip
    answer = await brokers.ask(request(43, 2, election_type=0, topic_partitions=None, timeout=_TIMEOUT))
    assert (answer.error_code, answer.replica_election_results) == (NONE, ())
    answer = await brokers.ask(request(43, 2, election_type=2, topic_partitions=[], timeout=_TIMEOUT))
    assert answer.error_code is E.invalid_request

    topics, _ = await _page(brokers, "t")
    assert topics == [("t", NONE, [0])]
    leader = brokers.all[0].context.broker_lease.node_id
    assert await _reassign(brokers, [leader]) is NONE
    for replicas in ([leader + 7], [], [leader, leader], [leader, leader + 7]):
        assert await _reassign(brokers, replicas) is E.invalid_replica_assignment
    assert await _reassign(brokers, None) is E.no_reassignment_in_progress
    assert await _reassign(brokers, [leader], index=9) is E.unknown_topic_or_partition
    answer = await brokers.ask(request(46, 0, timeout=_TIMEOUT, topics=None))
    assert (answer.error_code, answer.topics) == (NONE, ())


async def _elect(brokers: Brokers, *partitions: tuple[str, int]) -> list[ErrorCode]:
    asked = [{"topic": topic, "partitions": (index,)} for topic, index in partitions]
    answer = await brokers.ask(request(43, 1, election_type=0, topic_partitions=asked, timeout=_TIMEOUT))
    return [one.partition_result[0].error_code for one in answer.replica_election_results]


async def _reassign(brokers: Brokers, replicas: list[int] | None, index: int = 0) -> ErrorCode:
    partition = {
        "partition_index": index,
        "replicas": None if replicas is None else tuple(replicas),
    }  # fmt: skip
    topics = [{"name": "t", "partitions": [partition]}]
    answer = await brokers.clients[0].ask(  # each broker of these tests takes itself for the only one
        request(45, 1, timeout=_TIMEOUT, allow_replication_factor_change=True, topics=topics)
    )  # fmt: skip
    code: ErrorCode = answer.responses[0].partitions[0].error_code
    return code


# -- log directories


async def test_log_155_describe_log_dirs(brokers: Brokers) -> None:
    await brokers.create("t")
    await brokers.create("u", 2)
    await brokers.clients[0].produce("t", 5)
    brokers.all[0].context.logs.partition(_topic(brokers, "t"), 0).progress.write()  # type: ignore[union-attr]
    found = await _log_dirs(brokers, [("t", (0, 9)), ("nope", (0,))])
    assert set(found) == {("t", 0)} and found["t", 0] > 61
    assert await _log_dirs(brokers, []) == {}
    assert set(await _log_dirs(brokers, None)) == {("t", 0), ("u", 0), ("u", 1)}


def _topic(brokers: Brokers, name: str) -> Any:
    return brokers.all[0].context.catalog.get("default", name)


async def _log_dirs(brokers: Brokers, topics: list[tuple[str, tuple[int, ...]]] | None) -> dict[tuple[str, int], int]:
    """The sizes that all brokers list."""
    asked = topics and [{"topic": t, "partitions": p} for t, p in topics]
    sizes: dict[tuple[str, int], int] = {}
    for client in brokers.clients:
        answer = await client.ask(request(35, 5, topics=asked))
        [one] = answer.results
        assert (answer.error_code, one.error_code, one.log_dir) == (NONE, NONE, log_dirs.LOG_DIR)
        sizes |= {(topic.name, p.partition_index): p.partition_size for topic in one.topics for p in topic.partitions}
    return sizes


async def test_log_alter_replica_log_dirs(brokers: Brokers) -> None:
    await brokers.create("t")
    codes = {}
    for path in (log_dirs.LOG_DIR, "/elsewhere"):
        topics = [{"name": "t", "partitions": (0, 1)}]
        directory = {"path": path, "topics": topics}
        answer = await brokers.ask(request(34, 2, dirs=[directory]))
        codes[path] = [one.error_code for one in answer.results[0].partitions]
    assert codes == {
        log_dirs.LOG_DIR: [NONE, E.unknown_topic_or_partition],
        "/elsewhere": [E.log_dir_not_found, E.log_dir_not_found],
    }


# -- the cluster


async def test_describe_quorum_names_the_live_brokers(brokers: Brokers) -> None:
    partitions = [{"partition_index": index} for index in (0, 1)]
    topics = [{"topic_name": "__cluster_metadata", "partitions": partitions}]
    answer = await brokers.ask(request(55, 2, topics=topics))
    metadata, other = answer.topics[0].partitions
    assert metadata.error_code is NONE
    assert metadata.leader_id in {voter.replica_id for voter in metadata.current_voters}
    assert {voter.replica_id for voter in metadata.current_voters} == {node.node_id for node in answer.nodes}
    assert other.error_code is E.unknown_topic_or_partition


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_update_features_keeps_what_is_in_use(brokers: Brokers, version: int) -> None:
    async def update(feature: str, level: int) -> ErrorCode:
        values: dict[str, Any] = {"upgrade_type": 1} if version else {"allow_downgrade": False}
        update = {"feature": feature, "max_version_level": level, **values}
        extra = {"validate_only": False} if version else {}
        answer = await brokers.ask(request(57, version, timeout=_TIMEOUT, feature_updates=[update], **extra))
        code: ErrorCode = answer.error_code
        return code

    assert await update("transaction.version", 2) is NONE
    assert await update("transaction.version", 1) is E.invalid_update_version
    assert await update("group.version", 9) is E.invalid_update_version
    assert await update("nope", 1) is E.invalid_update_version


async def test_list_config_resources(brokers: Brokers) -> None:
    await brokers.create("t")

    async def listed(version: int, **values: Any) -> Any:
        answer = await brokers.ask(request(74, version, **values))
        return answer.error_code, [one.resource_name for one in answer.config_resources]

    assert await listed(1, resource_types=(2,)) == (NONE, ["t"])
    code, names = await listed(1, resource_types=())
    assert code is NONE and "t" in names and len(names) > 1
    assert await listed(0) == (NONE, [])
    assert await listed(1, resource_types=(3,)) == (E.unsupported_version, [])


# -- configs


async def _change(brokers: Brokers, *changes: tuple[str, int, str | None], kind: int = 2, name: str = "t") -> ErrorCode:
    """IncrementalAlterConfigs of one resource: (config, operation, value)."""
    configs = [{"name": config, "config_operation": operation, "value": value} for config, operation, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await brokers.ask(request(44, 1, resources=[resource], validate_only=False))
    code: ErrorCode = answer.responses[0].error_code
    return code


async def test_log_149_lists(brokers: Brokers) -> None:
    await brokers.create("t")
    assert await _change(brokers, ("cleanup.policy", 2, "delete")) is NONE
    assert await _change(brokers, ("cleanup.policy", 3, "compact")) is NONE
    assert await _change(brokers, ("cleanup.policy", 3, "delete")) is NONE
    resource = {
        "resource_type": 2, "resource_name": "t",
        "configuration_keys": ("cleanup.policy",),
    }  # fmt: skip
    for broker in brokers.all:
        await broker.context.catalog.refresh()
    answer = await brokers.ask(
        request(32, 4, resources=[resource], include_synonyms=False, include_documentation=False)
    )
    assert [one.value for one in answer.results[0].configs] == [""]


async def test_log_148_configs_of_every_kind(brokers: Brokers) -> None:
    """Of a broker the defaults of topic configs can change; Kafka would keep an unknown key too."""
    broker, client_metrics, unknown = 4, 16, 99
    for kind, name in ((broker, "2"), (broker, "abc"), (broker, "1"), (client_metrics, "s"),
                       (2, ""), (unknown, "t")):  # fmt: skip
        code = await _change(brokers, ("node.id", 0, "1"), kind=kind, name=name)
        assert code is E.invalid_request, (kind, name)


async def test_log_147_bounds_of_create_topics(brokers: Brokers) -> None:
    async def create(*topics: dict[str, Any]) -> list[ErrorCode]:
        asked = [
            {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [],
             **topic}
            for topic in topics
        ]  # fmt: skip
        answer = await brokers.ask(request(19, 7, topics=asked, validate_only=False, timeout=timedelta(seconds=20)))
        codes = {one.name: one.error_code for one in answer.topics}
        return [codes[topic["name"]] for topic in topics]

    def configs(**values: str) -> list[dict[str, Any]]:
        return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]

    good = {"name": "good"}
    assert await create({"name": "big", "num_partitions": 10_001}, good) == [E.policy_violation] * 2
    assigned = [{"partition_index": 0, "broker_ids": (1,)}]
    assert await create({"name": "a", "num_partitions": -1, "assignments": assigned}) == [E.invalid_request]
    assert await create({"name": "none", "configs": configs(cleanup_policy="")}) == [NONE]
    lags = configs(min_compaction_lag_ms="2000", max_compaction_lag_ms="1000")
    assert await create({"name": "lags", "configs": lags}) == [E.invalid_config]
    assert await create({"name": "__cluster_metadata"}) == [E.invalid_request]
    assert await create({"name": "n" * 249}) == [NONE]
