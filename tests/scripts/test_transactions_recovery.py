"""Transactions whose broker or producer is gone: time-outs, markers half written, late batches. Scenarios 80 and 83."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.transactions import MARKER_WAIT_S, NONE, Brokers, Producer, brokers_of
from tests.support.whole_broker import WholeBroker
from tidegate.errors import StoreUnavailable
from tidegate.records.control import Marker, MarkerType
from tidegate.settings import Settings
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.transactions import completion, records
from tidegate.transactions.model import State, TransactionPartition
from tidegate.transactions.sweep import TAKE_DUE_TRANSACTIONS, TransactionSweep

E = ErrorCode


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Two brokers with the topic `t` of two partitions."""
    async with brokers_of(settings, 2) as opened:
        await opened.create("t", 2)
        yield opened


async def _state(broker: WholeBroker, transactional_id: str = "T") -> State:
    records = broker.context.transactions.records
    found = await records.read(records.keys("default", transactional_id))
    assert found is not None
    return found.state


async def _sweep_until(broker: WholeBroker, state: State, transactional_id: str = "T") -> None:
    sweep = TransactionSweep(broker.store, broker.context.transactions, lambda shard: True)
    async with asyncio.timeout(MARKER_WAIT_S):
        while await _state(broker, transactional_id) is not state:
            await sweep.sweep()
            await asyncio.sleep(0.02)


async def test_log_80_timeout(brokers: Brokers) -> None:
    producer = await brokers.producer().init(timeout_ms=300)
    assert await producer.add(("t", 0), ("t", 1)) == [NONE, NONE]
    await producer.write("t")
    await _sweep_until(brokers.all[1], State.COMPLETE_ABORT)
    found = await brokers.fetch("t", committed=True, end=2)
    assert [(at, one.producer_epoch, one.type) for at, one in found.markers] == [(1, 1, MarkerType.ABORT)]
    assert len((await brokers.fetch("t", index=1, end=1)).markers) == 1
    assert (await producer.try_end(True, version=1))[0] is E.invalid_producer_epoch
    assert (await producer.try_end(True, version=2))[0] is E.producer_fenced
    assert (await producer.try_end(True))[0] is E.invalid_txn_state
    assert await producer.try_end(False) == (NONE, producer.id, 1)
    assert await producer.add(("t", 0)) == [E.producer_fenced]
    assert (await producer.produce("t"))[0] is E.invalid_producer_epoch
    assert await producer.try_init(producer.id, 0) == (NONE, producer.id, 1)


async def test_log_80_sweep_leaves_a_transaction_in_time(brokers: Brokers) -> None:
    producer = await brokers.producer().init(timeout_ms=60_000)
    await producer.write("t")
    await brokers.all[0].context.transactions.handle_deadline(
        brokers.all[0].context.transactions.records.keys("default", "T")
    )
    assert await _state(brokers.all[0]) is State.ONGOING


@pytest.mark.parametrize(("is_preferred", "expected"), [(True, 10), (False, 2)])
async def test_sweep_asks_shards_of_other_brokers_less_often(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, is_preferred: bool, expected: int
) -> None:
    await brokers.producer().init()
    store, asked = brokers.all[1].store, list[Script]()
    run = store.run

    async def counted(script: Script, *args: Any, **options: Any) -> Any:
        asked.append(script)
        return await run(script, *args, **options)

    monkeypatch.setattr(store, "run", counted)
    sweep = TransactionSweep(store, brokers.all[1].context.transactions, lambda shard: is_preferred)
    for _ in range(10):
        await sweep.sweep()
    assert asked.count(TAKE_DUE_TRANSACTIONS) == expected


