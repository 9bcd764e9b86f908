"""Fetch and its sessions on a real server, by the numbers of the specification of logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from tests.support.log_broker import fetch_request
from tests.support.transactions import NONE, Brokers, brokers_of
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.apis import delete_records, fetch, produce
from tidegate.records.batch import iter_headers
from tidegate.settings import Settings
from tidegate.store.store import Store

assert delete_records and fetch and produce  # registered

E = ErrorCode
OUT_OF_RANGE = E.offset_out_of_range
LONG_MS = 600_000  # longer than a test may take: what waits for its end fails


@pytest.fixture
async def brokers(store: Store, settings: Settings) -> AsyncIterator[Brokers]:
    """Two brokers with the topic `t` of two partitions; `store` has emptied the server."""
    async with brokers_of(settings, 2) as opened:
        await opened.create("t", 2)
        yield opened


@pytest.fixture
def client(brokers: Brokers) -> ClientOf:
    """A client of the first broker, which has the sessions."""
    return brokers.clients[0]


async def _fill(brokers: Brokers, count: int, index: int = 0) -> None:
    """Append a batch by the first broker, and wait until its high watermark is behind it."""
    await brokers.clients[0].produce("t", count, index=index)
    log = brokers.all[0].context.logs.partition(_topic(brokers), index)
    async with asyncio.timeout(40):
        while (known := await log.latest()).high_watermark != known.log_end_offset:
            await asyncio.sleep(0.01)


def _topic(brokers: Brokers) -> Any:
    return brokers.all[0].context.catalog.get("default", "t")


async def _fetch(client: ClientOf, *partitions: Any, topic: Any = "t", **asked: Any) -> Any:
    return await client.ask(fetch_request([(topic, partitions)] if partitions else [], **asked))


def _parts(answer: Any) -> dict[int, Any]:
    return {one.partition_index: one for topic in answer.responses for one in topic.partitions}


async def test_log_39_an_offset_inside_a_batch(brokers: Brokers, client: ClientOf) -> None:
    await _fill(brokers, 10)
    [batch] = iter_headers(_parts(await _fetch(client, (0, 5)))[0].records)
    assert (batch.base_offset, batch.next_offset) == (0, 10)


async def test_log_40_the_first_batch_is_above_limits(brokers: Brokers, client: ClientOf) -> None:
    await _fill(brokers, 10)
    await _fill(brokers, 1, index=1)
    found = _parts(await _fetch(client, (0, 0), (1, 0), max_bytes=1, partition_max_bytes=1))
    assert found[0].records and not found[1].records
    assert [one.error_code for one in found.values()] == [NONE, NONE]


async def test_log_41_out_of_range(brokers: Brokers, client: ClientOf) -> None:
    await _fill(brokers, 20)
    log = brokers.all[0].context.logs.partition(_topic(brokers), 0)
    assert await log.delete_records(10) == 10
    found = [_parts(await _fetch(client, (0, offset)))[0] for offset in (9, 20, 21)]
    assert [one.error_code for one in found] == [OUT_OF_RANGE, NONE, OUT_OF_RANGE]
    assert found[1].records == b"" and found[0].high_watermark == -1


async def test_log_42_an_append_of_another_broker_wakes_a_fetch(brokers: Brokers, client: ClientOf) -> None:
    waiting = asyncio.ensure_future(_fetch(client, (0, 0), max_wait_ms=LONG_MS))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await brokers.clients[1].produce("t", 1)
    assert _parts(await waiting)[0].records


async def test_log_43_which_errors_end_the_wait(brokers: Brokers, client: ClientOf) -> None:
    await _fill(brokers, 1)
    wait: dict[str, Any] = {"max_wait_ms": 300}
    unknown = await client.ask(fetch_request([("t", [(0, 1), (9, 0)]), ("nope", [(0, 0)])], **wait))
    codes = {(topic.topic, one.partition_index): one.error_code for topic in unknown.responses
             for one in topic.partitions}  # fmt: skip
    assert codes == {
        ("t", 0): NONE, ("t", 9): E.unknown_topic_or_partition, ("nope", 0): E.unknown_topic_or_partition,
    }  # fmt: skip
    behind = await _fetch(client, (0, 9), max_wait_ms=LONG_MS)
    assert _parts(behind)[0].error_code is OUT_OF_RANGE
    by_id = await _fetch(client, (0, 0), topic=uuid4(), version=13)
    assert _parts(by_id)[0].error_code is E.unknown_topic_id


async def test_log_44_the_life_of_a_session(brokers: Brokers, client: ClientOf) -> None:
    await _fill(brokers, 1)
    await _fill(brokers, 1, index=1)
    first = await _fetch(client, (0, 0), (1, 0), session=(0, 0))
    session = first.session_id
    assert session > 0 and set(_parts(first)) == {0, 1}
    assert set(_parts(await _fetch(client, session=(session, 1)))) == {0, 1}
    assert _parts(await _fetch(client, (0, 1), (1, 1), session=(session, 2))) == {}
    await _fill(brokers, 1, index=1)
    assert set(_parts(await _fetch(client, session=(session, 3)))) == {1}
    last = await _fetch(client, (0, 0), session=(session, -1))
    assert last.session_id == 0 and set(_parts(last)) == {0}
    assert (await _fetch(client, session=(session, 4))).error_code is E.fetch_session_id_not_found


async def test_log_45_a_wrong_session_epoch(brokers: Brokers, client: ClientOf) -> None:
    session = (await _fetch(client, (0, 0), session=(0, 0))).session_id
    for epoch in (1, 2):
        assert (await _fetch(client, session=(session, epoch))).error_code is NONE
    wrong = await _fetch(client, session=(session, 2))
    assert (wrong.error_code, wrong.responses, wrong.session_id) == (E.invalid_fetch_session_epoch, (), 0)
    assert (await _fetch(client, session=(session + 12_345, 1))).error_code is E.fetch_session_id_not_found
    assert (await _fetch(client, session=(session, 3))).error_code is NONE


async def test_log_46_forgotten_topics(brokers: Brokers, client: ClientOf) -> None:
    session = (await _fetch(client, (0, 0), (1, 0), session=(0, 0))).session_id
    await _fetch(client, session=(session, 1), forgotten=[("t", [0])])
    await _fill(brokers, 1)
    await _fill(brokers, 1, index=1)
    assert set(_parts(await _fetch(client, session=(session, 2)))) == {1}
    assert (await _fetch(client, session=(session, 3), forgotten=[("t", [1])])).session_id == 0


async def test_log_47_an_error_of_a_session_then_recovery(brokers: Brokers, client: ClientOf) -> None:
    await _fill(brokers, 1)
    session = (await _fetch(client, (0, 7), session=(0, 0))).session_id
    for epoch in (1, 2):
        assert _parts(await _fetch(client, session=(session, epoch)))[0].error_code is OUT_OF_RANGE
    fixed = _parts(await _fetch(client, (0, 1), session=(session, 3)))
    assert fixed[0].error_code is NONE and not fixed[0].records


async def test_log_49_a_session_is_lost_with_its_broker(brokers: Brokers, client: ClientOf) -> None:
    await _fill(brokers, 3)
    session = (await _fetch(client, (0, 0), session=(0, 0))).session_id
    restarted = await WholeBroker(brokers.all[0].settings, 1).start()
    try:
        again = restarted.client()
        assert (await _fetch(again, session=(session, 1))).error_code is E.fetch_session_id_not_found
        found = _parts(await _fetch(again, (0, 0), session=(0, 0)))[0]
        assert [batch.base_offset for batch in iter_headers(found.records)] == [0]
    finally:
        await restarted.close()


@pytest.fixture
async def epochs(brokers: Brokers, store: Store, settings: Settings) -> AsyncIterator[ClientOf]:
    """A client of a broker that finds a log with offsets 0-9 of leader epoch 0 and 10-19 of leader epoch 3."""
    await _fill(brokers, 10)
    await _fill(brokers, 10)
    found = _topic(brokers)
    await store.command("HSET", store.log_keys("default", "t", 0, found.topic_hex).meta, "epochs", "0:0 3:10")
    async with brokers_of(settings, 1) as restarted:
        yield restarted.clients[0]


async def test_log_50_epoch_fencing(epochs: ClientOf) -> None:
    for known, code in ((2, E.fenced_leader_epoch), (4, E.unknown_leader_epoch), (3, NONE)):
        fetched = await _fetch(epochs, (0, 0, {"current_leader_epoch": known}))
        assert _parts(fetched)[0].error_code is code

    topic_id = epochs.broker.context.catalog.get("default", "t").topic_id  # type: ignore[union-attr]
    fenced = await _fetch(epochs, (0, 0, {"current_leader_epoch": 2}), topic=topic_id, version=16)
    [part] = _parts(fenced).values()
    assert part.error_code is E.fenced_leader_epoch
    [broker] = epochs.broker.context.broker_lease.nameable("PLAINTEXT")
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (broker.node_id, 3)
    [named] = fenced.node_endpoints
    assert (named.node_id, (named.host, named.port), named.rack) == (
        broker.node_id, broker.endpoint("PLAINTEXT"), broker.rack,
    )  # fmt: skip
    for version, known in ((15, 2), (16, 4)):
        unnamed = await _fetch(epochs, (0, 0, {"current_leader_epoch": known}), topic=topic_id, version=version)
        [part] = _parts(unnamed).values()
        assert part.current_leader.leader_id == -1
        assert not getattr(unnamed, "node_endpoints", ())
    assert _parts(await _fetch(epochs, (0, 0), version=8))[0].error_code is NONE


async def test_log_52_divergence(epochs: ClientOf) -> None:
    async def fetched(offset: int, epoch: int) -> Any:
        return _parts(await _fetch(epochs, (0, offset, {"last_fetched_epoch": epoch})))[0]

    for epoch in (0, 1):
        part = await fetched(15, epoch)
        assert (part.error_code, part.records) == (NONE, b"")
        assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 10)
    assert [batch.base_offset for batch in iter_headers((await fetched(10, 0)).records)] == [10]
    assert [batch.base_offset for batch in iter_headers((await fetched(15, 3)).records)] == [10]
    assert (await fetched(15, 4)).error_code is OUT_OF_RANGE


async def test_log_48_names_and_ids_do_not_mix(brokers: Brokers, client: ClientOf) -> None:
    topic_id = _topic(brokers).topic_id
    session = (await _fetch(client, (0, 0), session=(0, 0))).session_id
    mixed = await _fetch(client, session=(session, 1), version=13)
    assert mixed.error_code is E.fetch_session_topic_id_error
    assert (await _fetch(client, session=(session, 2))).error_code is E.invalid_fetch_session_epoch
    by_id = (await _fetch(client, (0, 0), topic=topic_id, session=(0, 0), version=13)).session_id
    assert (await _fetch(client, session=(by_id, 1))).error_code is E.fetch_session_topic_id_error


async def test_log_135_limits_below_what_there_is(brokers: Brokers, client: ClientOf) -> None:
    await _fill(brokers, 10)
    found = await _fetch(client, (0, 0), min_bytes=1_000, max_bytes=100, max_wait_ms=LONG_MS)
    assert _parts(found)[0].records


async def test_log_136_a_topic_is_deleted_under_a_fetch(brokers: Brokers, client: ClientOf) -> None:
    waiting = asyncio.ensure_future(_fetch(client, (0, 0), max_wait_ms=LONG_MS))
    await asyncio.sleep(0.3)
    await brokers.all[0].context.catalog.delete("default", "t")
    assert _parts(await waiting)[0].error_code is E.unknown_topic_or_partition
