"""Requests of many topics, with one partition each or none: a topic is an element of a slice as a partition is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest

from tests.support.rounds import Rounds, counted_rounds
from tests.unit.apis.test_listings import MANY, MOST, noted, walked
from tidegate.apis import (
    cluster_admin,
    delete_records,
    log_dirs,
    partition_admin,
    positions,
    positions_v0,
    registry,
    transaction_admin,
    transactional_offsets,
    transactions,
)
from tidegate.apis.log_dirs import LOG_DIR
from tidegate.cluster.features import FINALIZED
from tidegate.protocol import old_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.versions import Fields
from tidegate.store.redis_clock import RedisClock

ABSENT: Final = 5
"""The index of a partition that no topic has."""


@dataclass(frozen=True)
class Asked:
    """A partition of a request, of any API."""

    partition_index: int = ABSENT
    partition: int = ABSENT
    timestamp: int = -1
    offset: int = 7
    current_leader_epoch: int = -1
    leader_epoch: int = 0
    max_num_offsets: int = 1
    replicas: tuple[int, ...] | None = None
    committed_offset: int = 0
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None


def called(rounds: Rounds, version: int) -> Any:
    """A call of a broker that has each topic, of one partition which another broker leads, in its cache."""

    def get(org: str, name: str) -> Any:
        rounds.note()
        return SimpleNamespace(org=org, name=name, partition_count=1, topic_id=UUID(int=7), topic_hex=UUID(int=7).hex)

    async def find(org: str, name: str) -> Any:
        return get(org, name)

    async def refresh() -> None:
        pass

    info = SimpleNamespace(node_id=1, endpoint=lambda _: ("h", 9092))
    lease = SimpleNamespace(ends_ms=0, shown=lambda _: [info], nameable=lambda _: [info], shown_node_id=lambda _: 2)
    catalog = SimpleNamespace(get=get, find=find, refresh=refresh, by_id=lambda *_: get("default", "t"))
    client = SimpleNamespace(listener="", closed=False)
    store = SimpleNamespace(clock=RedisClock())
    logs = SimpleNamespace(durability=SimpleNamespace(confirmed=nullcontext))
    context = SimpleNamespace(catalog=catalog, broker_lease=lease, transactions=None, logs=logs)
    return SimpleNamespace(
        context=context, client=client, store=store, org="default", version=version, refuse_if_gone=lambda: None
    )


def of_topics(rounds: Rounds, of_each: int, partition: Any = Asked()) -> Any:
    """Topics by every name that an API has for one, with so many partitions each."""
    names = (f"t-{number}" for number in range(MANY))
    topics = [Fields(name=one, topic=one, topic_name=one, topic_id=None) for one in names]
    parts = (walked(rounds, *[partition] * of_each) for _ in topics)
    return walked(
        rounds, *(Fields(one, partitions=its, partition_indexes=its) for one, its in zip(topics, parts, strict=True))
    )


def of_indexes(rounds: Rounds, of_each: int) -> Any:
    """The same with partitions that are their indexes."""
    return of_topics(rounds, of_each, ABSENT)


def of_transactions(rounds: Rounds, of_each: int) -> Any:
    """One transaction of many topics, or many of none."""
    some = {"transactional_id": "", "producer_id": 1, "producer_epoch": 0, "verify_only": False}
    if of_each:
        return (Fields(**some, topics=of_indexes(rounds, of_each)),)
    return walked(rounds, *[Fields(**some, topics=())] * MANY)


def of_features(rounds: Rounds, _: int) -> Any:
    name, level, _ = FINALIZED[0]
    return walked(rounds, *[Fields(feature=name, max_version_level=level, upgrade_type=1)] * MANY)


def of_dirs(rounds: Rounds, of_each: int) -> Any:
    return (Fields(path=LOG_DIR, topics=of_indexes(rounds, of_each)),)


@dataclass(frozen=True)
class Row:
    """A version of an API, the field of its elements, and what its module calls for each element or topic."""

    key: ApiKey
    version: int
    field: str
    elements: Callable[[Rounds, int], Any]
    module: Any
    work: str


ROWS: Final = [
    Row(ApiKey.LIST_OFFSETS, 11, "topics", of_topics, positions, "ListOffsetsTopicResponse"),
    Row(ApiKey.LIST_OFFSETS, 0, "topics", of_topics, positions_v0, "_offsets"),
    Row(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, "topics", of_topics, positions, "OffsetForLeaderTopicResult"),
    Row(ApiKey.ELECT_LEADERS, 2, "topic_partitions", of_indexes, partition_admin, "ReplicaElectionResult"),
    Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, "topics", of_topics, partition_admin, "ReassignableTopicResponse"),
    Row(ApiKey.ADD_PARTITIONS_TO_TXN, 5, "transactions", of_transactions, transactions, "Fields"),
    Row(ApiKey.TXN_OFFSET_COMMIT, 5, "topics", of_topics, transactional_offsets, "Fields"),
    Row(ApiKey.DESCRIBE_LOG_DIRS, 5, "topics", partial(of_topics, partition=0), log_dirs, "_leads"),
    Row(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, "dirs", of_dirs, log_dirs, "AlterReplicaLogDirTopicResult"),
    Row(ApiKey.UPDATE_FEATURES, 1, "feature_updates", of_features, cluster_admin, "_check_feature"),
    Row(ApiKey.DELETE_RECORDS, 2, "topics", of_topics, delete_records, "DeleteRecordsTopicResult"),
    Row(ApiKey.DESCRIBE_PRODUCERS, 0, "topics", of_indexes, transaction_admin, "Fields"),
    Row(ApiKey.DESCRIBE_QUORUM, 2, "topics", of_topics, cluster_admin, "TopicData"),
]


@pytest.mark.parametrize("of_each", [0, 1])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.key.name}-{row.version}")
async def test_request_of_many_topics_is_handled_in_slices(
    monkeypatch: pytest.MonkeyPatch, row: Row, of_each: int
) -> None:
    with counted_rounds() as read, counted_rounds() as found, counted_rounds() as made:
        noted(monkeypatch, made, row.module, row.work)
        request = {"isolation_level": 0, "election_type": 0, "allow_replication_factor_change": True, "group_id": ""}
        request[row.field] = row.elements(read, of_each)
        await registry.load_all()[row.key].handler(called(found, row.version), Fields(**request))

    assert read.total >= MANY
    assert max(read.most, found.most, made.most) <= MOST


async def test_list_offsets_v0_is_encoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    write = old_responses.list_offsets

    def noting(topics: Any) -> bytes:
        threads.append(threading.current_thread())
        return write(topics)

    monkeypatch.setattr(old_responses, "list_offsets", noting)
    with counted_rounds() as rounds:
        request = Fields(topics=of_topics(rounds, 1))
        await registry.load_all()[ApiKey.LIST_OFFSETS].handler(called(rounds, 0), request)

    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
