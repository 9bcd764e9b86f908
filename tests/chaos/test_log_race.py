"""Four brokers race on one partition while their connections are cut at random points.

TIDEGATE_RACE_APPENDS sets how many appends there are, TIDEGATE_RACE_SEED which race it is.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from tests.support.logs import TOPIC, append_later, batch, batches_of, broker, given_log, read
from tests.support.proxy import LinkFault, Proxy
from tests.support.valkey import ValkeyServer
from tidegate.errors import (
    KafkaError,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    StoreUnavailable,
    UnknownTopicOrPartition,
)
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.log.partitions import delete_partition
from tidegate.records.batch import Batch
from tidegate.records.record import read_records
from tidegate.settings import Settings
from tidegate.store.store import Store

BROKERS = 4
IDEMPOTENT_IN_FLIGHT = 5


@dataclass
class Race:
    """What is running, and what was acknowledged: value of a batch's first record -> base offset."""

    random: random.Random
    logs: list[PartitionLog]
    left: int
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    stale: list[str] = field(default_factory=list)

    def take(self) -> bool:
        """One more append, if there is one left."""
        self.left -= 1
        return self.left >= 0


async def _plain_producer(race: Race, name: int) -> None:
    """No idempotence: every answer is kept, an unknown outcome is not repeated."""
    log, number = race.logs[name], 0
    while race.take():
        value = b"plain-%d-%d" % (name, number)
        number += 1
        try:
            answer = await append_later(log, batch(count=race.random.randint(1, 5), value=value))
            race.acknowledged[value] = answer.base_offset
        except RequestTimedOut:
            race.unknown.add(value)
        except StoreUnavailable:  # it is not in the log
            continue


async def _idempotent_producer(race: Race) -> None:
    """Up to five batches from the oldest without an answer, each to whichever broker, repeated until it has one."""
    sequence = 0
    window: deque[asyncio.Task[None]] = deque()

    async def deliver(item: Batch, value: bytes) -> None:
        while True:
            log = race.random.choice(race.logs)
            try:
                answer = await append_later(log, item)
                if race.random.random() < 0.1:  # its reply was lost on the way to the client: sent again
                    again = await append_later(race.random.choice(race.logs), item)
                    assert again.base_offset == answer.base_offset
                break
            except (StoreUnavailable, RequestTimedOut):
                continue
            except OutOfOrderSequenceNumber:
                race.stale.append(f"OUT_OF_ORDER for {value!r}")
                return
        race.acknowledged[value] = answer.base_offset

    while race.take():
        if len(window) == IDEMPOTENT_IN_FLIGHT:
            await window.popleft()
        count, value = race.random.randint(1, 5), b"idempotent-%d" % sequence
        task = asyncio.create_task(
            deliver(batch(count=count, value=value, producer_id=77, epoch=0, sequence=sequence), value)
        )
        window.append(task)
        sequence += count
    await asyncio.gather(*window)


async def _consumer(race: Race, log: PartitionLog, done: asyncio.Event, observed: list[bytes]) -> None:
    """Reads on from offset 0 and never meets a gap, nor an offset that is out of range before the log is trimmed."""
    offset, changed = 0, asyncio.Event()
    remove = log.on_change(changed.set)
    while not (done.is_set() and race.left < -BROKERS and offset >= (await _end(log))):
        changed.clear()
        try:
            found = await read(log, offset, 64 << 10)
        except StoreUnavailable:
            continue
        except OffsetOutOfRange as error:
            race.stale.append(f"OFFSET_OUT_OF_RANGE: {error}")
            break
        for item in batches_of(found):
            if item.base_offset != offset:
                race.stale.append(f"a consumer expected {offset}, found {item.base_offset}")
            item.verify_crc()
            observed.append(read_records(item)[0].value or b"")
            offset = item.next_offset
        if not found.size and not done.is_set():
            try:
                await asyncio.wait_for(changed.wait(), 0.2)
            except TimeoutError:
                continue
    remove()


async def _end(log: PartitionLog) -> int:
    while True:
        try:
            return (await log.end_offset()).log_end_offset
        except StoreUnavailable:
            continue


async def _delete_records(log: PartitionLog, offset: int) -> int:
    while True:
        try:
            return await log.delete_records(offset)
        except StoreUnavailable:  # a cut that was armed before
            continue


async def _cutter(race: Race, proxies: list[Proxy]) -> None:
    while True:
        await asyncio.sleep(race.random.uniform(0.005, 0.08))
        carrying = race.random.choice([b"", b"XADD", b"XADD"])  # most of them where appends are on their way
        race.random.choice(proxies).cut(race.random.choice(list(LinkFault)), carrying=carrying)


