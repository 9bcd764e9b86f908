"""The lag trend of one group's partitions, read from samples in a real Redis."""

from __future__ import annotations

import itertools
import threading

import pytest

from tidegate.http.console import lag_trend
from tidegate.http.console.lag_trend import PARTITION_POINTS_MAX, SPAN_MS, Lag, parse_sample, read_partitions
from tidegate.monitoring.lag_reading import LogEndsReading
from tidegate.monitoring.lag_sampler import sample_text
from tidegate.store.store import Store

REF = "default/orders"


async def now_ms_of(store: Store) -> int:
    seconds, micros = await store.read("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


async def add(store: Store, time_ms: int, lag: int, ref: str = REF) -> None:
    """A sample of partitions 0 and 1 of topic t."""
    ends = LogEndsReading(log_start=0, log_end=10 + lag, head_time=time_ms, times={10: time_ms}, size=1, now_ms=time_ms)
    text = sample_text(10, time_ms, ends, lag, "")
    fields = ["time", time_ms, "group", ref, "t:0", text, "t:1", text]
    await store.command("XADD", store.cluster_keys.lag, f"{time_ms}-*", *map(str, fields))


async def test_partitions_trend_spans_half_an_hour(store: Store) -> None:
    now_ms = await now_ms_of(store)
    await add(store, now_ms - SPAN_MS - 60_000, 1)
    await add(store, now_ms - 2_000, 2, "default/another")
    await add(store, now_ms - 1_000, 3)
    await add(store, now_ms, 4)

    found = await read_partitions(store, REF)

    expected = [Lag(now_ms - 1_000, 3, 0), Lag(now_ms, 4, 0)]
    assert found == {("t", 0): expected, ("t", 1): expected}


@pytest.mark.parametrize("count", [99, 100, 101, 250, 1_000])
async def test_partitions_trend_is_thinned_evenly(store: Store, count: int) -> None:
    now_ms = await now_ms_of(store)
    for number in range(count):
        await add(store, now_ms - (count - number) * 1_000, number)

    records = [one.records for one in (await read_partitions(store, REF))["t", 0]]

    assert min(count, PARTITION_POINTS_MAX // 2) <= len(records) <= PARTITION_POINTS_MAX
    assert records[-1] == count - 1
    assert len({after - before for before, after in itertools.pairwise(records)}) == 1


async def test_partitions_trend_is_parsed_in_a_thread(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def noted(text: bytes, time_ms: int) -> Lag:
        threads.add(threading.get_ident())
        return parse_sample(text, time_ms)

    monkeypatch.setattr(lag_trend, "parse_sample", noted)
    await add(store, await now_ms_of(store), 1)

    await read_partitions(store, REF)

    assert threads and threading.get_ident() not in threads
