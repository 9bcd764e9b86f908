"""Transactions on topics of format record: staged records are appended with the commit, by one script, once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from tests.kit.wire import request
from tests.support.transactions import NONE, Brokers, Producer, brokers_of
from tidegate.errors import StoreUnavailable
from tidegate.log.record_format import record_append
from tidegate.log.record_format.record_groups import RecordGroups
from tidegate.log.record_format.record_retention import EXPIRE_PRODUCERS
from tidegate.log.record_format.record_stream import RecordStream
from tidegate.records.control import Marker, MarkerType
from tidegate.records.entry_ids import RecordIds
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.transactions import completion
from tidegate.transactions.model import State

E = ErrorCode
IDS = RecordIds(10)
KEYS = ["tidegate:{default/t:0}:records", "tidegate:{default/t:1}:records"]


@pytest.fixture(params=[1, 2], ids=["one broker", "two brokers"])
async def brokers(request: pytest.FixtureRequest, store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Brokers with the topic `t` of two partitions of format record, and the topic `b` of format batch."""
    async with brokers_of(settings.model_copy(update={"group_initial_rebalance_delay_ms": 0}), request.param) as opened:
        await opened.create("t", 2, tidegate_format="record")
        await opened.create("b", 1)
        yield opened


async def length(store: Store, index: int = 0) -> int:
    found: int = await store.command("XLEN", KEYS[index])
    return found


async def staged(store: Store) -> int:
    """Staged batches of both partitions."""
    found = [name async for name in _names(store, "*:staged")]
    return sum([await store.command("HLEN", name) for name in found])


