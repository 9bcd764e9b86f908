"""Topics of format record: what brokers append and read, beside a Redis program; on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.support.asking import ask
from tests.support.log_broker import fetch_request, produce_request
from tests.support.logs import batch_bytes
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.errors import InvalidConfig, InvalidRecord, OffsetOutOfRange, UnknownTopicOrPartition
from tidegate.log.record_format import record_append
from tidegate.log.record_format.record_append import APPEND_RECORDS
from tidegate.log.record_format.record_log import RecordLog
from tidegate.log.record_format.record_retention import apply_retention
from tidegate.records.batch import Batch, Codec
from tidegate.records.batch_header import TRANSACTIONAL
from tidegate.records.build import NewRecord, build_batch
from tidegate.records.entry_ids import RecordIds
from tidegate.records.record import Record, read_records
from tidegate.settings import Settings
from tidegate.store.redis_outage import RedisOutage
from tidegate.store.store import Store
from tidegate.topics import configs

KEY = "tidegate:{default/r:0}:records"
NONE = ErrorCode.none


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[list[WholeBroker]]:
    opened = [await WholeBroker(settings, node_id).start() for node_id in (1, 2)]
    await opened[0].create("r", 1, tidegate_format="record")
    for broker in opened:
        await broker.context.catalog.refresh()
    yield opened
    for broker in opened:
        await broker.close()


@pytest.fixture
def broker(brokers: list[WholeBroker]) -> WholeBroker:
    return brokers[0]


def log_of(broker: WholeBroker) -> RecordLog:
    topic = broker.context.catalog.get("default", "r")
    assert topic is not None
    log = broker.context.logs.partition(topic, 0)
    assert isinstance(log, RecordLog)
    return log


async def produce(client: ClientOf, batch: bytes, **options: Any) -> Any:
    answer = await client.ask(produce_request([("r", [(0, batch)])], **options))
    return answer.responses[0].partition_responses[0]


async def read(client: ClientOf, offset: int, **limits: int) -> list[Record]:
    """What a fetch returns."""
    found = await client.fetch("r", offset, **limits)
    rest, records = memoryview(found.records or b""), []
    while rest:
        batch = Batch.parse(rest)
        batch.verify_crc()
        records += read_records(batch)
        rest = rest[batch.size :]
    return records


async def entries(store: Store) -> list[tuple[str, dict[bytes, bytes]]]:
    found = await store.command("XRANGE", KEY, "-", "+")
    return [(one.decode(), dict(zip(fields[::2], fields[1::2], strict=True))) for one, fields in found]


def ids(bits: int = 10) -> RecordIds:
    return RecordIds(bits)


# -- the layout


@pytest.mark.parametrize("codec", list(Codec))
async def test_produce_each_codec_becomes_readable_fields(broker: WholeBroker, store: Store, codec: Codec) -> None:
    records = [
        NewRecord(b"\x00\xff", b"k", 1_000, [("trace", b"7"), ("key", b"not the key"), ("none", None)]),
        NewRecord(None, b"k", 2_000),
        NewRecord(b"v", None, 3_000),
    ]

    answer = await produce(broker.client(), build_batch(records, codec=codec))

    stored = await entries(store)
    assert answer.error_code is NONE
    assert [ids().offset_of(one) for one, _ in stored] == [answer.base_offset + i for i in range(3)]
    assert stored[0][1] == {
        b"timestamp": b"1000", b"key": b"k", b"value": b"\x00\xff",
        b"header:trace": b"7", b"header:key": b"not the key", b"header-null:none": b"",
    }  # fmt: skip
    assert stored[1][1] == {b"timestamp": b"2000", b"key": b"k"}
    read_back = await read(broker.client(), 0)
    assert [(one.key, one.value, one.timestamp, list(one.headers)) for one in read_back] == [
        (one.key, one.value, one.timestamp, list(one.headers)) for one in records
    ]
    assert [one.offset for one in read_back] == [ids().offset_of(one) for one, _ in stored]


async def test_fetch_foreign_entries_become_records(broker: WholeBroker, store: Store) -> None:
    await store.command("XADD", KEY, "1000-3", "key", "k", "value", "v", "colour", "blue", b"\xff", b"\x00")
    await store.command("XADD", KEY, "1000-5", "colour", "red")
    await store.command("XADD", KEY, "5000000-0", "value", "late", "timestamp", "soon")

    found = await read(broker.client(), 0)

    assert [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in found] == [
        (1000 << 10 | 3, 1000, b"k", b"v", (("colour", b"blue"), ("\ufffd", b"\x00"))),
        (1000 << 10 | 5, 1000, None, None, (("colour", b"red"),)),
        (5_000_000 << 10, 5_000_000, None, b"late", (("timestamp", b"soon"),)),
    ]


async def test_fetch_ids_beyond_the_bits_are_reported_and_passed_over(broker: WholeBroker, store: Store) -> None:
    await store.command("XADD", KEY, "1000-1023", "value", "a")
    for sequence in (1024, 5000):
        await store.command("XADD", KEY, f"1000-{sequence}", "value", "beyond")
    client = broker.client()

    [first] = await read(client, 0)
    at_end = await client.fetch("r", first.offset + 1)
    await produce(client, build_batch([NewRecord(b"b")]))
    [second] = await read(client, first.offset + 1)

    assert (first.value, second.value) == (b"a", b"b")
    assert not at_end.records
    assert broker.context.logs.records_without_offset == 2


async def test_append_ids_carry_into_the_next_millisecond(broker: WholeBroker, store: Store) -> None:
    ahead = int((await store.command("TIME"))[0]) * 1000 + 100_000_000
    await store.command("XADD", KEY, f"{ahead}-500", "value", "foreign")
    client = broker.client()

    first = await produce(client, batch_bytes(count=20))
    second = await produce(client, batch_bytes(count=2500))

    stored = [one for one, _ in await entries(store)]
    offsets = [ids().offset_of(one) for one in stored]
    assert stored[1] == f"{ahead + 1}-0"  # in the lower half of a millisecond
    assert first.base_offset == offsets[1]
    assert None not in offsets
    assert offsets[21:] == list(range(second.base_offset, second.base_offset + 2500))
    assert int(stored[-1].split("-")[1]) < 512


async def test_append_after_the_stream_was_trimmed_to_nothing(broker: WholeBroker, store: Store) -> None:
    client = broker.client()
    await produce(client, batch_bytes(count=3))
    before = (await entries(store))[-1][0]
    await store.command("XTRIM", KEY, "MAXLEN", 0)

    await produce(client, batch_bytes())

    [(after, _)] = await entries(store)
    assert tuple(map(int, after.split("-"))) > tuple(map(int, before.split("-")))


# -- idempotent producers


async def test_append_idempotent_batches(broker: WholeBroker, store: Store) -> None:
    client = broker.client()

    first = await produce(client, batch_bytes(2, 7, 0, 0))
    again = await produce(client, batch_bytes(2, 7, 0, 0))
    after = await produce(client, batch_bytes(1, 7, 0, 2))
    late = await produce(client, batch_bytes(1, 7, 0, 1))
    gap = await produce(client, batch_bytes(1, 7, 0, 9))
    newer = await produce(client, batch_bytes(1, 7, 1, 0))
    fenced = await produce(client, batch_bytes(1, 7, 0, 3))
    unknown = await produce(client, batch_bytes(1, 8, 0, 40))

    assert (first.error_code, again.error_code, again.base_offset) == (NONE, NONE, first.base_offset)
    assert (after.error_code, newer.error_code, unknown.error_code) == (NONE, NONE, NONE)
    assert late.error_code is ErrorCode.out_of_order_sequence_number
    assert gap.error_code is ErrorCode.out_of_order_sequence_number
    assert fenced.error_code is ErrorCode.invalid_producer_epoch
    assert len(await entries(store)) == 5


async def test_append_out_of_order_at_two_brokers_waits_for_the_gap(
    brokers: list[WholeBroker], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.record_format.record_append._GAP_WAIT_S", 600.0)  # however slow the machine is
    one, other = (broker.client() for broker in brokers)
    await produce(one, batch_bytes(1, 7, 0, 0, value=b"0"))

    second = asyncio.ensure_future(produce(other, batch_bytes(1, 7, 0, 2, value=b"2")))
    await asyncio.sleep(0.05)
    first = await produce(one, batch_bytes(1, 7, 0, 1, value=b"1"))

    assert (first.error_code, (await second).error_code) == (NONE, NONE)
    assert [fields[b"value"] for _, fields in await entries(store)] == [b"0", b"1", b"2"]


async def test_append_script_twice_appends_once(broker: WholeBroker, store: Store) -> None:
    keys = log_of(broker).keys
    names = [keys.log, keys.meta, keys.producers, keys.writers]
    call = [10, "writer", 1, 0, keys.wake, 1, -1, -1, -1, 0, 1, 5, 2, "value", "v"]

    first = await store.run(APPEND_RECORDS, names, *call)
    again = await store.run(APPEND_RECORDS, names, *call)

    assert again == first
    assert len(await entries(store)) == 1


async def test_retention_removes_idle_producers(broker: WholeBroker, store: Store) -> None:
    client, log = broker.client(), log_of(broker)
    for producer_id in range(1, 4):
        await produce(client, batch_bytes(1, producer_id, 0, 0))
    idle = await store.command("HGET", log.keys.producers, 2)
    epoch, _, batches = idle.decode().split(" ")
    await store.command("HSET", log.keys.producers, 2, f"{epoch} 1000 {batches}")

    await apply_retention(log)

    assert set(await log.read_producers()) == {1, 3}
    assert (await produce(client, batch_bytes(1, 1, 0, 1))).error_code is NONE


# -- failures


async def test_batch_that_fails_to_be_decoded_leaves_the_others(
    broker: WholeBroker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = record_append._arguments

    def fail_for_one(batch: Batch, bytes_max: int) -> Any:
        if b"large" in bytes(batch.buffer):
            raise MemoryError
        return decoded(batch, bytes_max)

    monkeypatch.setattr(record_append, "_arguments", fail_for_one)
    sent = [asyncio.ensure_future(produce(broker.client(), batch_bytes(value=one))) for one in (b"1", b"large", b"2")]
    codes = [(await one).error_code for one in sent]

    assert codes == [NONE, ErrorCode.unknown_server_error, NONE]
    assert [fields[b"value"] for _, fields in await entries(store)] == [b"1", b"2"]


async def test_batch_of_a_log_closed_while_it_is_decoded_is_answered_once(
    broker: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, decoding, fails = log_of(broker), asyncio.Event(), asyncio.Event()
    outcomes: list[Any] = []

    async def fail(item: Any) -> None:
        decoding.set()
        await fails.wait()
        raise InvalidRecord

    monkeypatch.setattr(record_append, "_decode", fail)
    log.append(Batch.parse(memoryview(batch_bytes())), outcomes.append)
    async with asyncio.timeout(60):
        await decoding.wait()
        log._appends.close(UnknownTopicOrPartition())
        fails.set()
        while log._appends._task is not None:
            await asyncio.sleep(0)

    assert [type(one) for one in outcomes] == [UnknownTopicOrPartition]


async def test_append_that_fails_leaves_later_ones(
    broker: WholeBroker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, failures = log_of(broker), [MemoryError()]
    run_on = RecordLog.run_on

    async def fail_once(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await run_on(*args)

    monkeypatch.setattr(RecordLog, "run_on", fail_once)
    sent = [asyncio.ensure_future(produce(broker.client(), batch_bytes())) for _ in range(2)]
    codes = [(await one).error_code for one in sent]
    later = await produce(broker.client(), batch_bytes(value=b"later"))

    assert codes == [ErrorCode.unknown_server_error] * 2
    assert later.error_code is NONE
    assert log_of(broker) is log
    assert [fields[b"value"] for _, fields in await entries(store)] == [b"later"]


async def test_append_with_a_listener_that_fails_leaves_later_ones(
    broker: WholeBroker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RecordLog) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(RecordLog, "appended", fail)
        assert (await produce(broker.client(), batch_bytes())).error_code is NONE

    assert (await produce(broker.client(), batch_bytes())).error_code is NONE
    assert len(await entries(store)) == 2


# -- limits, refusals


async def test_produce_refusals(broker: WholeBroker, store: Store) -> None:
    client = broker.client()
    many = [("h", b"")] * 1001

    headers = await produce(client, build_batch([NewRecord(b"v", headers=many)]))
    large = await produce(client, build_batch([NewRecord(bytes(20 << 20))], codec=Codec.ZSTD))
    transactional = await produce(
        client,
        build_batch([NewRecord(b"v")], attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0),
        transactional_id="nobody",
    )

    assert headers.error_code is ErrorCode.invalid_record
    assert large.error_code is ErrorCode.message_too_large
    assert transactional.error_code is ErrorCode.invalid_producer_id_mapping
    assert await entries(store) == []


def test_configs_format_is_fixed() -> None:
    settings = Settings()
    record = configs.parse(settings, {"tidegate.format": "record"}, {})

    with pytest.raises(InvalidConfig, match="cannot change"):
        configs.altered(settings, record, [("tidegate.format", 0, "batch")])
    with pytest.raises(InvalidConfig, match="cannot change"):
        configs.altered(settings, {}, [("tidegate.format", 0, "record")])
    with pytest.raises(InvalidConfig, match="cannot change"):
        configs.altered(settings, record, [("tidegate.sequence.bits", 0, "12")])
    with pytest.raises(InvalidConfig, match="not compacted"):
        configs.altered(settings, record, [("cleanup.policy", 0, "compact")])
    with pytest.raises(InvalidConfig, match="between 8 and 12"):
        configs.parse(settings, {"tidegate.sequence.bits": "20"}, {})
    kept = configs.altered(settings, record, [("retention.ms", 0, "5")], replace=True)
    assert kept == {"tidegate.format": "record", "retention.ms": "5"}


# -- positions, trims


async def test_positions_of_gapped_offsets(broker: WholeBroker, store: Store) -> None:
    log = log_of(broker)
    empty = await log.end_offset()
    for entry_id in ("1000-0", "2000-7", "3000-1"):
        await store.command("XADD", KEY, entry_id, "value", "v")

    offsets = await log.end_offset()

    assert (empty.log_start_offset, empty.log_end_offset) == (0, 0)
    assert (offsets.log_start_offset, offsets.high_watermark) == (1000 << 10, (3000 << 10) + 2)
    assert await log.offset_for_timestamp(1500) == (2000 << 10 | 7, 2000)
    assert await log.offset_for_timestamp(4000) is None
    assert await log.max_timestamp() == (3000 << 10 | 1, 3000)


async def test_trims_by_redis_programs_are_holes(broker: WholeBroker, store: Store) -> None:
    for ms in range(1000, 1010):
        await store.command("XADD", KEY, f"{ms}-0", "value", str(ms))
    await store.command("XTRIM", KEY, "MINID", "1003-0")
    await store.command("XDEL", KEY, "1005-0", "1009-0")

    found = await read(broker.client(), 1000 << 10)
    at_deleted = await read(broker.client(), 1005 << 10)

    assert [one.value for one in found] == [b"1003", b"1004", b"1006", b"1007", b"1008"]
    assert [one.value for one in at_deleted] == [b"1006", b"1007", b"1008"]
    assert (await log_of(broker).end_offset()).log_start_offset == 1003 << 10
    assert (await log_of(broker).end_offset()).high_watermark == (1009 << 10) + 1


async def test_delete_records_and_out_of_range(broker: WholeBroker, store: Store) -> None:
    for ms in range(1000, 1010):
        await store.command("XADD", KEY, f"{ms}-0", "value", str(ms))
    log, client = log_of(broker), broker.client()

    start = await log.delete_records(1004 << 10)
    below = await client.ask(fetch_request([("r", [(0, 0)])]))
    above = await client.ask(fetch_request([("r", [(0, 1 << 40)])]))

    assert start == 1004 << 10
    assert (await entries(store))[0][0] == "1004-0"
    for answer in (below, above):
        assert answer.responses[0].partitions[0].error_code is ErrorCode.offset_out_of_range
    with pytest.raises(OffsetOutOfRange):
        await log.delete_records(1 << 40)


async def test_retention_by_time_and_by_bytes(broker: WholeBroker, store: Store) -> None:
    now = int((await store.command("TIME"))[0]) * 1000
    for ms in range(now - 100_000, now, 100):
        await store.command("XADD", KEY, f"{ms}-0", "value", b"x" * 1000)
    log = log_of(broker)

    async def alter(**change: str) -> None:
        overrides = {"tidegate.format": "record"} | {name.replace("_", "."): value for name, value in change.items()}
        await broker.context.catalog.alter_configs("default", "r", lambda _: overrides)
        log_of(broker)

    await alter(retention_ms="50000")
    await apply_retention(log)
    by_time = len(await entries(store))
    await alter(retention_bytes="200000", retention_ms="-1")
    await apply_retention(log)
    by_bytes = len(await entries(store))

    assert 400 <= by_time <= 500
    assert 100 <= by_bytes <= 310
    first = (await entries(store))[0][0]
    assert (await log.read_ends()).log_start == ids().offset_of(first)


# -- long polls, two brokers


async def wait_for(broker: WholeBroker, offset: int, change: Any) -> Any:
    client = broker.client()
    waiting = asyncio.ensure_future(
        ask(
            broker.context,
            fetch_request([("r", [(0, offset)])], max_wait_ms=60_000, min_bytes=1),
            client.client,
            "app",
        )
    )
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await change
    answer = await asyncio.wait_for(waiting, 20)
    return answer.responses[0].partitions[0]


async def test_fetch_waiting_wakes_for_appends_of_any_writer(brokers: list[WholeBroker], store: Store) -> None:
    here, elsewhere = brokers
    await produce(here.client(), batch_bytes())
    end = (await log_of(here).end_offset()).high_watermark

    by_self = await wait_for(here, end, produce(here.client(), batch_bytes()))
    end = (await log_of(here).end_offset()).high_watermark
    by_other = await wait_for(here, end, produce(elsewhere.client(), batch_bytes()))
    end = (await log_of(here).end_offset()).high_watermark
    by_program = await wait_for(here, end, store.command("XADD", KEY, "*", "value", "foreign"))

    assert by_self.records
    assert by_other.records
    assert by_program.records


async def test_topic_recreated_has_an_empty_stream_and_late_deletion_ignores_it(
    broker: WholeBroker, store: Store
) -> None:
    catalog, log = broker.context.catalog, log_of(broker)
    await produce(broker.client(), batch_bytes())
    await catalog.delete("default", "r")
    assert not await store.command("EXISTS", KEY)
    await broker.create("r", 1, tidegate_format="record")
    await produce(broker.client(), batch_bytes())

    from tidegate.log.partitions import delete_partition

    await delete_partition(store, log.keys)  # a repeat, by another broker

    assert len(await entries(store)) == 1


async def test_topic_made_over_an_existing_stream_serves_it(broker: WholeBroker, store: Store) -> None:
    await store.command("XADD", "tidegate:{default/moved:0}:records", "1000-0", "value", "old")

    await broker.create("moved", 1, tidegate_format="record")

    found = await broker.client().fetch("moved", 0)
    assert read_records(Batch.parse(bytes(found.records)))[0].value == b"old"


async def test_leader_epoch_follows_the_failover_epoch(broker: WholeBroker, store: Store) -> None:
    client, log = broker.client(), log_of(broker)
    await produce(client, batch_bytes())
    await read(client, 0)
    before = await log.ensure()

    broker.context.logs.failover_epochs._number += 2
    after = await log.ensure()
    found = await client.fetch("r", 0)

    assert after.leader_epoch == before.leader_epoch + 2
    assert Batch.parse(bytes(found.records)).leader_epoch == after.leader_epoch
    assert await log.epoch_end(before.leader_epoch) == (before.leader_epoch, after.log_end_offset)
    assert await log.epoch_end(after.leader_epoch + 1) == (-1, -1)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_batch_with_a_connection_lost_before_its_proof_is_not_acknowledged(
    brokers: list[WholeBroker], settings: Settings, is_lost: bool
) -> None:
    """The proof may be another server's: after a fail-over the same address is another primary."""
    broker = await WholeBroker(settings.model_copy(update={"durability": "replicated:1"}), 3).start()
    node, tasks = broker.store.metadata_node, set[asyncio.Future[None]]()

    async def answer(on_proved: Callable[[bool], None]) -> None:
        if is_lost:
            node.data_out.reconnect("for the test")
            await node.data_out.wait_up(30)
        on_proved(True)

    def prove(on_proved: Callable[[bool], None]) -> None:
        tasks.add(asyncio.ensure_future(answer(on_proved)))

    broker.context.logs.durability._nodes[node].prove = prove
    try:
        await broker.context.catalog.refresh()
        code = (await produce(broker.client(), batch_bytes(), acks=-1)).error_code
    finally:
        await broker.close()

    assert code is (ErrorCode.not_enough_replicas_after_append if is_lost else NONE)


