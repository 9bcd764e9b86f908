"""Changes by clients and operators are acknowledged when they are as durable as `durability` says, as commits are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.transactions import Brokers, brokers_of
from tests.support.whole_broker import WholeBroker
from tidegate.apis import registry
from tidegate.cluster import audit
from tidegate.cluster.audit import Actor
from tidegate.errors import ChangeNotConfirmed
from tidegate.groups.reset_plan import Choice
from tidegate.http import actions
from tidegate.http.offset_actions import Reset, reset
from tidegate.http.problems import as_problem
from tidegate.settings import Settings
from tidegate.store.node import Node
from tidegate.store.store import Store
from tidegate.transactions.model import State

E = ErrorCode
NONE, NOT_AVAILABLE, TIMED_OUT, STORAGE = (
    E.none, E.coordinator_not_available, E.request_timed_out, E.kafka_storage_error,
)  # fmt: skip
TIMEOUT = timedelta(seconds=30)
OPERATOR = Actor("ann", "operator", "10.0.0.9")

registry.load_all()


class Replicas:
    """Whether the replicas of a broker's Redis have what it writes; `connection_ends`: before it is proved."""

    def __init__(self, broker: WholeBroker) -> None:
        self.have_all = True
        self.connection_ends = False
        self.asked = 0
        self.broker = broker
        self._tasks: set[asyncio.Future[None]] = set()
        broker.context.logs.durability.prove = self.prove  # type: ignore[method-assign]
        broker.context.offsets._prove = broker.context.shares.records.prove = self.prove

    def prove(self, node: Node, on_proved: Callable[[bool], None]) -> None:
        self.asked += 1
        self._tasks.add(asyncio.ensure_future(self._answer(node, on_proved)))

    async def _answer(self, node: Node, on_proved: Callable[[bool], None]) -> None:
        if self.connection_ends:
            node.control.reconnect("for the test")
            await node.control.wait_up(30)
        on_proved(self.have_all)


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """One broker with the topic `t` of two partitions."""
    async with brokers_of(settings.model_copy(update={"durability": "replicated:1"}), 1) as opened:
        replicas = Replicas(opened.all[0])
        opened.all[0].replicas = replicas  # type: ignore[attr-defined]
        await opened.create("t", 2)
        yield opened


@pytest.fixture
def replicas(brokers: Brokers) -> Replicas:
    found: Replicas = brokers.all[0].replicas  # type: ignore[attr-defined]
    return found


Ask = Callable[[Brokers], Awaitable[ErrorCode]]


async def create_topics(brokers: Brokers) -> ErrorCode:
    topic = {
        "name": "new", "num_partitions": 1, "replication_factor": -1,
        "assignments": (), "configs": (),
    }  # fmt: skip
    answer = await brokers.ask(request(19, 4, topics=[topic], timeout=TIMEOUT, validate_only=False))
    return code_of(answer.topics[0])


async def delete_topics(brokers: Brokers) -> ErrorCode:
    return code_of((await brokers.ask(request(20, 4, topic_names=("t",), timeout=TIMEOUT))).responses[0])


async def create_partitions(brokers: Brokers) -> ErrorCode:
    topic = {"name": "t", "count": 3, "assignments": None}
    return code_of((await brokers.ask(request(37, 1, topics=[topic], timeout=TIMEOUT, validate_only=False))).results[0])


async def delete_records(brokers: Brokers) -> ErrorCode:
    partition = {"partition_index": 0, "offset": 2}
    topic = {"name": "t", "partitions": [partition]}
    return code_of((await brokers.ask(request(21, 1, topics=[topic], timeout=TIMEOUT))).topics[0].partitions[0])


async def alter_configs(brokers: Brokers) -> ErrorCode:
    config = {"name": "retention.ms", "config_operation": 0, "value": "86400000"}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [config]}
    return code_of((await brokers.ask(request(44, 0, resources=[resource], validate_only=False))).responses[0])


async def offset_delete(brokers: Brokers) -> ErrorCode:
    partition = {"partition_index": 0}
    topic = {"name": "t", "partitions": [partition]}
    return code_of(await brokers.ask(request(47, 0, group_id="orders", topics=[topic])))


