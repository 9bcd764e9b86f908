"""The nine rules that make a plain conditional XADD a safe append (design, offsets and the log)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tests.support.logs import TOPIC, append, append_later, batch, broker, given_log, read, read_all
from tests.support.proxy import LinkFault, Proxy
from tests.support.valkey import ValkeyServer
from tidegate.cli.doctor import probe_redis, redis_checks
from tidegate.cli.doctor.finding import Severity
from tidegate.cli.places import RedisServer
from tidegate.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from tidegate.log.failover_epoch import ASSIGN_FAILOVER_EPOCH
from tidegate.log.loading import LogLost
from tidegate.log.progress import NOTE_TRUNCATION
from tidegate.settings import Settings
from tidegate.store.store import Store

_RECORDED_S = 20.0


@pytest.fixture
async def proxy(valkey: ValkeyServer) -> AsyncIterator[Proxy]:
    opened = Proxy(valkey.port)
    await opened.start()
    yield opened
    await opened.close()


async def _entry_ids(store: Store) -> list[bytes]:
    keys = store.log_keys(TOPIC.org, TOPIC.name, 0, TOPIC.topic_hex)
    return [item[0] for item in await store.command("XRANGE", keys.log, "-", "+")]


async def test_rule_1_the_id_contains_the_base(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as ours, broker(settings) as theirs:
        log, other = ours.partition(TOPIC, 0), theirs.partition(TOPIC, 0)
        await asyncio.gather(log.ensure(), other.ensure())
        assert (await append(log, count=3)).base_offset == 0
        # With a count or a last offset in the id, this longer batch from an old state would slip past.
        assert (await append(other, count=10)).base_offset == 3

    assert await _entry_ids(store) == [b"0-1", b"3-1"]


async def test_rule_2_one_append_in_flight_and_queued_batches_are_sent_together(
    store: Store, settings: Settings
) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await log.ensure()
        first = append_later(log, batch())
        await asyncio.sleep(0)  # the entry is on its way
        later = [append_later(log, batch()) for _ in range(20)]
        answers = await asyncio.gather(first, *later)

    assert [answer.base_offset for answer in answers] == list(range(21))
    assert await _entry_ids(store) == [b"0-1", b"1-1"]


async def test_rule_2_a_refused_entry_is_judged_again_batch_by_batch(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as ours, broker(settings) as theirs:
        log, other = ours.partition(TOPIC, 0), theirs.partition(TOPIC, 0)
        await asyncio.gather(log.ensure(), other.ensure())
        sent = batch(producer_id=7, epoch=0, sequence=0)
        await append(other, sent)
        answers = await asyncio.gather(
            append_later(log, batch()),
            append_later(log, sent),
            append_later(log, batch(producer_id=7, epoch=0, sequence=1)),
        )

    assert [answer.base_offset for answer in answers] == [1, 0, 2]


async def test_rule_3_an_append_to_a_deleted_log_makes_no_stream(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        await store.command("DEL", log.keys.log)
        with pytest.raises(LogLost):
            await append(log)
        assert await store.command("EXISTS", log.keys.log) == 0


@pytest.mark.parametrize("how", list(LinkFault))
@pytest.mark.parametrize("producer_id", [-1, 9])
async def test_rule_4_an_unknown_outcome_is_read_from_the_tail(
    store: Store, settings: Settings, proxy: Proxy, how: LinkFault, producer_id: int
) -> None:
    await given_log(store)
    async with broker(settings, redis_url=proxy.url) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        sent = batch(count=2, producer_id=producer_id, epoch=0, sequence=0)
        for place in range(5):  # whichever lane that is
            proxy.cut(how, place % max(1, len(proxy._pipes)))
        answer = await asyncio.wait_for(append_later(log, sent), 40)
        after = await asyncio.wait_for(append_later(log, batch()), 40)
        await asyncio.sleep(2 * proxy.late_s)
        found = await read_all(log)

    assert (answer.base_offset, after.base_offset) == (1, 3)
    assert [item.base_offset for item in found] == [0, 1, 3]


async def test_rule_4_an_own_entry_below_a_newer_snapshot_is_found(
    store: Store, settings: Settings, proxy: Proxy
) -> None:
    await given_log(store)
    async with broker(settings, redis_url=proxy.url) as ours, broker(settings) as theirs:
        log, other = ours.partition(TOPIC, 0), theirs.partition(TOPIC, 0)
        await append(log)
        proxy.cut_all(LinkFault.DROP_REPLY)
        proxy.refusing = True
        answer = append_later(log, batch())
        await asyncio.sleep(0.05)
        await append(other, count=5)
        await other.progress.save_now(await other.load())
        proxy.refusing = False

        assert (await asyncio.wait_for(answer, 30)).base_offset == 1
        assert [item.base_offset for item in await read_all(log)] == [0, 1, 2]


async def test_rule_5_the_table_of_producers_follows_from_the_log(store: Store, settings: Settings) -> None:
    await given_log(store)
    sent = [batch(count=2, producer_id=7, epoch=0, sequence=2 * i) for i in range(6)]
    async with broker(settings) as ours, broker(settings) as theirs:
        log, other = ours.partition(TOPIC, 0), theirs.partition(TOPIC, 0)
        for i, item in enumerate(sent):
            assert (await append(log if i % 2 else other, item)).base_offset == 2 * i
        assert (await append(log, sent[5])).base_offset == 10
        assert (await append(other, sent[1])).base_offset == 2
        with pytest.raises(OutOfOrderSequenceNumber):  # older than the last five
            await append(log, sent[0])
        await log.progress.save_now(await log.load())
        async with broker(settings) as third:
            assert (await append(third.partition(TOPIC, 0), sent[3])).base_offset == 6

    assert len(await _entry_ids(store)) == 6


async def test_rule_6_a_refusal_is_given_after_a_refresh(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given_log(store)
    async with broker(settings) as ours, broker(settings) as theirs:
        log, other = ours.partition(TOPIC, 0), theirs.partition(TOPIC, 0)
        await asyncio.gather(log.ensure(), other.ensure())
        await append(log, producer_id=7, epoch=0, sequence=0)
        for sequence in range(1, 4):
            await append(other, producer_id=7, epoch=0, sequence=sequence)
        with monkeypatch.context() as patch:  # it does not wait for the batches before it: they are in the log
            patch.setattr("tidegate.log.admission.SEQUENCE_GAP_TIMEOUT_MS", 600_000)
            assert (await append(log, producer_id=7, epoch=0, sequence=4)).base_offset == 4
        assert (await read(other, 5)).size == 0  # above the end that the other knows
        assert (await other.end_offset()).high_watermark == 5
        await append(log, producer_id=7, epoch=3, sequence=0)
        with pytest.raises(InvalidProducerEpoch):
            await append(other, producer_id=7, epoch=2, sequence=0)


async def test_rule_6_nothing_is_refused_for_what_is_not_in_the_log_yet(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        old = batch(producer_id=7, epoch=0, sequence=0)
        await append(log, old)
        answers = await asyncio.gather(
            append_later(log, batch(producer_id=7, epoch=1, sequence=0)),
            append_later(log, batch(producer_id=7, epoch=1, sequence=0)),
            append_later(log, batch(producer_id=7, epoch=0, sequence=1)),
            append_later(log, batch(producer_id=7, epoch=1, sequence=1)),
            return_exceptions=True,
        )

    offsets = [answer if isinstance(answer, BaseException) else answer.base_offset for answer in answers]
    assert offsets[:2] == [1, 1] and offsets[3] == 2
    assert isinstance(offsets[2], InvalidProducerEpoch)


async def test_rule_7_a_gap_waits_for_the_missing_batch(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.admission.SEQUENCE_GAP_TIMEOUT_MS", 600_000)  # however slow the machine is
    await given_log(store)
    async with broker(settings) as ours, broker(settings) as theirs:
        log, other = ours.partition(TOPIC, 0), theirs.partition(TOPIC, 0)
        await append(other, producer_id=7, epoch=0, sequence=0)
        early = append_later(log, batch(producer_id=7, epoch=0, sequence=2))
        first_ever = append_later(log, batch(producer_id=8, epoch=0, sequence=1))
        await asyncio.sleep(0.1)
        assert not early.done() and not first_ever.done()
        await append(other, producer_id=7, epoch=0, sequence=1)
        await append(other, producer_id=8, epoch=0, sequence=0)

        assert (await early).base_offset > 1
        assert (await first_ever).base_offset > 2
        assert [(b.producer_id, b.base_sequence) for b in await read_all(log) if b.producer_id == 8] == [(8, 0), (8, 1)]


async def test_rule_7_a_gap_that_stays_is_refused(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.admission.SEQUENCE_GAP_TIMEOUT_MS", 150)
    await given_log(store)
    async with broker(settings) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log, producer_id=7, epoch=0, sequence=0)
        began = time.monotonic()
        with pytest.raises(OutOfOrderSequenceNumber):
            await append(log, producer_id=7, epoch=0, sequence=2)
        assert time.monotonic() - began > 0.14
        # Nothing is known of this one, and nothing comes before it: its state had expired.
        assert (await append(log, producer_id=8, epoch=0, sequence=5)).base_offset == 1


async def test_log_120_lost_tail_is_fenced_by_a_new_leader_epoch() -> None:
    """Scenario 120 of logs."""
    server = ValkeyServer(["--enable-debug-command", "yes"])
    store = Store(Settings(redis_url=server.url))
    try:
        await store.start()
        await given_log(store)
        async with broker(store.settings) as logs:
            log = logs.partition(TOPIC, 0)
            await append(log, count=4)
            held = await store.command("DUMP", log.keys.log)
            await append(log, count=3)
            assert (await log.ensure()).leader_epoch == 0
            # What a fail-over does that lost the last entry.
            await store.command("RESTORE", log.keys.log, 0, held, "REPLACE")
            await store.command("DEBUG", "CHANGE-REPL-ID")
            await store.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            with capture_logs() as events:
                answer = await append(log, count=2)
            known = await log.end_offset()
            newest = answer.leader_epoch
            ends = [await log.epoch_end(epoch) for epoch in (0, newest, newest + 1)]
            first, second = await read_all(log)

        assert answer.base_offset == 4 and newest > 0
        [lost] = [one for one in events if one["event"] == "log_truncated"]
        assert (lost["log"], lost["end"], lost["lost_records"]) == (log.keys.log, 4, 3)
        assert (known.log_end_offset, known.leader_epoch) == (6, newest)
        assert ends == [(0, 4), (newest, 6), (-1, -1)]
        assert (first.leader_epoch, second.leader_epoch) == (0, newest)
    finally:
        await store.close()
        server.stop()


async def test_rule_8_truncation_is_recorded_from_where_the_tail_was_lost() -> None:
    """Also where another broker has appended beyond the lost records before this one loads the log again."""
    server = ValkeyServer(["--enable-debug-command", "yes"])
    store = Store(Settings(redis_url=server.url))
    try:
        await store.start()
        await given_log(store)
        async with broker(store.settings) as logs, broker(store.settings) as others:
            log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
            await append(log, count=4)
            held = await store.command("DUMP", log.keys.log)
            await append(log, count=3)
            await store.command("RESTORE", log.keys.log, 0, held, "REPLACE")
            await store.command("DEBUG", "CHANGE-REPL-ID")
            await store.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await append(other, count=9)
            with capture_logs() as events:
                await append(log)
            epoch = logs.failover_epochs.number
            async with asyncio.timeout(_RECORDED_S):
                while (recorded := await store.command("HGET", log.keys.meta, "truncated")) is None:
                    await asyncio.sleep(0.05)
        record = {"id": TOPIC.topic_hex, "partitions": 1, "wanted": 1, "format": "batch", "state": "ready", "config": 0}
        await store.command("HSET", store.cluster_keys.topics, "default/orders", json.dumps(record))
        await store.command("HSET", store.cluster_keys.info, "cluster_id", "ours")
        place = RedisServer(store.settings)
        probe = await asyncio.to_thread(probe_redis.probe, place)
        (finding,) = [one for one in redis_checks.judge(probe, None) if one.kind == "log-truncated"]

        [lost] = [one for one in events if one["event"] == "log_truncated"]
        assert (lost["end"], lost["lost_records"]) == (4, 3)
        assert (logs.lost_records, others.lost_records) == (3, 0)
        assert recorded.split()[:3] == [b"4", b"3", b"%d" % (epoch or 0)]
        assert (finding.where, finding.severity) == ("orders", Severity.WARNING)
        assert finding.evidence[0].startswith("partition 0: 3 records from offset 4, at 20")
    finally:
        await store.close()
        server.stop()


async def test_note_truncation_keeps_the_largest_loss_of_the_latest_failover(store: Store) -> None:
    await given_log(store)
    keys = store.log_keys(TOPIC.org, TOPIC.name, 0, TOPIC.topic_hex)

    async def note(end: int, lost_records: int, failover_epoch: int) -> list[int]:
        await store.run(NOTE_TRUNCATION, [keys.meta], end, lost_records, failover_epoch)
        return [int(one) for one in (await store.command("HGET", keys.meta, "truncated")).split()[:3]]

    assert await note(10, 5, 2) == [10, 5, 2]
    assert await note(12, 2, 2) == [10, 5, 2]  # another broker knew less
    assert await note(10, 8, 2) == [10, 8, 2]
    assert await note(9, 1, 2) == [9, 9, 2]
    assert await note(30, 1, 1) == [9, 9, 2]  # of an earlier fail-over, late
    assert await note(20, 1, 3) == [20, 1, 3]
    assert int((await store.command("HGET", keys.meta, "truncated")).split()[3]) > 1_700_000_000_000


async def test_rule_8_another_primary_is_noticed_on_an_old_connection() -> None:
    server = ValkeyServer(["--enable-debug-command", "yes"])
    store = Store(Settings(redis_url=server.url))
    try:
        await store.start()
        await given_log(store)
        async with broker(store.settings) as logs, broker(store.settings) as others:
            log, other = logs.partition(TOPIC, 0), others.partition(TOPIC, 0)
            await append(log)
            await other.ensure()
            await store.command("DEBUG", "CHANGE-REPL-ID")
            async with asyncio.timeout(_RECORDED_S):
                for one in (log, other):
                    while one.known() is not None:
                        await asyncio.sleep(0.05)
            answers = await asyncio.gather(append_later(log, batch()), append_later(other, batch()))

        first, second = [answer.leader_epoch for answer in answers]
        assert first == second > 0
    finally:
        await store.close()
        server.stop()


async def test_rule_8_a_reconnection_alone_keeps_the_epoch(store: Store, settings: Settings, proxy: Proxy) -> None:
    await given_log(store)
    async with broker(settings, redis_url=proxy.url) as logs:
        log = logs.partition(TOPIC, 0)
        await append(log)
        before = logs.failover_epochs.number
        proxy.cut_all()
        await asyncio.sleep(0.01)
        assert log.known() is None
        answer = await append(log)

        assert (answer.base_offset, answer.leader_epoch) == (1, 0)
        assert logs.failover_epochs.number == before


async def test_rule_8_later_failover_epoch_of_the_same_server_truncates_no_reader(
    store: Store, settings: Settings
) -> None:
    """As when another primary of a Cluster fails over: until a broker observes it, it delivers under the epoch before.

    A client that has read so validates its position against the new epochs; the answer must not lie before it.
    """
    await given_log(store)
    async with broker(settings) as stale:
        old = stale.partition(TOPIC, 0)
        await append(old, count=4)
        replid = (await store.command("INFO", "replication")).split(b"master_replid:")[1][:40]
        keys = store.cluster_keys
        assert await store.run(ASSIGN_FAILOVER_EPOCH, [keys.info, keys.replids], 7, replid) == [7]
        async with broker(settings) as aware:
            log = aware.partition(TOPIC, 0)
            await append(log, count=2)
            await append(old, count=3)
            delivered = [(one.base_offset, one.leader_epoch) for one in await read_all(old)]
            known = await log.end_offset()
            ends = [await log.epoch_end(epoch) for _, epoch in delivered]
            again = [(one.base_offset, one.leader_epoch) for one in await read_all(log)]

    assert known.leader_epoch == 6 and known.log_end_offset == 9
    assert delivered == again == [(0, 0), (4, 0), (6, 0)]
    assert ends == [(0, 9)] * 3


async def test_rule_9_the_last_entry_is_never_removed(store: Store, settings: Settings) -> None:
    await given_log(store)
    async with broker(settings) as ours:
        log = ours.partition(TOPIC, 0)
        for _ in range(3):
            await append(log, count=4)
        assert await log.delete_records(-1) == 12
        assert (await _entry_ids(store))[-1] == b"8-1"
    async with broker(settings) as theirs:
        log = theirs.partition(TOPIC, 0)
        known = await log.ensure()
        assert (known.log_start_offset, known.log_end_offset) == (12, 12)
        assert (await append(log)).base_offset == 12
