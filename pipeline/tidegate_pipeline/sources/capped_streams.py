"""Capped Redis streams, which are appended to and trimmed at the head: places, ranges of entries, losses.

A place is the id of the last entry that was read, and the number of entries added up to it. Entries between two places
never change, and the difference of the counts is their number: a reader that finds fewer detects that some were
trimmed, which Redis does not report (after XTRIM its `max-deleted-entry-id` is still 0-0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog

from tidegate.store.scripts import Script
from tidegate_pipeline.errors import DataLoss, UsageError
from tidegate_pipeline.redis_access import Client, retry_while_unavailable, run

PLAN_STREAM = Script("archive/plan_stream")

COUNTS: Final = "_counts"
"""Field of the offsets that holds the counts."""
PAGE_ENTRIES: Final = 500
_WALK_MAX: Final = 10_000

logger = structlog.get_logger()

Fields = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Place:
    """After the entry `entry_id`, the `count`th that was ever added."""

    entry_id: str = "0-0"
    count: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What orders entries."""
        return id_key(self.entry_id)


Places = Mapping[str, Place]
"""Stream -> place; a stream that is not there is at its beginning."""

BEGINNING: Final = Place()


class StreamState(NamedTuple):
    """Of one stream: its end, and how many entries were cut from its head."""

    end: Place
    trimmed: int


@dataclass(frozen=True, slots=True)
class EntryRange:
    """A range of one stream: `count` entries after `after`, up to and with `last`."""

    stream: str
    after: str
    last: str
    count: int


def id_key(entry_id: str) -> tuple[int, int]:
    """An entry id, `<ms>-<sequence>` or `<ms>`, as it is ordered. Raises UsageError."""
    milliseconds, _, sequence = entry_id.partition("-")
    if not (milliseconds.isdecimal() and (sequence or "0").isdecimal()):
        raise UsageError(f"not the id of a stream's entry: {entry_id!r} (<ms>-<sequence>)")
    return int(milliseconds), int(sequence or 0)


def to_offsets(places: Places) -> dict[str, Any]:
    """Spark's offsets, `{"<stream>": "<ms>-<seq>", ..., "_counts": {...}}`: in one order, as it compares text."""
    known = {stream: place for stream, place in sorted(places.items()) if place != BEGINNING}
    offsets: dict[str, Any] = {stream: place.entry_id for stream, place in known.items()}
    return offsets | {COUNTS: {stream: place.count for stream, place in known.items()}}


def from_offsets(offsets: Mapping[str, Any]) -> dict[str, Place]:
    """What `to_offsets` made."""
    counts = offsets.get(COUNTS, {})
    return {stream: Place(entry_id, counts[stream]) for stream, entry_id in offsets.items() if stream != COUNTS}