async def test_log_83_broker_dies_between_decision_and_markers(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await brokers.producer().init()
    assert await producer.add(("t", 0), ("t", 1)) == [NONE, NONE]
    for index in (0, 1):
        assert (await producer.produce("t", index=index, version=9))[0] is NONE

    whole = completion.append_marker

    async def append_first(logs: object, topic: object, index: int, marker: Marker) -> object:
        if index == 1:
            raise StoreUnavailable("the broker dies here")
        return await whole(logs, topic, index, marker)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(completion, "append_marker", append_first)
        patched.setattr(completion, "_TRIES", 1)
        assert (await producer.try_end(True, version=1))[0] is NONE
        assert (await producer.try_end(True, version=1))[0] is E.concurrent_transactions
        for broker in brokers.all:
            await broker.context.transactions.tasks.wait()
        assert await _state(brokers.all[0]) is State.PREPARE_COMMIT
        assert (await brokers.fetch("t", index=1, committed=True)).last_stable_offset == 0

    await _sweep_until(brokers.all[1], State.COMPLETE_COMMIT)
    for index in (0, 1):
        found = await brokers.fetch("t", index=index, committed=True, end=2)
        assert (found.offsets, len(found.markers), found.high_watermark) == ([0], 1, 2)
    assert (await producer.try_end(True, version=1))[0] is NONE


async def test_completion_unavailable_group_and_partition_withhold_no_other_marker(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Redis Cluster their node is unavailable, and that of another partition is not."""
    producer = await brokers.producer().init()
    for index in (0, 1):
        await producer.write("t", index=index)
    assert await producer.commit_offset("g", 1) is NONE
    whole = completion.append_marker

    async def append_last(logs: object, topic: object, index: int, marker: Marker) -> object:
        if index == 0:
            raise StoreUnavailable("its node is unavailable")
        return await whole(logs, topic, index, marker)  # type: ignore[arg-type]

    async def end(*_: object) -> None:
        raise StoreUnavailable("its node is unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(completion, "append_marker", append_last)
        patched.setattr(completion.staged_offsets, "end", end)
        patched.setattr(completion, "PARTITIONS_AT_ONCE", 1)
        patched.setattr(completion, "_TRIES", 1)
        assert (await producer.try_end(True))[0] is NONE
        for broker in brokers.all:
            await broker.context.transactions.tasks.wait()
        assert await _state(brokers.all[0]) is State.PREPARE_COMMIT
        assert (await brokers.fetch("t", index=1, committed=True, end=2)).last_stable_offset == 2
        assert (await brokers.fetch("t", committed=True)).last_stable_offset == 0

    await _sweep_until(brokers.all[1], State.COMPLETE_COMMIT)
    assert (await brokers.fetch("t", committed=True, end=2)).last_stable_offset == 2
    assert await brokers.committed("g", stable=True) == (NONE, 1)


async def test_sweep_waits_for_no_marker(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out is handled while the markers of another transaction cannot be written."""
    decided = await brokers.producer("decided").init()
    await decided.write("t")
    append, go_on = completion.append_marker, asyncio.Event()

    async def append_later(*args: Any) -> object:
        await go_on.wait()
        return await append(*args)

    broker = brokers.all[1]
    with monkeypatch.context() as patched:
        patched.setattr(completion.Completion, "complete", _nothing)
        await decided.end(True)
    monkeypatch.setattr(completion, "append_marker", append_later)
    keys = broker.context.transactions.records.keys("default", "decided")
    await broker.store.command("ZADD", keys.deadlines, 1, keys.ref)
    open_one = await brokers.producer("open").init(timeout_ms=1)
    await open_one.add(("t", 1))

    await _sweep_until(broker, State.PREPARE_ABORT, "open")
    assert await _state(broker, "decided") is State.PREPARE_COMMIT
    go_on.set()
    await _sweep_until(broker, State.COMPLETE_ABORT, "open")
    await _sweep_until(broker, State.COMPLETE_COMMIT, "decided")


@pytest.mark.parametrize("version", [1, 5])
async def test_completion_at_once_by_two_brokers_writes_one_marker(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    producer = await brokers.producer().init()
    for number in range(1, 6):
        assert await producer.add(("t", 0)) == [NONE]
        assert (await producer.produce("t", version=9))[0] is NONE
        with monkeypatch.context() as patched:
            patched.setattr(completion.Completion, "complete", _nothing)
            await producer.end(True, version=version)
        both = [broker.context.transactions for broker in brokers.all]
        keys = both[0].records.keys("default", "T")
        await asyncio.gather(*(one.completion.complete(keys) for one in both))
        found = await brokers.fetch("t", end=2 * number)
        assert (len(found.markers), found.high_watermark) == (number, 2 * number)


async def _nothing(*_: object, **__: object) -> None:
    """A broker that dies before it completes."""


@pytest.mark.parametrize("version", [9, 12])
async def test_batch_confirmed_before_the_decision_never_follows_its_marker(brokers: Brokers, version: int) -> None:
    """The batch's broker has read the log and asked the coordinator; then the transaction ends through the other."""
    producer = await brokers.producer().init()
    if version == 9:
        assert await producer.add(("t", 0)) == [NONE]
    else:
        await producer.write("t", index=1)
        assert await producer.add(("t", 0)) == [NONE]
    slow = brokers.all[0].context.transactions
    asked, go_on = asyncio.Event(), asyncio.Event()
    confirm = slow.confirm

    def slowly(*args: object, **options: object) -> None:
        keys, producer_id, epoch, partition, on_confirmed = args

        def confirmed(failure: Exception | None) -> None:
            async def later() -> None:
                asked.set()
                await go_on.wait()
                on_confirmed(failure)  # type: ignore[operator]

            brokers.all[0].context.tasks.start(later())

        confirm(keys, producer_id, epoch, partition, confirmed, **options)  # type: ignore[arg-type]

    slow.confirm = slowly  # type: ignore[method-assign, assignment]
    alone = Producer(Brokers([brokers.all[0]]), "T", producer.id, producer.epoch)
    late = asyncio.create_task(alone.produce("t", version=version, sequence=0))
    await asked.wait()
    other = Producer(Brokers([brokers.all[1]]), "T", producer.id, producer.epoch)
    assert (await other.try_end(True, version=1))[0] is NONE
    slow.confirm = confirm  # type: ignore[method-assign]
    go_on.set()
    code, _ = await late
    found = await brokers.fetch("t", committed=True, end=1)
    if version == 9:
        assert code is E.invalid_txn_state
        assert (found.offsets, found.last_stable_offset) == ([], 1)
    else:  # it begins the next transaction of the same epoch
        assert code is NONE
        assert [one.producer_epoch for _, one in found.markers] == [0]
        assert found.last_stable_offset == 1


@pytest.mark.parametrize("log_format", ["batch", "record"])
async def test_batch_of_a_fenced_producer_is_refused_alone(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    """A batch of the newer producer waits behind it in the same partition while the coordinator is asked."""
    await brokers.create("f", 1, **{"tidegate.format": log_format})
    producer = await brokers.producer().init()
    await producer.write("f")
    await producer.end(True)
    coordinator = brokers.all[0].context.transactions
    asked, go_on, confirm = asyncio.Event(), asyncio.Event(), coordinator.confirm

    def slowly(*args: Any, **options: Any) -> None:
        async def later() -> None:
            asked.set()
            await go_on.wait()
            confirm(*args, **options)

        brokers.all[0].context.tasks.start(later())

    monkeypatch.setattr(coordinator, "confirm", slowly)
    old = Producer(Brokers([brokers.all[0]]), "T", producer.id, producer.epoch)
    new = await Producer(Brokers([brokers.all[0]]), "T").init()
    late = asyncio.create_task(old.produce("f"))
    await asked.wait()
    waiting = asyncio.create_task(new.produce("f"))
    await _until_queued(brokers.all[0], "f", new.epoch)
    go_on.set()
    assert (await late)[0] is E.invalid_producer_epoch
    assert (await waiting)[0] is NONE
    await new.end(True)


async def _until_queued(broker: WholeBroker, name: str, epoch: int) -> None:
    """Wait until a batch of that producer epoch waits in the topic's only partition."""
    topic = broker.context.catalog.get("default", name)
    assert topic is not None
    appends: Any = broker.context.logs.partition(topic, 0)._appends
    async with asyncio.timeout(MARKER_WAIT_S):
        while True:
            if topic.format == "batch":
                queued = [*appends._queue, *appends._waiting.batches()]
            else:
                queued = [*appends._queue, *(one for some in appends._asking.values() for one in some)]
            if any(one.batch.producer_epoch == epoch for one in queued):
                return
            await asyncio.sleep(0.01)


async def test_completion_marks_partitions_added_behind_its_cache(brokers: Brokers) -> None:
    stale = brokers.all[1].context.catalog
    await stale._follower.close()
    await brokers.all[0].context.catalog.add_partitions("default", "t", 3)
    producer = await Producer(Brokers([brokers.all[0]]), "T").init()
    await producer.write("t", index=2)
    topic = stale.get("default", "t")
    assert topic is not None
    assert topic.partition_count == 2
    assert (await Producer(Brokers([brokers.all[1]]), "T", producer.id, producer.epoch).try_end(True))[0] is NONE
    found = await Brokers([brokers.all[0]]).fetch("t", index=2, committed=True, end=2)
    assert (found.offsets, found.last_stable_offset) == ([0], 2)


async def test_open_transaction_survives_snapshot_and_reload(brokers: Brokers) -> None:
    first, second = await brokers.producer("A").init(), await brokers.producer("B").init()
    await second.write("t")
    await second.end(False)
    await first.write("t", 2)
    log = next(iter(brokers.all[0].context.logs.open_logs.values()))
    await log.progress.save_now(await log.refresh())
    for broker in brokers.all:
        broker.context.logs.drop_states()
    found = await brokers.fetch("t", committed=True, end=4)
    assert (found.last_stable_offset, found.aborted) == (2, [(second.id, 0)])
    await first.end(True)
    assert (await brokers.fetch("t", committed=True, end=5)).last_stable_offset == 5


async def test_topic_deleted_within_a_transaction_does_not_block_it(brokers: Brokers) -> None:
    await brokers.create("gone")
    producer = await brokers.producer().init()
    await producer.write("t")
    await producer.write("gone")
    for broker in brokers.all[:1]:
        await broker.context.catalog.delete("default", "gone")
    await producer.end(True)
    assert (await brokers.fetch("t", committed=True, end=2)).offsets == [0]
    assert await _state(brokers.all[0]) is State.COMPLETE_COMMIT


async def test_marker_is_written_to_a_full_redis(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")
    await store.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await producer.end(True)
        found = await brokers.fetch("t", committed=True, end=2)
        assert (found.offsets, found.last_stable_offset) == ([0], 2)
    finally:
        await store.command("CONFIG", "SET", "maxmemory", "0")


async def test_produce_of_many_partitions_adds_them_in_few_writes(brokers: Brokers) -> None:
    await brokers.create("wide", 50)
    producer = await brokers.producer().init()
    codes = await asyncio.gather(*(producer.produce("wide", index=index) for index in range(50)))
    assert {code for code, _ in codes} == {NONE}
    records = brokers.all[0].context.transactions.records
    one = await records.read(records.keys("default", "T"))
    assert one is not None
    assert {partition.partition for partition in one.partitions} == set(range(50))
    assert all(isinstance(partition, TransactionPartition) for partition in one.partitions)
    await producer.end(True)
    assert len((await brokers.fetch("wide", index=49, end=2)).markers) == 1


async def test_produce_of_many_partitions_verifies_them_in_few_reads(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await brokers.create("wide", 50)
    await brokers.create("other", 1)
    producer, reads = await brokers.producer().init(), list[str]()
    await producer.add(*(("wide", index) for index in range(50)))
    command = Store.command

    async def counting(self: Store, name: str, *args: Any) -> Any:
        if name == "HGETALL":
            reads.append(args[0])
        return await command(self, name, *args)

    monkeypatch.setattr(Store, "command", counting)
    wide = (producer.produce("wide", index=index, version=11) for index in range(50))
    *codes, (not_added, _) = await asyncio.gather(*wide, producer.produce("other", version=11))

    assert {code for code, _ in codes} == {NONE}
    assert not_added is E.transaction_abortable
    assert len(reads) < 10


@pytest.mark.parametrize("adds", [True, False])
async def test_confirm_with_a_listener_that_fails_leaves_the_others(brokers: Brokers, adds: bool) -> None:
    producer, coordinator = await brokers.producer().init(), brokers.all[0].context.transactions
    await producer.add(("t", 0))
    keys = coordinator.records.keys("default", "T")
    topic = brokers.all[0].context.catalog.get("default", "t")
    assert topic is not None
    partition, answers = TransactionPartition("t", 0, topic.topic_hex), list[Any]()

    def fail(_: object) -> None:
        answers.append("failed")
        raise MemoryError

    async with asyncio.timeout(MARKER_WAIT_S):
        for count in (2, 4):
            for listener in (fail, answers.append):
                coordinator.confirm(
                    keys, producer.id, producer.epoch, partition, listener, adds=adds, not_added=StoreUnavailable
                )
            while len(answers) < count:
                await asyncio.sleep(0.01)

    assert answers == ["failed", None] * 2


async def test_record_of_many_partitions_is_read_and_written_beside_the_event_loop(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await brokers.create("wide", 2_001)
    producer, threads = await brokers.producer().init(), list[str]()
    for name in ("fields_of", "parse"):
        monkeypatch.setattr(records, name, _noting_threads(getattr(records, name), threads))

    assert set(await producer.add(*(("wide", index) for index in range(2_001)))) == {NONE}
    stored = brokers.all[0].context.transactions.records
    one = await stored.read(stored.keys("default", "T"))

    assert one is not None
    assert len(one.partitions) == 2_001
    main = threading.current_thread().name
    assert [thread == main for thread in threads] == [True, False, False]  # the first one read an empty record


def _noting_threads(call: Callable[..., Any], threads: list[str]) -> Callable[..., Any]:
    def noting(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return call(*args)

    return noting


async def test_idle_id_is_not_forgotten_while_the_clocks_differ(brokers: Brokers) -> None:
    """Redis's clock may be the wrong one: its producer would get INVALID_PRODUCER_ID_MAPPING."""
    await brokers.producer().init()
    coordinator = brokers.all[0].context.transactions
    keys, clock = coordinator.records.keys("default", "T"), brokers.all[0].store.clock
    for difference_ms, remains in ((None, True), (8 * 86_400_000, True), (0, False)):
        clock.difference_ms = difference_ms
        await brokers.all[0].store.command("HSET", keys.transaction, "update_ms", 1)
        await coordinator.handle_deadline(keys)
        assert (await coordinator.records.read(keys) is not None) is remains
