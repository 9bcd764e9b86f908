"""Compaction of a log with transactions: scenario 138 of the specification."""

from __future__ import annotations

import asyncio

import pytest

from tests.support import logs
from tests.support import transactions as support
from tests.support.transactions import Brokers, brokers_of
from tidegate.log.compaction import compact
from tidegate.log.partition import PartitionLog
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.control import MarkerType
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.store import Store

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
CLEANED_AT_ONCE = COMPACTED | {"delete.retention.ms": "0"}


def log_of(brokers: Brokers, number: int) -> PartitionLog:
    context = brokers.all[number].context
    topic = context.catalog.get("default", "t")
    assert topic is not None
    log = context.logs.partition(topic, 0)
    assert isinstance(log, PartitionLog)
    return log


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """Keys and values of the records that producers write next."""
    values: list[tuple[bytes, bytes]] = []

    def keyed(count: int, producer_id: int, epoch: int, sequence: int) -> bytes:
        taken = [values.pop(0) for _ in range(count)]
        return build_batch(
            [NewRecord(value, key, 1_000) for key, value in taken],
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
        )  # fmt: skip

    monkeypatch.setattr(support, "batch_bytes", keyed)
    return values


async def test_log_138_compaction_keeps_committed_values_and_markers(
    store: Store, settings: Settings, values: list[tuple[bytes, bytes]]
) -> None:
    async with brokers_of(settings, 2) as brokers:
        await brokers.create("t", 1, **COMPACTED)
        producer = await brokers.producer().init()
        for number, (is_commit, pairs) in enumerate(
            [
                (True, [(b"x", b"1"), (b"y", b"1")]),
                (False, [(b"x", b"2")]),
                (True, [(b"y", b"2")]),
                (True, [(b"end", b"1")]),
            ],
            1,
        ):
            values += pairs
            await producer.write("t", len(pairs))
            await producer.end(is_commit)
            await brokers.until_marked("t", number)
        values += [(b"y", b"3")]
        await producer.write("t")  # open: it must not replace y=2

        log = log_of(brokers, 0)
        done = await compact(log, (await log.refresh()).end)

        assert done is not None
        assert done.offset == 9  # the last stable offset
        for number in range(2):
            await log_of(brokers, number).refresh()
        for _ in brokers.all:
            found = await brokers.fetch("t", committed=True)
            read = {
                one.key: (one.offset, one.value)
                for batch in found.batches
                if not batch.is_control
                for one in read_records(batch)
            }
            assert read == {b"x": (0, b"1"), b"y": (5, b"2"), b"end": (7, b"1")}
            kinds = [(offset, marker.type) for offset, marker in found.markers]
            commit, abort = MarkerType.COMMIT, MarkerType.ABORT
            assert kinds == [(2, commit), (4, abort), (6, commit), (8, commit)]
            assert found.aborted == [(producer.id, 3)]
            assert found.last_stable_offset == 9
        await producer.end(True)
        await brokers.until_marked("t", 5)
        assert (await brokers.fetch("t", committed=True, end=11)).last_stable_offset == 11


async def test_compaction_drops_markers_without_records(
    store: Store, settings: Settings, values: list[tuple[bytes, bytes]]
) -> None:
    """In the compaction after that of the records; not before `delete.retention.ms` is over.

    An abort marker goes one compaction later: first every broker forgets the transaction.
    """
    async with brokers_of(settings, 2) as brokers:
        await brokers.create("t", 1, **COMPACTED)
        producer, log = await brokers.producer().init(), log_of(brokers, 0)

        async def transaction(number: int, *, is_commit: bool = True) -> None:
            values.append((b"x", b"%d" % number))
            await producer.write("t")
            await producer.end(is_commit)
            await brokers.fetch("t", end=2 * number + 2)

        async def markers_after_compaction() -> list[tuple[int, MarkerType]]:
            await compact(log, (await log.refresh()).end)
            for number in range(2):
                await log_of(brokers, number).refresh()
            found = await brokers.fetch("t", committed=True)
            return [(offset, marker.type) for offset, marker in found.markers]

        commit, abort = MarkerType.COMMIT, MarkerType.ABORT
        for number in range(3):
            await transaction(number, is_commit=number != 1)
        kept = [(1, commit), (3, abort), (5, commit)]
        assert await markers_after_compaction() == kept
        await transaction(3)
        assert await markers_after_compaction() == [*kept, (7, commit)]
        assert (await brokers.fetch("t", committed=True)).aborted == []

        await brokers.all[0].context.catalog.alter_configs(
            "default", "t", lambda now: now | {"delete.retention.ms": "0"}
        )
        log = log_of(brokers, 0)
        await transaction(4)
        assert await markers_after_compaction() == [(7, commit), (9, commit)]
        await transaction(5)
        assert await markers_after_compaction() == [(9, commit), (11, commit)]

        values.append((b"x", b"6"))
        await producer.write("t")
        await store.command("DEL", log.keys.producers)  # every broker reads the log from its start
        for broker in brokers.all:
            broker.context.logs.drop_states()
            found = await brokers.fetch("t", committed=True, end=13)
            read = [one.value for batch in found.batches if not batch.is_control for one in read_records(batch)]
            assert (read, found.last_stable_offset) == ([b"5"], 12)


async def test_read_by_a_state_of_an_earlier_log_version_names_no_transaction_without_marker(
    store: Store, settings: Settings, values: list[tuple[bytes, bytes]]
) -> None:
    """A reader that found no abort marker would drop what its producer committed later."""
    async with brokers_of(settings, 2) as brokers:
        await brokers.create("t", 1, **CLEANED_AT_ONCE)
        producer, log, late = await brokers.producer().init(), log_of(brokers, 0), log_of(brokers, 1)
        for number, is_commit in enumerate([True, False, True, True, True, True]):
            values.append((b"%d" % number, b""))
            await producer.write("t")
            await producer.end(is_commit)
            await brokers.fetch("t", end=2 * number + 2)
            if number == 2:
                earlier = await late.refresh()
            if number > 2:
                await compact(log, (await log.refresh()).end)
        assert len(earlier.transactions.aborted) == 1
        await late.refresh()

        late.state, earlier.verified_at = earlier, asyncio.get_running_loop().time()
        late.pages.clear()
        found = await logs.read(late, 0, committed=True)

        assert not found.aborted
        assert [batch.base_offset for batch in logs.batches_of(found) if not batch.is_control] == [0, 4, 6, 8, 10]


async def test_compaction_keeps_aborted_transactions_that_an_archive_may_contain(
    store: Store, settings: Settings, values: list[tuple[bytes, bytes]]
) -> None:
    async with brokers_of(settings, 1) as brokers:
        await brokers.create("t", 1, **CLEANED_AT_ONCE)
        producer, log = await brokers.producer().init(), log_of(brokers, 0)
        await store.command("HSET", log.keys.archive, "start", 0, "end", 2)
        for number, is_commit in enumerate([False, True, True, True]):
            values.append((b"x", b"%d" % number))
            await producer.write("t")
            await producer.end(is_commit)
            await brokers.fetch("t", end=2 * number + 2)
            await compact(log, (await log.refresh()).end)

        found = await brokers.fetch("t", committed=True)

        assert found.aborted == [(producer.id, 0)]
        assert found.markers[0][0] == 1