async def _names(store: Store, pattern: str) -> AsyncIterator[str]:
    for index in (0, 1):
        cursor = b"0"
        while True:
            cursor, names = await store.node(KEYS[index]).control.call("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            for name in names:
                if f"/t:{index}}}" in name.decode():
                    yield name.decode()
            if cursor == b"0":
                break


async def offsets(brokers: Brokers, index: int = 0, *, committed: bool = True) -> list[int]:
    """Offsets of the records from the beginning."""
    found = await brokers.fetch("t", index=index, committed=committed)
    return [record for batch in found.batches for record in _offsets(batch)]


def _offsets(batch: Any) -> list[int]:
    return [one.offset for one in read_records(batch)]


async def test_commit_makes_staged_records_visible_at_once(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    assert await producer.write("t", 3) == -1
    assert await producer.write("t", 2) == -1
    assert await producer.write("t", 1, index=1) == -1
    assert (await length(store), await length(store, 1), await staged(store)) == (0, 0, 3)
    assert await offsets(brokers, committed=False) == []

    await producer.end(True)

    assert (await length(store), await length(store, 1), await staged(store)) == (5, 1, 0)
    stored = [IDS.offset_of(one) for one, _ in await store.command("XRANGE", KEYS[0], "-", "+")]
    assert await offsets(brokers) == await offsets(brokers, committed=False) == stored
    found = await brokers.fetch("t", committed=True)
    assert (found.last_stable_offset, found.markers, found.aborted) == (found.high_watermark, [], [])


async def test_first_sequence_behind_a_marker(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    assert await producer.add(("t", 0)) == [NONE]
    await producer.end(True, version=1)
    assert await producer.add(("t", 0)) == [NONE]
    assert (await producer.produce("t", version=9, sequence=5))[0] is E.out_of_order_sequence_number
    assert (await producer.produce("t", version=9, sequence=0))[0] is NONE


async def test_abort_drops_staged_records(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 3)
    await producer.end(False)
    await producer.write("t", 2)
    await producer.end(True)

    assert (await length(store), await staged(store)) == (2, 0)


@pytest.mark.parametrize("version", [1, 5])
async def test_transactions_follow_each_other(brokers: Brokers, store: Store, version: int) -> None:
    producer = await brokers.producer().init()
    for number in range(1, 5):
        if version == 1:
            assert await producer.add(("t", 0)) == [NONE]
        code, _ = await producer.produce("t", 2, version=9 if version == 1 else 12)
        assert code is NONE
        await producer.end(True, version=version)
        assert await length(store) == 2 * number


async def test_open_transaction_delays_no_reader(brokers: Brokers, store: Store) -> None:
    """Nor do records have the order in which they were produced: offsets are those of the commit."""
    first, second = await brokers.producer("P1").init(), await brokers.producer("P2").init()
    await first.write("t", 2)
    await second.write("t", 3)
    await second.end(True)
    before = await offsets(brokers)
    await first.end(True)

    assert len(before) == 3
    assert (await offsets(brokers))[:3] == before
    assert len(await offsets(brokers)) == 5


async def test_repeated_batch_is_staged_once(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 2)
    assert await producer.produce("t", 2, sequence=0) == (NONE, -1)
    assert (await producer.produce("t", 2, sequence=5))[0] is E.out_of_order_sequence_number
    await producer.end(True)

    assert await length(store) == 2


async def test_lost_reply_stages_once(brokers: Brokers, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, calls = RecordStream.run_on, 0

    async def run_and_lose(stream: RecordStream, lane: Any, script: Script, *args: Any) -> Any:
        nonlocal calls
        reply = await whole(stream, lane, script, *args)
        if script is not record_append.STAGE_RECORDS:
            return reply
        calls += 1
        if calls % 2:
            raise StoreUnavailable("the reply is lost")
        return reply

    monkeypatch.setattr(RecordStream, "run_on", run_and_lose)
    producer = await brokers.producer().init()
    await producer.write("t", 2)
    await producer.write("t", 3)
    await producer.end(True)

    assert calls > 2
    assert await length(store) == 5


async def test_produce_outside_the_transaction(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    assert (await producer.produce("t", version=9))[0] is E.invalid_txn_state
    assert (await producer.produce("t", version=11))[0] is E.transaction_abortable
    assert await producer.add(("t", 0)) == [NONE]
    assert (await producer.produce("t", version=9))[0] is NONE
    assert (await producer.produce("t", plain=True))[0] is E.invalid_txn_state
    fenced = Producer(brokers, "T", producer.id, producer.epoch)
    await brokers.producer().init()
    assert (await fenced.produce("t"))[0] is E.invalid_producer_epoch
    assert (await length(store), await staged(store)) == (0, 0)


async def test_first_sequence_of_an_unknown_producer(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    assert (await producer.produce("t", sequence=3))[0] is E.out_of_order_sequence_number
    assert await staged(store) == 0


async def test_batch_behind_its_transactions_end_is_refused(brokers: Brokers, store: Store) -> None:
    """The coordinator has confirmed the batch, then the transaction ends: it does not join the next one."""
    producer = await brokers.producer().init()
    coordinators = [broker.context.transactions for broker in brokers.all]
    ended = asyncio.Event()

    async def end() -> None:
        await producer.try_end(False, version=1)
        ended.set()

    for coordinator in coordinators:
        whole = coordinator.confirm

        def confirm(*args: Any, _whole: Any = whole, **options: Any) -> None:
            on_confirmed = args[4]

            def confirmed(failure: Exception | None) -> None:
                if ended.is_set() or failure is not None:
                    on_confirmed(failure)
                else:
                    task = asyncio.ensure_future(end())
                    task.add_done_callback(lambda _: on_confirmed(None))

            _whole(*args[:4], confirmed, **options)

        coordinator.confirm = confirm  # type: ignore[method-assign]
    assert await producer.add(("t", 0)) == [NONE]

    code, _ = await producer.produce("t", version=9)

    assert code is E.invalid_txn_state
    assert (await length(store), await staged(store)) == (0, 0)


async def test_many_batches_of_a_producer_stay_in_order(brokers: Brokers, store: Store) -> None:
    """One connection sends them without waiting; the first one asks the coordinator."""
    producer = await brokers.producer().init()
    brokers.iteration = 0
    brokers.clients = brokers.clients[:1]
    codes = await asyncio.gather(*(producer.produce("t", 1, sequence=i) for i in range(20)))
    await producer.end(True)

    assert {code for code, _ in codes} == {NONE}
    assert await length(store) == 20


async def test_limits_of_staged_records(brokers: Brokers, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_append, "STAGED_RECORDS_MAX", 5)
    producer = await brokers.producer().init()
    await producer.write("t", 3)
    assert (await producer.produce("t", 3))[0] is E.record_list_too_large
    await producer.write("t", 2)
    await producer.end(False)
    monkeypatch.setattr(record_append, "STAGED_BYTES_MAX", 1)
    assert (await producer.produce("t", 1))[0] is E.record_list_too_large


# -- lost keys


async def lose(store: Store, kind: str, index: int = 0) -> None:
    """Delete the key of a partition that somebody would delete by hand."""
    [name] = [name async for name in _names(store, f"*:{kind}") if f"/t:{index}}}" in name]
    await store.command("DEL", name)


async def test_commit_of_lost_records_is_reported(brokers: Brokers, store: Store) -> None:
    """It completes: nothing brings the records back, but nobody would know."""
    producer = await brokers.producer().init()
    await producer.write("t", 3)
    await producer.write("t", 2)
    await producer.write("t", 1, index=1)
    await lose(store, "staged")

    with capture_logs() as events:
        await producer.end(True)

    reported = [event for event in events if event["event"] == "staged_records_lost"]
    assert (await length(store), await length(store, 1)) == (0, 1)
    assert [(one["log_level"], one["topic"], one["partition"], one["records"]) for one in reported] == [
        ("warning", "t", 0, 5)
    ]
    assert reported[0]["producer_id"] == producer.id
    assert sum(broker.context.logs.lost_records for broker in brokers.all) == 5


async def test_abort_of_lost_records_is_not_reported(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 3)
    await lose(store, "staged")

    with capture_logs() as events:
        await producer.end(False)
    await producer.write("t", 2)
    await producer.end(True)

    assert [event for event in events if event["event"] == "staged_records_lost"] == []
    assert await length(store) == 2


async def test_commit_after_the_producers_were_lost_appends_what_is_staged(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 3)
    await producer.write("t", 2)
    await lose(store, "producers")

    await producer.end(True)

    assert (await length(store), await staged(store)) == (5, 0)


@pytest.mark.parametrize(("produce", "end"), [(9, 1), (12, 5)], ids=["one epoch", "an epoch each"])
async def test_batch_behind_a_lost_producer_is_refused(brokers: Brokers, store: Store, produce: int, end: int) -> None:
    """It would be staged in place of the first one, which was acknowledged."""
    producer = await brokers.producer().init()
    for count in (4, 3):
        if end == 1:
            assert await producer.add(("t", 0)) == [NONE]
        assert (await producer.produce("t", count, version=produce))[0] is NONE
        if count == 4:
            await producer.end(True, version=end)
    await lose(store, "producers")

    code, _ = await producer.produce("t", 2, version=produce)

    assert code is E.out_of_order_sequence_number
    await producer.end(True, version=end)
    assert (await length(store), await staged(store)) == (7, 0)


async def test_first_batch_of_a_lost_producer_replaces_what_is_staged(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 3)
    await producer.write("t", 2)
    await lose(store, "producers")

    assert await producer.produce("t", 3, sequence=0) == (NONE, -1)

    assert await staged(store) == 1
    await producer.end(True)
    assert (await length(store), await staged(store)) == (3, 0)


async def test_commit_with_a_damaged_batch_appends_none(brokers: Brokers, store: Store) -> None:
    """The script fails before its first XADD, so readers never get a part of the transaction."""
    producer = await brokers.producer().init()
    await producer.write("t", 3)
    await producer.write("t", 2)
    [name] = [name async for name in _names(store, "*:staged") if "/t:0}" in name]
    field = f"{producer.id}:2"
    value = await store.command("HGET", name, field)
    await store.command("HSET", name, field, b"\xc1")
    topic = brokers.all[0].context.catalog.get("default", "t")
    assert topic is not None
    marker = Marker(producer.id, producer.epoch, MarkerType.COMMIT, 1)

    with pytest.raises(StoreUnavailable):
        await completion.append_marker(brokers.all[0].context.logs, topic, 0, marker)
    before = await length(store), await staged(store)
    await store.command("HSET", name, field, value)
    await completion.append_marker(brokers.all[0].context.logs, topic, 0, marker)

    assert before == (0, 2)
    assert (await length(store), await staged(store)) == (5, 0)


# -- a broker is killed between any two steps


async def test_broker_dies_between_decision_and_commit(
    brokers: Brokers, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await brokers.producer().init()
    assert await producer.add(("t", 0), ("t", 1), ("b", 0)) == [NONE] * 3
    for topic, index in (("t", 0), ("t", 1), ("b", 0)):
        assert (await producer.produce(topic, index=index, version=9))[0] is NONE
    whole = completion.append_marker

    async def append_some(logs: object, topic: Any, index: int, marker: Marker) -> object:
        if (topic.name, index) == ("t", 1):
            raise StoreUnavailable("the broker dies here")
        return await whole(logs, topic, index, marker)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(completion, "append_marker", append_some)
        patched.setattr(completion, "_TRIES", 1)
        assert (await producer.try_end(True, version=1))[0] is NONE
        for broker in brokers.all:
            await broker.context.transactions.tasks.wait()
        assert (await length(store), await length(store, 1), await staged(store)) == (1, 0, 1)

    await _complete(brokers)
    assert (await length(store), await length(store, 1), await staged(store)) == (1, 1, 0)
    found = await brokers.fetch("b", committed=True, end=2)
    assert (found.offsets, len(found.markers)) == ([0], 1)


async def test_broker_dies_behind_the_commit(brokers: Brokers, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are appended; that the transaction is complete is not written."""
    producer = await brokers.producer().init()
    await producer.write("t", 3)

    async def append_and_die(logs: object, topic: Any, index: int, marker: Marker) -> object:
        await whole(logs, topic, index, marker)  # type: ignore[arg-type]
        raise StoreUnavailable("the broker dies here")

    whole = completion.append_marker
    with monkeypatch.context() as patched:
        patched.setattr(completion, "append_marker", append_and_die)
        patched.setattr(completion, "_TRIES", 1)
        await producer.end(True)
        for broker in brokers.all:
            await broker.context.transactions.tasks.wait()
    assert (await length(store), await staged(store)) == (3, 0)

    await _complete(brokers)
    await _complete(brokers)
    assert await length(store) == 3
    await producer.write("t", 1)
    await producer.end(True)
    assert await length(store) == 4


async def test_late_commit_of_another_broker_does_not_end_the_next_transaction(brokers: Brokers, store: Store) -> None:
    """Version 1 of the protocol: both transactions have the same epoch."""
    producer = await brokers.producer().init()
    assert await producer.add(("t", 0)) == [NONE]
    assert (await producer.produce("t", version=9))[0] is NONE
    coordinator = brokers.all[0].context.transactions
    await producer.end(True, version=1)
    decided = await coordinator.records.read(coordinator.records.keys("default", "T"))
    assert decided is not None
    assert await producer.add(("t", 0)) == [NONE]
    assert (await producer.produce("t", version=9))[0] is NONE
    topic = brokers.all[0].context.catalog.get("default", "t")
    assert topic is not None

    late = Marker(producer.id, producer.epoch, completion.MarkerType.ABORT, decided.ended_ms)
    await completion.append_marker(brokers.all[0].context.logs, topic, 0, late)

    assert (await length(store), await staged(store)) == (1, 1)
    await producer.end(True, version=1)
    assert await length(store) == 2


@pytest.mark.parametrize("seed", [random.randrange(1 << 30)], ids=["drawn"])
async def test_random_transactions_while_brokers_die(
    brokers: Brokers, store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Three producers; the broker that ends a transaction dies before or after a partition, another completes it."""
    rng = random.Random(seed)
    whole = completion.append_marker

    async def append_or_die(logs: object, topic: Any, index: int, marker: Marker) -> object:
        if rng.random() < 0.3:
            raise StoreUnavailable("the broker dies before")
        done = await whole(logs, topic, index, marker)  # type: ignore[arg-type]
        if rng.random() < 0.3:
            raise StoreUnavailable("the broker dies behind it")
        return done

    monkeypatch.setattr(completion, "_TRIES", 1)
    producers = [await brokers.producer(f"T{i}").init() for i in range(3)]
    versions = [1, 5, 5]
    pending = [[0, 0] for _ in producers]
    expected = [0, 0]
    for _ in range(100):
        at, index = rng.randrange(3), rng.randrange(2)
        producer, version = producers[at], versions[at]
        if rng.random() < 0.2:
            await store.command("XADD", KEYS[index], "*", "value", "program")
            expected[index] += 1
        elif sum(pending[at]) and rng.random() < 0.4:
            is_commit = rng.random() < 0.6
            with monkeypatch.context() as patched:
                patched.setattr(completion, "append_marker", append_or_die)
                await producer.end(is_commit, version=version)
                for broker in brokers.all:
                    await broker.context.transactions.tasks.wait()
            await _complete(brokers, f"T{at}")
            expected = [a + b * is_commit for a, b in zip(expected, pending[at], strict=True)]
            pending[at] = [0, 0]
        else:
            count = rng.randint(1, 4)
            if version == 1:
                assert await producer.add(("t", index)) == [NONE]
            code, _ = await producer.produce("t", count, index=index, version=9 if version == 1 else 12)
            assert code is NONE, f"seed {seed}"
            pending[at][index] += count
        assert [await length(store, 0), await length(store, 1)] == expected, f"seed {seed}"


async def _complete(brokers: Brokers, transactional_id: str = "T") -> None:
    coordinator = brokers.all[-1].context.transactions
    keys = coordinator.records.keys("default", transactional_id)
    await coordinator.handle_deadline(keys)
    await coordinator.tasks.wait()
    record = await coordinator.records.read(keys)
    assert record is None or record.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT, State.EMPTY)


# -- beside Redis programs and groups


async def test_redis_program_appends_between(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 2)
    await store.command("XADD", KEYS[0], "*", "value", "program")
    ahead = await store.command("XADD", KEYS[0], "9999999999999-1020", "value", "ahead of the clock")
    await producer.end(True)

    ids = [one for one, _ in await store.command("XRANGE", KEYS[0], "-", "+")]
    assert ids[1] == ahead
    assert ids[2:] == [b"10000000000000-0", b"10000000000000-1"]
    assert len(await offsets(brokers)) == 4


async def test_staged_fields_are_those_of_an_entry(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 1)
    await producer.end(True)
    plain = brokers.clients[0]
    await plain.produce("t", 1)

    (_, transactional), (_, other) = await store.command("XRANGE", KEYS[0], "-", "+")

    def content(fields: list[bytes]) -> dict[bytes, bytes]:
        return {name: value for name, value in zip(fields[::2], fields[1::2], strict=True) if name != b"timestamp"}

    assert content(transactional) == content(other)


async def test_offsets_in_a_transaction_acknowledge(brokers: Brokers, store: Store) -> None:
    """Consume, transform, produce: the commit of the transaction is the XACK."""
    member = brokers.clients[0]
    await member.produce("t", 4)
    await member.own("t", 0)
    await member.fetch("t", 0)
    [_, second, *_] = await store.command("XRANGE", KEYS[0], "-", "+")
    next_offset = (IDS.offset_of(second[0]) or 0) + 1
    producer = await brokers.producer().init()
    await producer.write("b")
    assert await producer.add_offsets("orders") is NONE
    code = await producer.commit_offset("orders", next_offset, generation=member.generation, member_id=member.member_id)
    assert code is NONE
    assert (await store.command("XPENDING", KEYS[0], "orders"))[0] == 4

    await producer.end(True)

    assert (await store.command("XPENDING", KEYS[0], "orders"))[0] == 2


async def test_offsets_in_a_transaction_acknowledge_after_a_failure(
    brokers: Brokers, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets were applied before: they are read from the group's."""
    member = brokers.clients[0]
    await member.produce("t", 4)
    await member.own("t", 0)
    await member.fetch("t", 0)
    [_, second, *_] = await store.command("XRANGE", KEYS[0], "-", "+")
    next_offset = (IDS.offset_of(second[0]) or 0) + 1
    producer = await brokers.producer().init()
    code = await producer.commit_offset("orders", next_offset, generation=member.generation, member_id=member.member_id)
    assert code is NONE
    acknowledge, failures = RecordGroups.acknowledge, list[str]()

    async def fail_once(groups: RecordGroups, group_id: str, commits: Any) -> None:
        if not failures:
            failures.append(group_id)
            raise StoreUnavailable("Redis is away")
        await acknowledge(groups, group_id, commits)

    monkeypatch.setattr(RecordGroups, "acknowledge", fail_once)
    await producer.end(True)
    for broker in brokers.all:
        await broker.context.transactions.tasks.wait()

    assert failures == ["orders"]
    assert (await store.command("XPENDING", KEYS[0], "orders"))[0] == 2


# -- administration


async def test_idle_producer_with_an_open_transaction_remains(brokers: Brokers, store: Store) -> None:
    producer, other = await brokers.producer().init(), await brokers.producer("U").init()
    await producer.write("t")
    await other.write("t")
    await other.end(True)
    topic = brokers.all[0].context.catalog.get("default", "t")
    assert topic is not None
    log = brokers.all[0].context.logs.partition(topic, 0)

    await store.run(EXPIRE_PRODUCERS, [log.keys.producers], "0", -60_000, 500)

    assert set(await log.read_producers()) == {producer.id}
    await producer.end(True)
    assert await length(store) == 2


async def test_producers_and_markers_of_an_administrator(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 2)
    described = await brokers.ask(request(61, 0, topics=[{"name": "t", "partition_indexes": (0,)}]))
    [found] = described.topics[0].partitions[0].active_producers
    assert (found.producer_id, found.last_sequence, found.current_txn_start_offset) == (producer.id, 1, 0)
    assert found.last_timestamp > 1_600_000_000_000
    marker = {
        "producer_id": producer.id, "producer_epoch": producer.epoch,
        "transaction_result": False, "coordinator_epoch": 0,
        "topics": [{"name": "t", "partition_indexes": (0,)}],
    }  # fmt: skip

    answer = await brokers.ask(request(27, 1, markers=[marker]))

    assert answer.markers[0].topics[0].partitions[0].error_code is NONE
    assert (await length(store), await staged(store)) == (0, 0)


async def test_deleted_topic_has_nothing_staged(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 2)
    await brokers.all[0].context.catalog.delete("default", "t")

    await producer.end(True)

    assert await staged(store) == 0


async def test_commit_to_a_full_redis(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 2)
    await store.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await producer.end(True)
        assert await length(store) == 2
    finally:
        await store.command("CONFIG", "SET", "maxmemory", "0")