@pytest.mark.parametrize("replicated_count", [0, 1])
async def test_produce_behind_an_unproved_batch_that_was_lost_is_not_out_of_order(
    broker: WholeBroker, store: Store, monkeypatch: pytest.MonkeyPatch, replicated_count: int
) -> None:
    """At OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka takes a new epoch and sends all anew, also what is stored."""
    log, loop = log_of(broker), asyncio.get_running_loop()
    unproved = SimpleNamespace(immediate=False, prove=lambda _, answer: loop.call_soon(answer, False))
    monkeypatch.setattr(log, "durability", unproved)
    keys = [log.keys.log, log.keys.meta, log.keys.producers]

    async def sent(sequence: int) -> ErrorCode:
        batch = batch_bytes(1, producer_id=7, epoch=0, sequence=sequence)
        code: ErrorCode = (await produce(broker.client(), batch, acks=-1)).error_code
        return code

    stored = ErrorCode.not_enough_replicas_after_append
    assert [await sent(sequence) for sequence in range(replicated_count)] == [stored] * replicated_count
    replicated = [await store.command("DUMP", key) for key in keys]
    assert await sent(replicated_count) is stored
    for key, dump in zip(keys, replicated, strict=True):  # as a replica that is promoted has them
        await store.command("DEL", key)
        if dump is not None:
            await store.command("RESTORE", key, 0, dump)

    assert await sent(replicated_count + 1) is ErrorCode.request_timed_out
    assert [await sent(sequence) for sequence in (0, 1, 2)] == [stored] * 3
    assert len(await entries(store)) == 3


async def test_produce_of_an_unknown_producer_after_an_outage_waits_for_batches_before_it(
    broker: WholeBroker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches before it may have been refused before this broker had them: their retries are on the way."""
    client = broker.client()

    with monkeypatch.context() as patched:
        patched.setattr(RedisOutage, "recently_recovered", True)
        during = (await produce(client, batch_bytes(1, 7, 0, 1))).error_code
    after = [(await produce(client, batch_bytes(1, 7, 0, sequence))).error_code for sequence in (0, 1)]

    assert during is ErrorCode.kafka_storage_error
    assert after == [NONE, NONE]
    assert len(await entries(store)) == 2
