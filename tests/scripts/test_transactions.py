"""Transactions on a real server: scenarios 65 to 79 and 140 to 142 of the specification of logs, by their numbers.

Each runs with one broker, and with two that take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from kio.schema.errors import ErrorCode

from tests.support.transactions import MARKER_WAIT_S, NONE, Brokers, Producer, brokers_of
from tidegate.records.control import MarkerType
from tidegate.settings import Settings
from tidegate.store.store import Store
from tidegate.transactions.completion import Completion

E = ErrorCode


@pytest.fixture(params=[1, 2], ids=["one broker", "two brokers"])
async def brokers(request: pytest.FixtureRequest, store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Brokers with the topic `t` of two partitions; `store` has emptied the server."""
    async with brokers_of(settings, request.param) as opened:
        await opened.create("t", 2)
        yield opened


async def test_log_65_init_producer_id_basics(brokers: Brokers) -> None:
    plain = Producer(brokers, None)
    ids = [await plain.try_init() for _ in range(2)] + [await plain.try_init(timeout_ms=0)]
    assert {(code, epoch) for code, _, epoch in ids} == {(NONE, 0)}
    assert len({producer_id for _, producer_id, _ in ids}) == 3
    assert (await plain.try_init(5, -1))[0] is E.invalid_request
    assert (await plain.try_init(-1, 5))[0] is E.invalid_request
    assert (await Producer(brokers, "").try_init())[0] is E.invalid_request
    producer = brokers.producer()
    assert (await producer.try_init(timeout_ms=0))[0] is E.invalid_transaction_timeout
    assert (await producer.try_init(timeout_ms=900_001))[0] is E.invalid_transaction_timeout
    assert (await producer.try_init(5, -1))[0] is E.invalid_request
    assert (await producer.try_init(-1, 5))[0] is E.invalid_request


async def test_log_66_fencing_by_reinit(brokers: Brokers) -> None:
    first = await brokers.producer().init()
    second = await brokers.producer().init()
    assert (second.id, second.epoch) == (first.id, 1)
    assert await first.add(("t", 0)) == [E.producer_fenced]
    assert await first.add(("t", 0), version=1) == [E.invalid_producer_epoch]


@pytest.mark.parametrize("identified", [False, True])
async def test_log_67_reinit_during_a_transaction(brokers: Brokers, identified: bool) -> None:
    producer = await brokers.producer().init()
    await producer.write("t", 3)
    own = (producer.id, 0) if identified else (-1, -1)
    code, *_ = await producer.try_init(*own)
    assert code is E.concurrent_transactions
    await producer.init(*own)
    assert producer.epoch == (1 if identified else 2)
    found = await brokers.fetch("t", committed=True, end=4)
    assert [(at, one.producer_epoch, one.type) for at, one in found.markers] == [(3, 1, MarkerType.ABORT)]
    assert found.aborted == [(producer.id, 0)]


