"""Entries that no broker appended, or that are torn: refused at once and by name, never a hang; the rest is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
import structlog

from tests.support.logs import TOPIC, append, append_later, batch, batch_bytes, batches_of, broker, given_log, read
from tidegate.errors import KafkaStorageError
from tidegate.log.entries import StrayEntry, parse_entry
from tidegate.log.logs import Logs
from tidegate.log.partition import PartitionLog
from tidegate.log.retention import apply_retention
from tidegate.monitoring.lag_reading import LagReader
from tidegate.settings import Settings
from tidegate.store.store import Store

_ANSWER_S: Final = 40.0
"""A hang fails here, long before a client's time-out; answers take milliseconds."""
_END: Final = 7
"""Where the log ends before the stray entry."""
_FIRST_MS: Final = 1_000
_WHOLE: Final = batch_bytes(count=3, timestamp=9_000)

Add = Callable[..., Awaitable[Any]]


def _with_length(length: int) -> bytes:
    return _WHOLE[:8] + length.to_bytes(4, "big", signed=True) + _WHOLE[12:]


STRAY: Final[dict[str, tuple[str, list[str | bytes]]]] = {
    "foreign_fields": ("*", ["key", "a", "value", "b"]),
    "foreign_fields_at_the_end": (f"{_END}-1", ["key", "a"]),
    "field_beside_batches": (f"{_END}-1", ["w", "x:1", "b", _WHOLE, "note", "mine"]),
    "no_batch": (f"{_END}-1", ["w", "x:1"]),
    "binary_garbage": (f"{_END}-1", ["w", "x:1", "b", bytes(range(256))]),
    "short_garbage": (f"{_END}-1", ["w", "x:1", "b", b"\xff"]),
    "empty_batch": (f"{_END}-1", ["w", "x:1", "b", b""]),
    "torn_batch": (f"{_END}-1", ["w", "x:1", "b", _WHOLE[:-3]]),
    "torn_second_batch": (f"{_END}-1", ["w", "x:1", "b", _WHOLE, "b", _WHOLE[:70]]),
    "length_too_large": (f"{_END}-1", ["w", "x:1", "b", _with_length(len(_WHOLE))]),
    "length_negative": (f"{_END}-1", ["w", "x:1", "b", _with_length(-1)]),
    "magic_1": (f"{_END}-1", ["w", "x:1", "b", _WHOLE[:16] + b"\x01" + _WHOLE[17:]]),
    "negative_delta": (f"{_END}-1", ["w", "x:1", "b", _WHOLE[:23] + b"\xff\xff\xff\xff" + _WHOLE[27:]]),
    "id_sequence": (f"{_END}-2", ["w", "x:1", "b", _WHOLE]),
    "id_by_the_clock": ("*", ["w", "x:1", "b", _WHOLE]),
}


@dataclass(slots=True)
class Struck:
    """A log of offsets 0 to 6 whose stream has a stray entry behind them."""

    store: Store
    logs: Logs
    log: PartitionLog
    entry_id: bytes


@pytest.fixture(params=[*STRAY, "removed"])
def stray(request: pytest.FixtureRequest) -> str:
    """The kind of the stray entry; `removed`: one by the clock, after XDEL."""
    return str(request.param)


@pytest.fixture(params=["loaded_before", "loaded_after"])
async def struck(store: Store, settings: Settings, stray: str, request: pytest.FixtureRequest) -> AsyncIterator[Struck]:
    """Loaded before the entry came, and after, as by a broker that starts."""
    async with broker(settings) as first, broker(settings) as restarted:
        await given_log(store)
        log = first.partition(TOPIC, 0)
        await append(log, count=3, timestamp=_FIRST_MS)
        await append(log, count=4, timestamp=_FIRST_MS + 1)
        entry_id, fields = STRAY["foreign_fields" if stray == "removed" else stray]
        added = await store.command("XADD", log.keys.log, entry_id, *fields)
        if stray == "removed":
            await store.command("XDEL", log.keys.log, added)
        logs = first if request.param == "loaded_before" else restarted
        with structlog.testing.capture_logs() as events:
            yield Struck(store, logs, logs.partition(TOPIC, 0), added)
        assert not [event for event in events if "callback_failed" in event["event"]]


