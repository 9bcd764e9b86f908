"""The cache of recent entries: found by offset, bounded over all logs, dropped with the state."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.logs import batch_bytes
from tidegate.log import read
from tidegate.log.entries import Entry, parse_entry
from tidegate.log.read import gather
from tidegate.log.state import LogState
from tidegate.log.tail import LogPages, TailCache, held_bytes


def entry(base: int, *counts: int, size: int = 0) -> Entry:
    """An entry of batches with so many records."""
    fields = [b"w", b"x:1"]
    for count in counts:
        fields += [b"b", batch_bytes(count=count, timestamp=base)]
    made = parse_entry([b"%d-1" % base, fields])
    made.size = size or made.size
    return made


def test_entry_knows_where_its_batches_end() -> None:
    parsed = entry(7, 3, 2)

    assert (parsed.base, parsed.ends, parsed.end, parsed.writer, parsed.max_timestamp) == (7, [10, 12], 12, b"x:1", 7)


def test_tail_offset_is_found_in_the_entry_that_contains_it() -> None:
    pages = LogPages(TailCache(1 << 20))
    for base in (0, 5, 10):
        pages.append(entry(base, 5))
    page, place = pages.find(7) or (None, -1)

    assert page is not None and page.entries[place].base == 5
    assert pages.find(15) is None


def test_cache_of_no_bytes_keeps_nothing() -> None:
    cache = TailCache(0)
    pages = LogPages(cache)
    pages.append(entry(0, 5))
    pages.insert([entry(0, 5), entry(5, 5)])

    assert cache.size == 0
    assert [pages.find(offset) for offset in (0, 7)] == [None, None]


def test_tail_uncached_entries_do_not_repeat_cached_ones() -> None:
    cache = TailCache(1 << 20)
    pages = LogPages(cache)
    pages.append(entry(10, 5, size=100))
    pages.insert([entry(0, 5, size=100), entry(5, 5, size=100), entry(10, 5, size=100), entry(15, 5, size=100)])

    assert cache.size == 4 * held_bytes(entry(0, 5, size=100))
    assert [found[0].base for base in (0, 9, 12, 16) if (found := pages.find(base))] == [0, 0, 10, 15]


def test_tail_page_longest_unused_is_evicted_first() -> None:
    cache = TailCache(3 * held_bytes(entry(0, 1, size=1_000_000)))
    logs = [LogPages(cache) for _ in range(4)]
    for pages in logs[:3]:
        pages.append(entry(0, 1, size=1_000_000))
    found = logs[0].find(0)
    assert found is not None
    logs[0].touch(found[0])
    logs[3].append(entry(0, 1, size=1_000_000))

    assert [pages.find(0) is not None for pages in logs] == [True, False, True, True]
    logs[0].clear()
    assert cache.size == 2 * held_bytes(entry(0, 1, size=1_000_000))


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6), st.data())
def test_tail_slice_is_whole_batches_from_the_one_with_the_offset(counts: list[list[int]], data: st.DataObject) -> None:
    entries, base = [], 0
    for batches in counts:
        entries.append(entry(base, *batches))
        base = entries[-1].end
    offset = data.draw(st.integers(0, base - 1))
    bytes_max = data.draw(st.integers(0, 600))
    state = LogState(end=base, log_start=0, local_start=0, epochs=[(0, 0)], failover_epoch=1, high_watermark=base)
    starts = [0, *(end for one in entries for end in one.ends)]
    first = max(start for start in starts if start <= offset)
    held = [one for one in entries if one.end > offset]
    found = gather(state, held, offset, bytes_max, True, state.high_watermark)

    joined = b"".join(bytes(buffer) for buffer in found.buffers)
    assert len(joined) == found.size
    assert int.from_bytes(joined[:8], "big") == first
    assert found.end_offset in starts and found.end_offset > offset
    assert found.size <= bytes_max or found.end_offset == starts[starts.index(first) + 1]
    assert gather(state, held, offset, bytes_max, False, state.high_watermark).size <= bytes_max


def test_tail_slice_ends_with_the_entry_that_reaches_the_batch_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_BATCHES_MAX", 4)
    entries = [entry(base, 1, 1, 1) for base in range(0, 12, 3)]
    state = LogState(end=12, log_start=0, local_start=0, epochs=[(0, 0)], failover_epoch=1, high_watermark=12)

    assert gather(state, entries, 1, 1 << 20, True, 12).end_offset == 6
    assert gather(state, entries[2:], 6, 1 << 20, True, 12).end_offset == 12


def test_tail_cached_bytes_covers_what_entries_of_one_small_batch_take() -> None:
    count = 2_000
    replies = [[b"%d-1" % i, [b"w", b"x:%d" % i, b"b", bytes(batch_bytes(timestamp=i))]] for i in range(count)]
    pages = LogPages(cache := TailCache(64 << 20))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for entry_id, fields in replies:
        copied = [bytes(bytearray(field)) for field in fields]
        one = parse_entry([entry_id, copied])
        one.whole(1)
        one.served(1)
        pages.append(one)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert held <= cache.size <= 2 * held