async def delete_groups(brokers: Brokers) -> ErrorCode:
    return code_of((await brokers.ask(request(42, 1, groups_names=("orders",)))).results[0])


async def alter_share_offsets(brokers: Brokers) -> ErrorCode:
    partition = {"partition_index": 0, "start_offset": 0}
    topic = {"topic_name": "t", "partitions": [partition]}
    return code_of(await brokers.ask(request(91, 0, group_id="jobs", topics=[topic])))


async def delete_share_offsets(brokers: Brokers) -> ErrorCode:
    topic = {"topic_name": "t"}
    return code_of(await brokers.ask(request(92, 0, group_id="jobs", topics=[topic])))


def code_of(result: Any) -> ErrorCode:
    code: ErrorCode = result.error_code
    return code


@pytest.mark.parametrize(
    ("change", "unproved"),
    [
        (create_topics, TIMED_OUT), (create_partitions, TIMED_OUT), (delete_topics, TIMED_OUT),
        (delete_records, STORAGE), (alter_configs, NOT_AVAILABLE),
        (offset_delete, NOT_AVAILABLE), (delete_groups, NOT_AVAILABLE),
        (alter_share_offsets, NOT_AVAILABLE), (delete_share_offsets, NOT_AVAILABLE),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)  # fmt: skip
async def test_change_that_is_not_proved_is_not_acknowledged(
    brokers: Brokers, replicas: Replicas, change: Ask, unproved: ErrorCode
) -> None:
    await brokers.clients[0].produce("t", 4)
    assert await brokers.clients[0].commit("t", 5) is NONE
    if change is delete_share_offsets:
        assert await alter_share_offsets(brokers) is NONE

    replicas.have_all = False
    assert await change(brokers) is unproved


async def test_change_with_a_connection_lost_before_the_proof_is_not_acknowledged(
    brokers: Brokers, replicas: Replicas
) -> None:
    """The proof may be another server's: after a fail-over the same address is another primary."""
    replicas.connection_ends = True

    assert await create_topics(brokers) is TIMED_OUT


async def test_change_that_is_proved_is_acknowledged(brokers: Brokers) -> None:
    assert await create_topics(brokers) is NONE
    assert await alter_share_offsets(brokers) is NONE


async def test_reset_by_an_operator_is_acknowledged_once_it_is_proved(brokers: Brokers, replicas: Replicas) -> None:
    context = brokers.all[0].context
    assert await brokers.clients[0].commit("t", 5) is NONE
    to_3 = Reset("orders", Choice(offsets={("t", 0): 3}))
    assert (await reset(context, OPERATOR, "default", to_3))["complete"]

    replicas.have_all = False
    with pytest.raises(ChangeNotConfirmed) as failure:
        await reset(context, OPERATOR, "default", Reset("orders", Choice(offsets={("t", 0): 2})))
    problem = as_problem(failure.value)
    assert problem.status == 503 and problem.detail.startswith("the change is stored")

    (last, first) = await audit.entries(context.store, 2)
    assert (last["outcome"], first["outcome"]) == (audit.FAILED, audit.DONE)


async def test_action_by_an_operator_that_is_not_proved_has_failed(brokers: Brokers, replicas: Replicas) -> None:
    replicas.have_all = False

    with pytest.raises(ChangeNotConfirmed):
        await actions.create_topic(brokers.all[0].context, OPERATOR, "default", "new", 1, {})


# -- transactions


async def test_init_producer_id_that_is_not_proved_is_not_acknowledged(brokers: Brokers, replicas: Replicas) -> None:
    """A fail-over that loses the new epoch would permit the fenced producer again."""
    replicas.have_all = False

    assert (await brokers.producer().try_init())[0] is NOT_AVAILABLE
    assert (await brokers.producer(None).try_init())[0] is NONE, "a new id: another server skips those that are lost"


async def test_staged_offsets_that_are_not_proved_are_not_acknowledged(brokers: Brokers, replicas: Replicas) -> None:
    producer = await brokers.producer().init()
    replicas.have_all = False

    assert await producer.commit_offset("orders", 7) is NOT_AVAILABLE


async def test_end_of_a_transaction_with_a_connection_lost_before_the_proof_is_not_acknowledged(
    brokers: Brokers, replicas: Replicas
) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")
    replicas.connection_ends = True

    assert (await producer.try_end(True))[0] is NOT_AVAILABLE


async def test_end_of_a_transaction_repeated_is_acknowledged_once_it_is_proved(
    brokers: Brokers, replicas: Replicas
) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")
    replicas.have_all = False
    assert (await producer.try_end(True))[0] is NOT_AVAILABLE
    replicas.have_all = True
    coordinator = brokers.all[0].context.transactions
    await coordinator.completion.complete(coordinator.records.keys("default", "T"))  # as another broker does

    replicas.have_all = False
    assert (await producer.try_end(True))[0] is NOT_AVAILABLE
    replicas.have_all = True
    await producer.end(True)


@pytest.fixture
def sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a transaction are on several servers, as in Redis Cluster, which one proof does not cover."""
    monkeypatch.setattr(Store, "is_sharded", True)


async def test_partition_or_group_that_is_not_proved_is_not_acknowledged(brokers: Brokers, replicas: Replicas) -> None:
    """After a fail-over that loses it the transaction could not be ended; on a cluster its batch may survive alone."""
    producer = await brokers.producer().init()
    replicas.have_all = False

    assert await producer.add(("t", 0)) == [NOT_AVAILABLE]
    assert await producer.add_offsets("orders") is NOT_AVAILABLE

    replicas.have_all = True
    assert await producer.add(("t", 0)) == [NONE]
    assert await producer.add_offsets("orders") is NONE


async def test_batch_that_adds_its_partition_takes_no_proof_more(brokers: Brokers, replicas: Replicas) -> None:
    """The proof of the batch covers what was written before it."""
    producer = await brokers.producer().init()

    async def proofs() -> int:
        replicas.asked = 0
        await producer.write("t")
        return replicas.asked

    await producer.write("t")  # loads the log
    await producer.end(True)
    await brokers.until_marked("t", 1)
    first, second = await proofs(), await proofs()
    assert first == second


@pytest.mark.usefixtures("sharded")
async def test_transaction_in_redis_cluster_is_complete_once_its_offsets_are_proved(
    brokers: Brokers, replicas: Replicas
) -> None:
    """Nothing applies staged offsets again after a complete transaction."""
    producer = await brokers.producer().init()
    assert await producer.commit_offset("orders", 7) is NONE
    coordinator = brokers.all[0].context.transactions
    keys = coordinator.records.keys("default", "T")
    await producer.end(True)
    ended = await coordinator.records.read(keys)
    assert ended is not None and ended.state is State.COMPLETE_COMMIT

    assert await producer.commit_offset("orders", 8) is NONE
    replicas.have_all = False
    assert (await producer.try_end(True))[0] is NOT_AVAILABLE
    with pytest.raises(ChangeNotConfirmed):
        await coordinator.completion.complete(keys)
    decided = await coordinator.records.read(keys)
    assert decided is not None and decided.state is State.PREPARE_COMMIT

    replicas.have_all = True
    await coordinator.completion.complete(keys)
    assert (await producer.try_end(True))[0] is NONE
    assert await brokers.committed("orders", stable=True) == (NONE, 8)


@pytest.mark.usefixtures("sharded")
async def test_end_of_a_transaction_in_redis_cluster_proves_its_decision_once(
    brokers: Brokers, replicas: Replicas
) -> None:
    """With `fsynced` each proof takes up to a second, and the producer's next transaction waits."""
    producer = await brokers.producer().init()
    assert await producer.commit_offset("orders", 7) is NONE
    records = brokers.all[0].context.transactions.records
    replicas.asked = 0

    await producer.end(True)

    async with asyncio.timeout(60):
        while (ended := await records.read(records.keys("default", "T"))) and ended.state.is_prepared:
            await asyncio.sleep(0.01)
    assert replicas.asked == 2, "the decision, and the offsets"
