"""Recent lag of groups, from the samples in `{cluster}:lag`.

Totals of all groups are read incrementally; samples by partition are read for one group on demand.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from tidegate.diagnosis.lag_samples import FRESH_S, Sample, fields_of, read_new, samples
from tidegate.groups.offsets import split_field
from tidegate.store.foreign_entries import StreamEntry
from tidegate.store.store import Store

SPAN_MS: Final = 30 * 60_000
SCANNED_MAX: Final = 6_000
"""Maximum entries searched for one group's partitions, since they are mixed with those of other groups."""
PARTITION_POINTS_MAX: Final = 100
"""Points of one partition's trend, which is drawn 96 pixels wide."""
_POINTS_MAX: Final = 400
_PARTITIONS_PAGE: Final = 100
"""Entries per read for one group's partitions; each has up to 500 of them."""
_ONE_POINT_MS: Final = 1_000
"""Entries of a group within this time are one point: a round has several for large groups, and rounds may overlap."""

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag at one time: records, and ms since the first of them was written; None when unknown."""

    time_ms: int
    records: int
    behind_ms: int | None


def total(time_ms: int, parts: Iterable[Lag]) -> Lag:
    """The sum over a group's partitions, with the longest known delay."""
    records, waits = 0, []
    for part in parts:
        records += part.records
        if part.behind_ms is not None:
            waits.append(part.behind_ms)
    return Lag(time_ms, records, max(waits, default=None))


def parse_sample(text: bytes, time_ms: int) -> Lag:
    """Parse what the sampler's `sample_text` wrote for a partition."""
    fields = fields_of(text)
    records, next_ms = int(fields[b"lag"]), int(fields[b"next_time"])
    return Lag(time_ms, records, 0 if not records else max(time_ms - next_ms, 0) if next_ms >= 0 else None)


def _parsed(_: bytes, values: Sequence[bytes]) -> tuple[Sample, dict[bytes, Lag]]:
    sample = Sample.of(values)
    return sample, {field: parse_sample(text, sample.time_ms) for field, text in sample.texts}


class LagTrend:
    """Totals of every group over the last half hour; a cache of what is in Redis."""

    def __init__(self) -> None:
        self._after = b""
        self._read_s = -FRESH_S
        self._reading = asyncio.Lock()
        self._points: defaultdict[str, deque[Lag]] = defaultdict(lambda: deque(maxlen=_POINTS_MAX))
        self._newest: dict[str, dict[bytes, Lag]] = {}
        """Group -> the partitions already counted in its last point."""

    async def read(self, store: Store) -> None:
        """Read new samples. Raises StoreUnavailable."""
        async with self._reading:
            if monotonic() - self._read_s < FRESH_S:
                return
            now_ms = store.clock.now_ms()
            self._after = await read_new(store, self._after, now_ms - SPAN_MS, self._take)
            self._forget(now_ms - SPAN_MS)
            self._read_s = monotonic()

    def _take(self, page: Iterable[StreamEntry], store: Store) -> None:
        for sample, parts in samples(page, store, _parsed):
            if parts:
                self._add(sample.ref, sample.time_ms, parts)

    def _add(self, ref: str, time_ms: int, parts: dict[bytes, Lag]) -> None:
        """A point counts each partition once, with its last sample, because rounds may be close together."""
        points = self._points[ref]
        if points and time_ms - points[-1].time_ms < _ONE_POINT_MS:
            time_ms = points.pop().time_ms
            parts = self._newest[ref] | parts
        points.append(total(time_ms, parts.values()))
        self._newest[ref] = parts

    def _forget(self, before_ms: int) -> None:
        for ref, points in list(self._points.items()):
            while points and points[0].time_ms < before_ms:
                points.popleft()
            if not points:
                del self._points[ref], self._newest[ref]

    def of(self, ref: str) -> list[Lag]:
        """A group's totals, oldest first; `ref` is its name in its shard's keys."""
        return list(self._points.get(ref, ()))


class _Samples:
    """Samples of one partition, added newest first, unparsed; thinned evenly to PARTITION_POINTS_MAX."""

    __slots__ = ("_added", "_kept", "_stride")

    def __init__(self) -> None:
        self._added, self._stride = 0, 1
        self._kept: list[tuple[int, bytes]] = []

    def add(self, time_ms: int, text: bytes) -> None:
        if self._added % self._stride == 0:
            self._kept.append((time_ms, text))
            if len(self._kept) > PARTITION_POINTS_MAX:
                del self._kept[1::2]
                self._stride *= 2
        self._added += 1

    def points(self) -> list[Lag]:
        """Oldest first; the newest sample is always included."""
        return [parse_sample(text, time_ms) for time_ms, text in reversed(self._kept)]


async def read_partitions(store: Store, ref: str) -> dict[Place, list[Lag]]:
    """One group's samples of the last half hour by partition, oldest first; at most PARTITION_POINTS_MAX each.

    Raises StoreUnavailable.
    """
    found: defaultdict[bytes, _Samples] = defaultdict(_Samples)
    start, end, left = str(store.clock.now_ms() - SPAN_MS), "+", SCANNED_MAX
    while left > 0:
        page: list[StreamEntry] = await store.read(
            "XREVRANGE", store.cluster_keys.lag, end, start, "COUNT", _PARTITIONS_PAGE
        )
        await asyncio.to_thread(_collect, page, store, ref, found)
        if len(page) < _PARTITIONS_PAGE:
            break
        left, end = left - len(page), "(" + page[-1][0].decode()
    return await asyncio.to_thread(_points, found)


def _collect(page: Iterable[StreamEntry], store: Store, ref: str, found: defaultdict[bytes, _Samples]) -> None:
    def parsed(_: bytes, values: Sequence[bytes]) -> Sample | None:
        """A sample of this group. Its texts are parsed when they are drawn; whoever wrote the first wrote them all."""
        sample = Sample.of(values)
        if sample.ref != ref:
            return None
        for field, text in sample.texts[:1]:
            split_field(field.decode())
            parse_sample(text, sample.time_ms)
        return sample

    for sample in samples(page, store, parsed):
        for field, text in sample.texts:
            found[field].add(sample.time_ms, text)


def _points(found: Mapping[bytes, _Samples]) -> dict[Place, list[Lag]]:
    return {split_field(field.decode()): samples.points() for field, samples in found.items()}