async def _stored(store: Store) -> list[tuple[int, int, bytes]]:
    """(base, end, value) of every batch in the stream, read without the product's own reader."""
    keys = store.log_keys(TOPIC.org, TOPIC.name, 0, TOPIC.topic_hex)
    batches = []
    for entry_id, fields in await store.command("XRANGE", keys.log, "-", "+"):
        base = int(entry_id.split(b"-")[0])
        for i in range(2, len(fields), 2):
            item = Batch.parse(fields[i + 1])
            batches.append((base, base + item.record_count, read_records(item)[0].value or b""))
            base += item.record_count
    return batches


async def test_append_brokers_race_on_one_partition_with_dropped_connections(
    valkey: ValkeyServer, settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.admission.SEQUENCE_GAP_TIMEOUT_MS", 30_000)
    monkeypatch.setattr("tidegate.log.progress.SNAPSHOT_ENTRIES", 40)
    monkeypatch.setattr("tidegate.log.services.CACHE_BYTES_MAX", 1 << 16)
    appends = int(os.environ.get("TIDEGATE_RACE_APPENDS", "1200"))
    seed = int(os.environ.get("TIDEGATE_RACE_SEED", str(random.SystemRandom().randrange(1 << 32))))
    print(f"TIDEGATE_RACE_SEED={seed} TIDEGATE_RACE_APPENDS={appends}")
    await given_log(store)
    async with AsyncExitStack() as stack:
        proxies = [Proxy(valkey.port, seed + i) for i in range(BROKERS)]
        brokers: list[Logs] = []
        for proxy in proxies:
            await proxy.start()
            stack.push_async_callback(proxy.close)
            brokers.append(await stack.enter_async_context(broker(settings, redis_url=proxy.url)))
        race = Race(random.Random(seed), [logs.partition(TOPIC, 0) for logs in brokers], appends)
        done, observed = asyncio.Event(), list[bytes]()
        cutter = asyncio.create_task(_cutter(race, proxies))
        consumer = asyncio.create_task(_consumer(race, race.logs[1], done, observed))
        producers = [_plain_producer(race, name) for name in range(BROKERS)] + [_idempotent_producer(race)]
        await asyncio.gather(*producers)
        cutter.cancel()
        done.set()
        await asyncio.wait_for(consumer, 100)
        stored = await _stored(store)

        assert race.stale == []
        end = 0
        for base, batch_end, _ in stored:
            assert base == end, "a gap or an overlap"
            end = batch_end
        places: dict[bytes, list[int]] = {}
        for base, _, value in stored:
            places.setdefault(value, []).append(base)
        for value, base in race.acknowledged.items():
            assert places.get(value) == [base], f"{value!r} acknowledged at {base}, stored at {places.get(value)}"
        assert set(places) - set(race.acknowledged) <= race.unknown
        assert all(len(bases) == 1 for bases in places.values()), "a retry was stored twice"
        assert observed == [value for _, _, value in stored]
        print(f"{len(stored)} batches, {sum(p.trims for p in proxies)} cuts, {len(race.unknown)} unknown outcomes")

        await _trims_then_deletion(race, store, end)


async def _trims_then_deletion(race: Race, store: Store, end: int) -> None:
    """Trims by several brokers at once, appends between them, then the topic goes while appends run."""
    marks = sorted(race.random.sample(range(1, end), 8))
    starts = await asyncio.gather(*(_delete_records(race.logs[i % BROKERS], mark) for i, mark in enumerate(marks)))
    assert max(starts) == marks[-1]
    for log in race.logs:
        assert await _end(log) == end
        known = await log.end_offset()
        assert (known.log_start_offset, known.log_end_offset) == (marks[-1], end)
    answers = await asyncio.gather(*(append_later(log, batch()) for log in race.logs))
    assert sorted(answer.base_offset for answer in answers) == list(range(end, end + BROKERS))

    late = [append_later(log, batch()) for log in race.logs for _ in range(5)]
    await delete_partition(store, race.logs[0].keys)
    late += [append_later(log, batch()) for log in race.logs]
    outcomes = await asyncio.gather(*late, return_exceptions=True)
    assert all(not isinstance(o, Exception) or isinstance(o, UnknownTopicOrPartition) for o in outcomes), outcomes
    assert isinstance(outcomes[-1], KafkaError)
    assert await store.command("EXISTS", race.logs[0].keys.log) == 0