async def test_log_68_kip_360_retry(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    for epoch in range(5):
        assert await producer.try_init(producer.id, epoch, version=3) == (NONE, producer.id, epoch + 1)
    assert await producer.try_init(producer.id, 4, version=3) == (NONE, producer.id, 5)
    assert (await producer.try_init(producer.id, 3, version=3))[0] is E.invalid_producer_epoch
    assert (await producer.try_init(producer.id, 3))[0] is E.producer_fenced
    assert (await producer.try_init(producer.id + 1, 5))[0] is E.producer_fenced
    assert (await producer.try_init(producer.id, 6))[0] is E.producer_fenced


async def test_log_69_commit_visibility(brokers: Brokers) -> None:
    await _plain(brokers, 10)
    producer = await brokers.producer().init()
    assert await producer.write("t", 3) == 10
    before = await brokers.fetch("t", 10, committed=True, end=13)
    assert (before.last_stable_offset, before.offsets, before.high_watermark) == (10, [], 13)
    assert (await brokers.fetch("t", 10, end=13)).offsets == [10, 11, 12]
    await producer.end(True)
    after = await brokers.fetch("t", 10, committed=True, end=14)
    assert (after.offsets, [at for at, _ in after.markers]) == ([10, 11, 12], [13])
    assert (after.last_stable_offset, after.aborted) == (14, [])


async def test_log_70_abort_index(brokers: Brokers) -> None:
    await _plain(brokers, 10)
    producer = await brokers.producer().init()
    await producer.write("t", 3)
    await producer.end(False)
    await _plain(brokers, 2)
    for offset, aborted in ((0, [(producer.id, 10)]), (13, [(producer.id, 10)]), (14, [])):
        found = await brokers.fetch("t", offset, committed=True, end=16)
        assert found.aborted == aborted, offset
        assert found.batches[-1].next_offset == 16
    assert (await brokers.fetch("t")).aborted is None

    other = await brokers.producer("U").init()
    await other.write("t")  # 16
    await producer.write("t")  # 17
    await producer.end(False)  # 18
    await other.end(False)
    found = await brokers.fetch("t", 16, committed=True, end=20)
    assert found.aborted == [(producer.id, 17), (other.id, 16)]


async def test_log_71_interleaved_transactions(brokers: Brokers) -> None:
    await _plain(brokers, 10)
    first, second = await brokers.producer("P1").init(), await brokers.producer("P2").init()
    await first.write("t")
    await second.write("t", 2)
    await second.end(True)
    found = await brokers.fetch("t", 10, committed=True, end=14)
    assert (found.last_stable_offset, found.batches) == (10, [])
    await first.end(True)
    assert (await brokers.fetch("t", 10, committed=True, end=15)).offsets == [10, 11, 12]


async def test_log_72_waiting_committed_fetch(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")
    waiting = asyncio.create_task(brokers.fetch("t", committed=True, max_wait_ms=60_000))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await producer.end(True)
    assert (await waiting).offsets == [0]


async def test_log_73_add_partitions_all_or_nothing(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    codes = await producer.add(("t", 0), ("no", 0), ("t", 7))
    unknown = E.unknown_topic_or_partition
    assert codes == [E.operation_not_attempted, unknown, unknown]
    assert (await producer.produce("t", version=9))[0] is E.invalid_txn_state


async def test_log_74_produce_outside_the_transaction(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    assert (await producer.produce("t", version=9))[0] is E.invalid_txn_state
    assert (await producer.produce("t", version=11))[0] is E.transaction_abortable
    assert (await producer.produce("t", version=12))[0] is NONE


async def test_log_75_end_states_v1(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    assert (await producer.try_end(True, version=1))[0] is E.invalid_txn_state
    assert await producer.add(("t", 0)) == [NONE]
    assert (await producer.produce("t", version=9))[0] is NONE
    assert (await producer.try_end(True, version=1))[0] is NONE
    assert (await producer.try_end(True, version=1))[0] is NONE
    assert (await producer.try_end(False, version=1))[0] is E.invalid_txn_state
    assert len((await brokers.fetch("t", end=2)).markers) == 1


async def test_log_75_sequences_continue_in_v1(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    for number in range(3):
        assert await producer.add(("t", 0), ("t", 1)) == [NONE, NONE]
        assert (await producer.produce("t", 2, version=7))[0] is NONE
        await producer.end(number != 1, version=1)
    found = await brokers.fetch("t", committed=True, end=9)
    assert (found.offsets, found.aborted) == ([0, 1, 3, 4, 6, 7], [(producer.id, 3)])
    assert [marker.producer_epoch for _, marker in found.markers] == [0, 0, 0]
    never_written = await brokers.fetch("t", index=1, committed=True, end=3)
    assert (len(never_written.markers), never_written.aborted) == (3, [])


async def test_log_76_end_v2_bumps_the_epoch(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")
    assert await producer.try_end(True) == (NONE, producer.id, 1)
    assert await producer.try_end(True) == (NONE, producer.id, 1)
    assert [one.producer_epoch for _, one in (await brokers.fetch("t", end=2)).markers] == [1]
    assert await producer.try_end(False, epoch=1) == (NONE, producer.id, 2)
    assert len((await brokers.fetch("t")).markers) == 1


async def test_log_77_end_v2_opposite_retry(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")
    await producer.try_end(True)
    assert (await producer.try_end(False))[0] is E.invalid_txn_state
    assert (await producer.try_end(True, epoch=1))[0] is E.invalid_txn_state
    assert (await producer.try_end(True, epoch=3))[0] is E.producer_fenced


async def test_log_78_late_write_v2(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")
    await producer.try_end(True)
    await brokers.until_marked("t", 1)
    assert (await producer.produce("t", version=12, epoch=0, sequence=1))[0] is E.invalid_producer_epoch
    assert (await producer.produce("t", version=9, epoch=0, sequence=1))[0] is E.invalid_producer_epoch
    assert (await producer.produce("t", epoch=1, sequence=1))[0] is E.out_of_order_sequence_number
    assert (await producer.produce("t", epoch=1, sequence=0))[0] is NONE


async def test_log_79_epoch_exhaustion(brokers: Brokers, store: Store) -> None:
    producer = await brokers.producer().init()
    keys = brokers.all[0].context.transactions.records.keys("default", "T")
    await store.command("HSET", keys.transaction, "epoch", 32_766)
    producer.epoch = 32_766
    await producer.write("t")
    code, new_id, epoch = await producer.try_end(True)
    assert (code, epoch) == (NONE, 0)
    assert new_id != producer.id
    assert [one.producer_epoch for _, one in (await brokers.fetch("t", end=2)).markers] == [32_767]
    assert await producer.try_end(True) == (NONE, new_id, 0)
    assert (await producer.try_end(False))[0] is E.invalid_txn_state
    assert (await producer.produce("t", epoch=32_766, sequence=1))[0] is E.invalid_producer_id_mapping
    producer.id, producer.epoch = new_id, 0
    producer.sequences.clear()
    await producer.write("t")
    await producer.end(True)
    assert (await brokers.fetch("t", committed=True, end=4)).offsets == [0, 2]


async def test_log_79_next_producer_id_waits_for_the_markers(
    brokers: Brokers, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await brokers.producer().init()
    keys = brokers.all[0].context.transactions.records.keys("default", "T")
    await store.command("HSET", keys.transaction, "epoch", 32_766)
    producer.epoch = 32_766
    await producer.write("t")

    with monkeypatch.context() as patched:
        patched.setattr(Completion, "complete", _writes_no_marker)
        await producer.end(True)
        assert producer.epoch == 0
        assert await producer.add(("t", 0)) == [E.concurrent_transactions]
        assert (await producer.produce("t"))[0] is E.concurrent_transactions
        assert (await producer.produce("t", version=9))[0] is E.not_enough_replicas
        assert await producer.add_offsets("g") is E.concurrent_transactions
        assert await producer.commit_offset("g", 1, version=3) is E.concurrent_transactions
        assert await producer.commit_offset("g", 1) is E.concurrent_transactions
        for version in (4, 5):
            assert (await producer.try_end(False, version=version))[0] is E.concurrent_transactions
        assert (await producer.try_init(producer.id, 0))[0] is E.concurrent_transactions
        other = producer.id + 1
        assert (await producer.try_init(other, 0))[0] is E.concurrent_transactions
        assert (await producer.try_end(False, producer_id=other))[0] is E.invalid_producer_id_mapping

    async with asyncio.timeout(MARKER_WAIT_S):
        while (code := (await producer.produce("t"))[0]) is E.concurrent_transactions:
            await asyncio.sleep(0.02)
    assert code is NONE
    assert (await producer.try_end(True, producer_id=-1))[0] is E.invalid_producer_id_mapping
    await producer.end(True)
    assert (await brokers.fetch("t", committed=True, end=4)).offsets == [0, 2]


async def _writes_no_marker(*_: object, **__: object) -> None:
    """A completion that cannot write yet."""


async def test_log_79_no_producer_gets_the_last_epoch(brokers: Brokers, store: Store) -> None:
    """A transaction of the last but one epoch is aborted for its producer, which continues with another id."""
    producer = await brokers.producer().init()
    keys = brokers.all[0].context.transactions.records.keys("default", "T")
    for continued in ("by InitProducerId", "by EndTxn"):
        await store.command("HSET", keys.transaction, "epoch", 32_766)
        producer.epoch = 32_766
        await producer.write("t")
        assert (await producer.try_init())[0] is E.concurrent_transactions  # aborts it, as a time-out does
        await brokers.until_marked("t", 1 if continued == "by InitProducerId" else 3)
        for _ in range(2):  # the first reply is lost
            if continued == "by InitProducerId":
                code, new_id, epoch = await _retried(lambda: producer.try_init(producer.id, producer.epoch))
            else:
                code, new_id, epoch = await _retried(lambda: producer.try_end(False))
            assert (code, epoch) == (NONE, 0)
            assert new_id != producer.id
        producer.id, producer.epoch = new_id, 0
        producer.sequences.clear()
        await producer.write("t")
        await producer.end(True)


async def _retried(ask: Callable[[], Awaitable[tuple[ErrorCode, int, int]]]) -> tuple[ErrorCode, int, int]:
    """The answer, asked for again while the transaction is being ended."""
    while (answer := await ask())[0] is E.concurrent_transactions:
        await asyncio.sleep(0.02)
    return answer


async def test_log_54_list_offsets_committed(brokers: Brokers) -> None:
    await _plain(brokers, 10)
    producer = await brokers.producer().init()
    await producer.write("t", 5)
    assert await brokers.list_offset("t") == 15
    assert await brokers.list_offset("t", committed=True) == 10


async def test_log_140_first_sequence(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    assert (await producer.produce("t", version=12, sequence=5))[0] is E.out_of_order_sequence_number
    assert await producer.add(("t", 1)) == [NONE]
    assert (await producer.produce("t", index=1, version=9, sequence=5))[0] is NONE


async def test_log_140_first_sequence_behind_a_marker(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    assert await producer.add(("t", 0)) == [NONE]
    await producer.end(True, version=1)
    assert await producer.add(("t", 0)) == [NONE]
    assert (await producer.produce("t", version=9, sequence=5))[0] is E.out_of_order_sequence_number
    assert (await producer.produce("t", version=9, sequence=0))[0] is NONE


async def test_log_141_mixed_batches(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")
    assert (await producer.produce("t", sequence=1, plain=True))[0] is E.invalid_txn_state
    assert (await producer.produce("t", sequence=1, transactional_id="other"))[0] is NONE
    code, _ = await producer.produce("t", index=1, sequence=0, transactional_id="other")
    assert code is E.invalid_producer_id_mapping


async def test_log_142_version_mix_at_the_end(brokers: Brokers) -> None:
    producer = await brokers.producer().init()
    await producer.write("t")
    assert (await producer.try_end(True, version=4))[0] is NONE
    assert await producer.add(("t", 0)) == [NONE]
    assert (await producer.produce("t", version=9))[0] is NONE
    assert await producer.try_end(True) == (NONE, producer.id, 1)


async def _plain(brokers: Brokers, count: int) -> None:
    await brokers.clients[0].produce("t", count)
