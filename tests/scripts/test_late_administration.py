"""Requests of administrators that a broker executes after their client has continued at another one.

The first broker is held within the request; meanwhile the second one does what is newer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, Producer, brokers_of
from tidegate.apis import configs, delete_records, discovery, group_admin, topics, transaction_admin
from tidegate.apis.slices import PARTITIONS
from tidegate.groups import directory, offsets
from tidegate.log import retention
from tidegate.log.record_format.record_log import RecordLog
from tidegate.settings import Settings
from tidegate.store.store import Store

assert configs and delete_records and discovery and group_admin and topics  # registered

E = ErrorCode
MINUTE = timedelta(minutes=1)
TOPIC = 2
SET = 0
OLD = 3
"""A version of the protocol before KIP-890: the transactions of a producer have one epoch."""
AT_ONCE = 16
"""Parts of a request that a broker executes together."""
DELETED_AT_ONCE = 20
"""Groups."""
NAMES = [f"t{number}" for number in range(AT_ONCE + 1)]
LAST = NAMES[-1]
"""Its turn is behind the others'."""


class Held:
    """Two brokers. What is asked of the first one waits where `at` says; the second one does the rest."""

    def __init__(self, both: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first, self.second = Brokers(both.all[:1]), Brokers(both.all[1:])
        self.catalog = both.all[0].context.catalog
        self._monkeypatch = monkeypatch
        self._released, self._reached = asyncio.Event(), asyncio.Event()

    def at(self, owner: Any, name: str) -> None:
        """Hold the calls of a function."""
        original = getattr(owner, name)

        async def held(*args: Any, **values: Any) -> Any:
            self._reached.set()
            await self._released.wait()
            return await original(*args, **values)

        self._monkeypatch.setattr(owner, name, held)

    async def ask(self, asked: Any) -> asyncio.Future[Any]:
        """What the first broker is asked, once it is held."""
        answer = asyncio.ensure_future(self.first.ask(asked))
        await self._reached.wait()
        return answer

    def leave(self) -> None:
        """The client closes its connection to the first broker."""
        self.first.clients[0].client.closed = True

    async def release(self, asked: asyncio.Future[Any]) -> Any:
        """The first broker's answer."""
        self._released.set()
        return await asked

    async def create_again(self, name: str) -> None:
        """Delete a topic and create it again, with a record."""
        catalog = self.second.all[0].context.catalog
        await catalog.delete("default", name)
        await catalog.create("default", name)
        await self.second.clients[0].produce(name, 1)

    async def topic(self, name: str) -> Any:
        """A topic as the second broker finds it; None without."""
        catalog = self.second.all[0].context.catalog
        await catalog.refresh()
        return await catalog.find("default", name)

    async def log_start(self, name: str, index: int = 0) -> int:
        """The log start of a partition."""
        log = self.second.all[0].context.logs.partition(await self.topic(name), index)
        return (await log.end_offset()).log_start_offset


@pytest.fixture
async def held(store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    """Two brokers without topics."""
    async with brokers_of(settings, 2) as opened:
        yield Held(opened, monkeypatch)


Overtaken = Callable[[asyncio.Future[Any]], Awaitable[Any]]


@pytest.fixture(params=["gone", "unnoticed"])
def overtaken(request: pytest.FixtureRequest, held: Held) -> Overtaken:
    """The first broker's answer to a client that has continued elsewhere: it closed, or its network was cut."""

    async def answer(asked: asyncio.Future[Any]) -> Any:
        if request.param == "gone":
            held.leave()
        return await held.release(asked)

    return answer


async def create_all(held: Held, names: list[str]) -> None:
    """Topics of one partition that both brokers know."""
    for name in names:
        await held.first.create(name)
    await held.topic(names[0])


# -- topics


def delete(names: list[str], version: int = 3) -> Any:
    return request(20, version, topic_names=tuple(names), timeout=MINUTE)


def delete_by_id(topics: list[Any]) -> Any:
    return request(20, 6, topics=[{"name": None, "topic_id": one.topic_id} for one in topics], timeout=MINUTE)


async def test_late_delete_topics_does_not_delete_topic_that_was_made_again(held: Held, overtaken: Overtaken) -> None:
    await create_all(held, NAMES)
    held.at(held.catalog, "delete")
    late = await held.ask(delete(NAMES))
    await held.create_again(LAST)

    answer = await overtaken(late)
    assert answer.responses[-1].error_code in (E.unknown_topic_or_partition, E.request_timed_out)
    assert await held.topic(LAST) is not None
    assert (await held.second.fetch(LAST)).offsets == [0]
    assert await held.topic(NAMES[0]) is None


async def test_delete_topics_answers_topic_that_was_made_again_as_deleted(held: Held) -> None:
    await create_all(held, ["a", "b"])
    found = [await held.topic("a"), await held.topic("b")]
    held.at(held.catalog, "delete")
    named = await held.ask(delete(["a"]))
    by_id = await held.ask(delete_by_id(found[1:]))
    await held.create_again("a")
    await held.create_again("b")

    assert [one.error_code for one in (await held.release(named)).responses] == [E.unknown_topic_or_partition]
    assert [one.error_code for one in (await by_id).responses] == [E.unknown_topic_id]
    assert await held.log_start("a") == await held.log_start("b") == 0


async def test_delete_topics_of_client_that_left_ends(held: Held) -> None:
    await create_all(held, NAMES)
    held.at(held.catalog, "delete")
    late = await held.ask(delete(NAMES))
    held.leave()

    answer = await held.release(late)
    assert [one.error_code for one in answer.responses] == [NONE] * AT_ONCE + [E.request_timed_out]
    assert await held.topic(LAST) is not None


async def test_late_create_partitions_does_not_grow_topic_that_was_made_again(held: Held, overtaken: Overtaken) -> None:
    await create_all(held, NAMES)
    held.at(held.catalog, "add_partitions")
    asked = [{"name": name, "count": 3, "assignments": None} for name in NAMES]
    late = await held.ask(request(37, 3, topics=asked, timeout=MINUTE, validate_only=False))
    await held.create_again(NAMES[0])
    await held.create_again(LAST)

    answer = await overtaken(late)
    codes = [one.error_code for one in answer.results]
    assert codes[:2] == [E.unknown_topic_or_partition, NONE]
    assert codes[-1] in (E.unknown_topic_or_partition, E.request_timed_out)
    assert [(await held.topic(name)).partition_count for name in (*NAMES[:2], LAST)] == [1, 3, 1]


async def test_create_topics_of_client_that_left_ends(held: Held) -> None:
    """It may have deleted the topics again."""
    held.at(held.catalog, "create")
    asked = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        for name in NAMES
    ]  # fmt: skip
    late = await held.ask(request(19, 7, topics=asked, timeout=MINUTE, validate_only=False))
    held.leave()

    answer = await held.release(late)
    assert [one.error_code for one in answer.topics] == [NONE] * AT_ONCE + [E.request_timed_out]
    assert await held.topic(LAST) is None


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_late_metadata_does_not_create_topic(held: Held, is_noticed: bool) -> None:
    """It may have been created and deleted elsewhere."""
    held.at(held.catalog, "check_limits")
    asked = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    late = await held.ask(request(3, 12, topics=[{"topic_id": None, "name": "t"}], **asked))
    if is_noticed:
        held.leave()
    else:
        stalls: Any = SimpleNamespace(is_late=lambda received_s: True)
        held.first.all[0].context.stalls = stalls

    [answered] = (await held.release(late)).topics
    assert answered.error_code is E.leader_not_available
    assert await held.topic("t") is None


# -- configs


def alter(names: list[str], *, is_incremental: bool) -> Any:
    operation = {"config_operation": SET} if is_incremental else {}
    configs = [{"name": "retention.ms", "value": "1", **operation}]
    resources = [{"resource_type": TOPIC, "resource_name": name, "configs": configs} for name in names]
    return request(44 if is_incremental else 33, 1, resources=resources, validate_only=False)


@pytest.mark.parametrize("is_incremental", [True, False])
async def test_late_configs_are_not_those_of_topic_that_was_made_again(
    held: Held, overtaken: Overtaken, is_incremental: bool
) -> None:
    """Its records would be deleted after a millisecond."""
    await create_all(held, ["a", "b"])
    held.at(held.catalog, "alter_configs")
    late = await held.ask(alter(["a", "b"], is_incremental=is_incremental))
    await held.create_again("b")

    answer = await overtaken(late)
    first, last = [one.error_code for one in answer.responses]
    assert (first, last in (E.unknown_topic_or_partition, E.request_timed_out)) == (NONE, True)
    assert (await held.topic("a")).overrides == {"retention.ms": "1"}
    assert (await held.topic("b")).overrides == {}


async def test_configs_planned_again_are_not_those_of_topic_that_was_made_again(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_all(held, ["a"])
    steps, planned = held.catalog.steps, 0

    async def replace_configs(*args: Any) -> bool:
        nonlocal planned
        planned += 1
        if planned == 1:
            await held.create_again("a")
            return False  # others changed them, and then made it again
        return await replace(*args)

    replace = steps.replace_configs
    monkeypatch.setattr(steps, "replace_configs", replace_configs)
    answer = await held.first.ask(alter(["a"], is_incremental=True))
    assert [one.error_code for one in answer.responses] == [E.unknown_topic_or_partition]
    assert (await held.topic("a")).overrides == {}


async def test_configs_of_client_that_left_are_not_altered(held: Held) -> None:
    """They may have been set back."""
    await create_all(held, ["a", "b"])
    held.at(held.catalog, "alter_configs")
    late = await held.ask(alter(["a", "b"], is_incremental=True))
    held.leave()

    answer = await held.release(late)
    assert [one.error_code for one in answer.responses] == [NONE, E.request_timed_out]
    assert (await held.topic("b")).overrides == {}


# -- records


def delete_records_of(names: list[str], partition_count: int, offset: int) -> Any:
    partitions = [{"partition_index": index, "offset": offset} for index in range(partition_count)]
    topics = [{"name": name, "partitions": partitions} for name in names]
    return request(21, 2, topics=topics, timeout=MINUTE)


async def test_late_delete_records_leaves_records_that_were_produced_since(held: Held, overtaken: Overtaken) -> None:
    """-1 is the high watermark when the request was executed, not at each partition's part of it."""
    await held.first.create("t", AT_ONCE + 1)
    await held.topic("t")
    client = held.second.clients[0]
    for index in range(AT_ONCE + 1):
        await client.produce("t", 2, index=index)
    held.at(retention, "delete_records")
    late = await held.ask(delete_records_of(["t"], AT_ONCE + 1, -1))
    for index in (0, AT_ONCE):
        await client.produce("t", 3, index=index)

    [answered] = (await overtaken(late)).topics
    found = [(one.error_code, one.low_watermark) for one in answered.partitions]
    assert found[:-1] == [(NONE, 2)] * AT_ONCE
    assert found[-1] in ((NONE, 2), (E.request_timed_out, -1))
    assert await held.log_start("t", 0) == 2
    assert await held.log_start("t", AT_ONCE) == (2 if found[-1][0] is NONE else 0)


@pytest.mark.parametrize("offset", [-1, 1])
async def test_late_delete_records_leaves_those_of_topic_that_was_made_again(
    held: Held, overtaken: Overtaken, offset: int
) -> None:
    await create_all(held, ["a", "b"])
    for name in ("a", "b"):
        await held.second.clients[0].produce(name, 1)
    held.at(retention, "delete_records")
    late = await held.ask(delete_records_of(["a", "b"], 1, offset))
    await held.create_again("b")

    codes = [one.partitions[0].error_code for one in (await overtaken(late)).topics]
    assert codes[0] is NONE
    assert codes[1] in (E.unknown_topic_or_partition, E.request_timed_out)
    assert [await held.log_start("a"), await held.log_start("b")] == [1, 0]


async def test_late_delete_records_of_record_topic_leaves_records_that_were_produced_since(held: Held) -> None:
    await held.first.create("r", tidegate_format="record")
    await held.topic("r")
    client = held.second.clients[0]
    await client.produce("r", 2)
    held.at(RecordLog, "delete_records")
    late = await held.ask(delete_records_of(["r"], 1, -1))
    log = held.second.all[0].context.logs.partition(await held.topic("r"), 0)
    assert isinstance(log, RecordLog)
    before = (await log.end_offset()).high_watermark
    await client.produce("r", 1)

    [[found]] = [one.partitions for one in (await held.release(late)).topics]
    assert (found.error_code, found.low_watermark) == (NONE, before)
    assert await log.count_from(0) == 1


# -- transactions


def abort(producer: Producer, *indexes: int) -> Any:
    """WriteTxnMarkers for partitions of `t`."""
    marker = {
        "producer_id": producer.id, "producer_epoch": producer.epoch,
        "transaction_result": False, "coordinator_epoch": 0,
        "topics": [{"name": "t", "partition_indexes": indexes}],
    }  # fmt: skip
    return request(27, 1, markers=[marker])


async def begin(producer: Producer, *indexes: int) -> None:
    """A transaction with a record in each of these partitions of `t`."""
    assert set(await producer.add(*(("t", index) for index in indexes), version=OLD)) == {NONE}
    for index in indexes:
        code, _ = await producer.produce("t", index=index, version=11)
        assert code is NONE


async def marked(held: Held, asked: asyncio.Future[Any]) -> list[ErrorCode]:
    """The codes of the first broker's answer."""
    [answered] = (await held.release(asked)).markers
    return [one.error_code for one in answered.topics[0].partitions]


@pytest.mark.parametrize("log_format", ["batch", "record"])
async def test_late_markers_do_not_abort_the_next_transaction(held: Held, log_format: str) -> None:
    """Neither where the marker is under way, nor in the partitions behind that."""
    await held.first.create("t", 2, tidegate_format=log_format)
    await held.topic("t")
    producer = await Producer(held.second, "T").init()
    await begin(producer, 0, 1)
    held.at(transaction_admin, "append_marker")
    late = await held.ask(abort(producer, 0, 1))
    await producer.end(True, version=OLD)
    await begin(producer, 0, 1)

    assert await marked(held, late) == [E.invalid_txn_state] * 2
    await producer.end(True, version=OLD)
    for index in (0, 1):
        log = held.second.all[0].context.logs.partition(await held.topic("t"), index)
        if isinstance(log, RecordLog):
            assert await log.count_from(0) == 2
        else:
            found = await held.second.fetch("t", index=index, committed=True, end=4)
            assert (found.offsets, found.aborted) == ([0, 2], [])


@pytest.mark.parametrize("log_format", ["batch", "record"])
async def test_late_markers_do_not_abort_the_first_transaction(held: Held, log_format: str) -> None:
    """None was open there when they were asked for."""
    await held.first.create("t", 1, tidegate_format=log_format)
    await held.topic("t")
    producer = await Producer(held.second, "T").init()
    held.at(transaction_admin, "append_marker")
    late = await held.ask(abort(producer, 0))
    await begin(producer, 0)

    assert await marked(held, late) == [E.invalid_txn_state]


async def test_markers_of_client_that_left_end(held: Held) -> None:
    await held.first.create("t", 2)
    await held.topic("t")
    producer = await Producer(held.second, "T").init()
    await begin(producer, 0, 1)
    held.at(transaction_admin, "append_marker")
    late = await held.ask(abort(producer, 0, 1))
    held.leave()

    assert await marked(held, late) == [NONE, E.request_timed_out]
    assert (await held.second.fetch("t", index=1, committed=True)).last_stable_offset == 0


# -- groups


async def test_delete_groups_of_client_that_left_ends(held: Held) -> None:
    """They may have been made again."""
    await held.first.create("t")
    await held.topic("t")
    client = held.second.clients[0]
    groups = [f"g{number}" for number in range(DELETED_AT_ONCE + 1)]
    for client.group_id in groups:
        assert await client.commit("t", 1) is NONE
    held.at(directory, "delete_group")
    late = await held.ask(request(42, 2, groups_names=tuple(groups)))
    held.leave()

    codes = [one.error_code for one in (await held.release(late)).results]
    assert codes == [NONE] * DELETED_AT_ONCE + [E.request_timed_out]
    assert await client.committed("t") == 1


async def test_offset_delete_of_client_that_left_ends(held: Held) -> None:
    """It may have committed others."""
    await held.first.create("t", PARTITIONS + 1)
    await held.topic("t")
    client = held.second.clients[0]
    for index in (0, PARTITIONS):
        assert await client.commit("t", 1, index=index) is NONE
    held.at(offsets, "delete")
    partitions = [{"partition_index": index} for index in range(PARTITIONS + 1)]
    late = await held.ask(request(47, 0, group_id=client.group_id, topics=[{"name": "t", "partitions": partitions}]))
    held.leave()

    assert (await held.release(late)).error_code is E.request_timed_out
    assert [await client.committed("t", index) for index in (0, PARTITIONS)] == [-1, 1]