def fair_shares(backlogs: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many entries of each stream to read, `limit` in all: what small backlogs leave goes to larger ones."""
    shares, left = {}, limit
    waiting = sorted(backlogs, key=lambda stream: (backlogs[stream], stream))
    for position, stream in enumerate(waiting):
        shares[stream] = min(backlogs[stream], left // (len(waiting) - position))
        left -= shares[stream]
    return shares


def spread(entry_ranges: Iterable[EntryRange], tasks_max: int) -> list[list[EntryRange]]:
    """Distribute ranges over tasks, about the same number of entries each."""
    tasks: list[list[EntryRange]] = []
    for entry_range in sorted(entry_ranges, key=lambda entry_range: (-entry_range.count, entry_range.stream)):
        if len(tasks) < tasks_max:
            tasks.append([entry_range])
        else:
            min(tasks, key=lambda task: sum(one.count for one in task)).append(entry_range)
    return tasks


class CappedStreams:
    """Some streams of one server or cluster; every method asks, none remembers."""

    def __init__(self, client: Client, streams: Iterable[str], fail_on_data_loss: bool = True, retry_s: float = 0):
        self._client = client
        self._streams = tuple(sorted(streams))
        self._fail_on_data_loss = fail_on_data_loss
        self._retry_s = retry_s

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def latest(self) -> dict[str, Place]:
        """Where every stream ends."""
        return {stream: self._state(stream).end for stream in self._streams}

    def earliest(self) -> dict[str, Place]:
        """Before the first entry that is there."""
        return {stream: self._after(stream, "0-0") for stream in self._streams}

    def from_time(self, timestamp_ms: int) -> dict[str, Place]:
        """Before the first entry that is there and was added at `timestamp_ms` or later."""
        return {stream: self._after(stream, f"{max(timestamp_ms, 1) - 1}-{2**64 - 1}") for stream in self._streams}

    def given(self, entry_ids: Mapping[str, str]) -> dict[str, Place]:
        """After the given entries; streams that are not named begin at the first entry that is there.

        Raises UsageError, and DataLoss where what followed an entry may be cut: nothing up to it is there any more.
        """
        places = self.earliest()
        for stream, entry_id in entry_ids.items():
            if stream not in places:
                raise UsageError(f"no such stream here: {stream}; those are {', '.join(self._streams[:3])}, ...")
            first, places[stream] = places[stream], self._after(stream, entry_id)
            if first.count and places[stream] == first and id_key(entry_id) > (0, 0):
                self._lost(stream, 0, f"the first ones after {entry_id}")
        return places

    def advance(self, start: Places, target: Places | None, limit: int | None) -> dict[str, Place]:
        """The end of the next range: at most `limit` entries, not past `target`. Raises DataLoss."""
        tops, backlogs = {}, {}
        for stream in self._streams:
            begin, state = start.get(stream, BEGINNING), self._state(stream)
            if state.end.key < begin.key or state.end.count < begin.count:
                raise DataLoss(
                    f"{stream} was truncated: it ends at {state.end.entry_id} after {state.end.count} entries, "
                    f"and {begin.entry_id} was read, entry {begin.count}. Redis was restored from an older copy or "
                    "emptied; begin with a new checkpoint"
                )
            tops[stream] = max(begin, state.end if target is None else target.get(stream, BEGINNING), key=_order)
            backlogs[stream] = tops[stream].count - max(begin.count, min(state.trimmed, tops[stream].count))
        if limit is None or sum(backlogs.values()) <= limit:
            return tops
        shares = fair_shares(backlogs, limit)
        return {
            stream: top if shares[stream] == backlogs[stream] else self._walked(stream, start, top, shares[stream])
            for stream, top in tops.items()
        }

    def entry_ranges(self, start: Places, end: Places) -> list[EntryRange]:
        """The ranges between two sets of places."""
        return [
            EntryRange(stream, begin.entry_id, last.entry_id, last.count - begin.count)
            for stream, last in sorted(end.items())
            if (begin := start.get(stream, BEGINNING)) != last
        ]

    def read(self, entry_range: EntryRange) -> Iterator[tuple[str, Fields]]:
        """The entries of a range, in order. Raises DataLoss, or warns, where some were cut."""
        after, found = entry_range.after, 0
        while page := self._page(entry_range, after):
            yield from ((entry_id.decode(), fields) for entry_id, fields in page)
            after, found = page[-1][0].decode(), found + len(page)
            if len(page) < PAGE_ENTRIES:
                break
        if found < entry_range.count:
            self._lost(
                entry_range.stream,
                entry_range.count - found,
                f"of {entry_range.count} after {entry_range.after} up to {entry_range.last}",
            )

    def _page(self, entry_range: EntryRange, after: str) -> Any:
        return retry_while_unavailable(
            lambda: self._client.xrange(entry_range.stream, f"({after}", entry_range.last, count=PAGE_ENTRIES),
            self._retry_s,
        )

    def _lost(self, stream: str, count: int, which: str) -> None:
        number = f"{count} entries" if count else "entries"
        if self._fail_on_data_loss:
            raise DataLoss(
                f"{stream}: {number} ({which}) were trimmed before they were read. Read more often, "
                "because its length is fixed; failOnDataLoss=false, for jobs "
                "source.fail_on_data_loss=false, continues without them"
            )
        logger.warning("entries_lost", stream=stream, count=count, which=which)

    def _plan(self, stream: str, after: str, last: str, entries_max: int) -> tuple[StreamState, Place]:
        """How the stream stands, and the entry at most so many after `after`; its count is relative."""
        _, added, trimmed, end, found, count = retry_while_unavailable(
            lambda: run(self._client, PLAN_STREAM, [stream], after, last, entries_max), self._retry_s
        )
        return StreamState(Place(end.decode(), added), trimmed), Place(found.decode(), count)

    def _state(self, stream: str) -> StreamState:
        return self._plan(stream, "0-0", "+", 0)[0]

    def _after(self, stream: str, entry_id: str) -> Place:
        """The place after the last entry that is there and is not above an id, else before the first."""
        state, found = self._plan(stream, "0-0", entry_id, _WALK_MAX)
        place = Place(found.entry_id, state.trimmed + found.count)
        while found.count == _WALK_MAX:
            _, found = self._plan(stream, place.entry_id, entry_id, _WALK_MAX)
            place = Place(found.entry_id, place.count + found.count)
        return place

    def _walked(self, stream: str, start: Places, top: Place, entries_max: int) -> Place:
        begin = start.get(stream, BEGINNING)
        if not entries_max:
            return begin
        state, found = self._plan(stream, begin.entry_id, top.entry_id, min(entries_max, _WALK_MAX))
        return Place(found.entry_id, max(begin.count, state.trimmed) + found.count) if found.count else top


def _order(place: Place) -> tuple[int, int]:
    return place.key