async def _soon(work: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(work, _ANSWER_S)


async def test_fetch_before_a_stray_entry_returns_the_records(struck: Struck) -> None:
    found = batches_of(await _soon(read(struck.log, 0)))
    assert [item.base_offset for item in found] == [0, 3]
    assert [item.base_offset for item in batches_of(await _soon(read(struck.log, 5)))] == [3]


async def test_fetch_at_a_stray_entry_is_refused(struck: Struck, stray: str) -> None:
    await _soon(struck.log.refresh())
    if stray == "removed":  # it hides no record
        assert (await _soon(read(struck.log, _END))).size == 0
        return
    with pytest.raises(KafkaStorageError, match=struck.entry_id.decode()):
        await _soon(read(struck.log, _END))


async def test_fetch_waiting_is_notified_of_a_stray_entry(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.log.logs.POLL_MS", 50)
    async with broker(settings) as logs:
        await given_log(store)
        log = logs.partition(TOPIC, 0)
        await append(log)
        changed = asyncio.Event()
        log.on_change(changed.set)
        await asyncio.sleep(0.1)
        changed.clear()
        await store.command("XADD", log.keys.log, "*", "key", "a")
        with pytest.raises(KafkaStorageError):
            while True:
                await _soon(changed.wait())
                changed.clear()
                await _soon(read(log, 1))


async def test_offsets_of_a_log_with_a_stray_entry_are_those_before_it(struck: Struck) -> None:
    known = await _soon(struck.log.end_offset())
    assert (known.log_start_offset, known.high_watermark, known.log_end_offset) == (0, _END, _END)
    assert await _soon(struck.log.offset_for_timestamp(_FIRST_MS + 1)) == (3, _FIRST_MS + 1)
    assert await _soon(struck.log.offset_for_timestamp(_FIRST_MS + 2)) is None
    assert await _soon(struck.log.max_timestamp()) == (3, _FIRST_MS + 1)
    assert await _soon(struck.log.epoch_end(known.leader_epoch)) == (known.leader_epoch, _END)


async def test_produce_behind_a_stray_entry_is_refused_at_once(struck: Struck) -> None:
    outcomes = await _soon(
        asyncio.gather(
            append_later(struck.log, batch()),
            append_later(struck.log, batch(producer_id=5, epoch=0, sequence=0)),
            return_exceptions=True,
        )
    )
    assert [type(outcome) for outcome in outcomes] == [StrayEntry, StrayEntry]
    assert all(struck.entry_id.decode() in str(outcome) for outcome in outcomes)
    with pytest.raises(KafkaStorageError):
        await _soon(append(struck.log))


async def test_lag_with_a_stray_entry_continues(struck: Struck) -> None:
    reader = LagReader(struck.store, lambda org, name: TOPIC, lambda blob: None)
    observations = await _soon(reader.read_ends_of({("default", ("orders", 0)): [0, 5, _END]}))
    found = observations["default", ("orders", 0)]
    assert (found.log_start, found.log_end, found.head_time, found.lag(5)) == (0, _END, _FIRST_MS + 1, 2)
    assert dict(found.times) == {0: _FIRST_MS, 5: _FIRST_MS + 1, _END: -1}


async def test_delete_records_below_a_stray_entry_keeps_the_last_entry(struck: Struck) -> None:
    assert await _soon(struck.log.delete_records(3)) == 3
    assert await _soon(struck.log.delete_records(-1)) == _END
    struck.log.void("load again")
    known = await _soon(struck.log.end_offset())
    assert (known.log_start_offset, known.log_end_offset) == (_END, _END)
    assert (await struck.store.command("XRANGE", struck.log.keys.log, "3-1", "3-1")) != []


async def test_retention_with_a_stray_entry_continues(struck: Struck) -> None:
    from dataclasses import replace

    topic = replace(TOPIC, config=replace(TOPIC.config, retention_ms=1))
    assert await _soon(apply_retention(struck.logs.partition(topic, 0))) == _END


async def test_load_names_the_stray_entry_once(store: Store, settings: Settings) -> None:
    async with broker(settings) as logs:
        await given_log(store)
        log = logs.partition(TOPIC, 0)
        await append(log)
        entry_id = await store.command("XADD", log.keys.log, "*", "key", "a")
        with structlog.testing.capture_logs() as events:
            for _ in range(3):
                log.void("load again")
                await _soon(log.refresh())
        named = [event for event in events if event["event"] == "log_stray_entry"]
    assert len(named) == 1
    assert entry_id.decode() in named[0]["reason"]


async def test_stray_entry_between_entries_hides_nothing(store: Store, settings: Settings) -> None:
    """An id such as 0-7 is after the entry 0-1 and below all that follow: appends continue, and readers skip it."""
    async with broker(settings) as logs, broker(settings) as restarted:
        await given_log(store)
        log = logs.partition(TOPIC, 0)
        await append(log, count=3)
        await store.command("XADD", log.keys.log, "0-7", "key", "a")
        assert (await _soon(append(log, count=2))).base_offset == 3
        for one in (logs.partition(TOPIC, 0), restarted.partition(TOPIC, 0)):
            one.pages.clear()
            for offset, bases in ((0, [0, 3]), (2, [0, 3]), (4, [3])):
                assert [item.base_offset for item in batches_of(await _soon(read(one, offset)))] == bases
            assert (await _soon(one.end_offset())).high_watermark == 5
        assert await _soon(log.delete_records(1)) == 1


async def test_torn_entry_between_entries_is_refused_alone(store: Store, settings: Settings) -> None:
    """As an earlier version left it that did not read lengths: what follows is readable, and appends continue."""
    async with broker(settings) as logs:
        await given_log(store)
        log = logs.partition(TOPIC, 0)
        await append(log, count=3)
        await store.command("XADD", log.keys.log, "3-1", "w", "x:1", "b", _WHOLE[:-1])
        await store.command("XADD", log.keys.log, "6-1", "w", "x:2", "b", _WHOLE)
        log.void("load")
        assert (await _soon(log.end_offset())).high_watermark == 9
        assert [item.base_offset for item in batches_of(await _soon(read(log, 0)))] == [0]
        for offset in (3, 5):
            with pytest.raises(KafkaStorageError):
                await _soon(read(log, offset))
        assert [item.base_offset for item in batches_of(await _soon(read(log, 6)))] == [6]
        assert (await _soon(append(log))).base_offset == 9


@pytest.mark.parametrize(
    "item",
    [
        [b"7-1", [b"w", b"x", b"b"]],
        [b"7-1", []],
        [b"7-1", None],
        [b"7-0", [b"w", b"x", b"b", _WHOLE]],
        [b"18446744073709551615-18446744073709551615", [b"key", b"a"]],
        [b"7-1", [b"\xff\xfe", b"x"]],
    ],
)
def test_parse_entry_refuses_what_is_no_entry(item: list[Any]) -> None:
    with pytest.raises(StrayEntry):
        parse_entry(item)
