"""Since when the committed offsets of a group without members are the same while records wait, by its lag samples.

A commit's time is no sign of progress: readers that commit at checkpoints (Flink, Spark) commit the same offsets again
while their source hangs. Samples are read when a group's judgement needs them, each once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

from tidegate.diagnosis.lag_samples import FRESH_S, Sample, fields_of, read_new, samples
from tidegate.diagnosis.snapshot_model import CommitSnapshot
from tidegate.groups.offsets import split_field
from tidegate.store.foreign_entries import StreamEntry
from tidegate.store.store import Store

Place = tuple[str, int]
"""Topic and partition."""
_SPAN_MS: Final = 15 * 60_000
"""How far the first reading goes back, and when a group without samples is forgotten."""
PARTITIONS_MAX: Final = 20_000
"""Partitions whose samples are followed, 8 MB. Groups beyond are judged by the age of their commits."""
_REFUSED_MAX: Final = 2_000
"""Groups beyond that are remembered, 1 MB; with so many, no other group begins to be followed."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The offsets are the same since `stalled_at_ms` at the latest, and records wait since then.

    `is_begin`: samples show when that began; otherwise it may have been long before.
    """

    stalled_at_ms: int
    is_begin: bool


class _Since(NamedTuple):
    """The first of the samples in a row that show the same; `is_begin` if one before shows something else."""

    time_ms: int
    is_begin: bool


class _Streak(NamedTuple):
    """Samples in a row with one committed offset; `waits` are those of them, up to the last, in which records wait."""

    committed: int
    since: _Since
    waits: _Since | None

    def followed_by(self, committed: int, time_ms: int, waits: bool) -> _Streak:
        begin = _Since(time_ms, True)
        if committed != self.committed:
            return _Streak(committed, begin, begin if waits else None)
        return self._replace(waits=(self.waits or begin) if waits else None)


class _Group:
    """A group that is followed; `is_whole` unless that began in the middle of its first sample."""

    __slots__ = ("is_whole", "streaks", "time_ms")

    def __init__(self, is_whole: bool) -> None:
        self.streaks: dict[Place, _Streak] = {}
        self.time_ms = 0
        self.is_whole = is_whole


class _Refused:
    """A group that is not followed. The partitions of one sample of it are counted, until `first` comes again."""

    __slots__ = ("count", "first", "time_ms")

    def __init__(self, sample: Sample, parts: Mapping[Place, object]) -> None:
        self.first, self.count, self.time_ms = next(iter(parts)), len(parts), sample.time_ms

    def counted(self, sample: Sample, parts: Mapping[Place, object]) -> int | None:
        """Add an entry; the number of the group's partitions if it was counted."""
        self.time_ms = sample.time_ms
        size = max(self.count, len(parts)) if self.first in parts else None
        if size is not None or self.count > PARTITIONS_MAX:  # too many, or the first one was deleted
            self.first, self.count = next(iter(parts)), 0
        self.count += len(parts)
        return size


class CommitProgress:
    """The groups whose last sample shows no owner of a partition; a cache of what is in Redis."""

    def __init__(self) -> None:
        self._after = b""
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()
        self._groups: dict[str, _Group] = {}
        self._refused: dict[str, _Refused] = {}
        self._held = 0

    async def read(self, store: Store) -> None:
        """Read new samples. Raises StoreUnavailable."""
        async with self._reading:
            if monotonic() - self._read_s < FRESH_S:
                return
            since_ms = store.clock.now_ms() - _SPAN_MS
            self._groups = {ref: group for ref, group in self._groups.items() if group.time_ms >= since_ms}
            self._refused = {ref: group for ref, group in self._refused.items() if group.time_ms >= since_ms}
            self._held = sum(len(group.streaks) for group in self._groups.values())
            self._after = await read_new(store, self._after, since_ms, self._take)
            self._read_s = monotonic()

    def of(self, ref: str, commits: Iterable[CommitSnapshot], now_ms: int) -> Progress | None:
        """The progress of a group with these commits, which may be newer than its samples; None without samples.

        For any thread.
        """
        committed = {(one.topic, one.partition): one.offset for one in commits}
        group = self._groups.get(ref)
        found = (
            {}
            if group is None or not group.is_whole
            else {place: one for place, one in [*group.streaks.items()] if place in committed}
        )
        if not found:
            return None
        if any(committed[place] != one.committed for place, one in found.items()):
            return Progress(now_ms, True)
        streaks = found.values()
        waits = min((one.waits for one in streaks if one.waits is not None), default=_Since(now_ms, True))
        return Progress(*max(waits, *(one.since for one in streaks)))

    def _take(self, page: Iterable[StreamEntry], store: Store) -> None:
        for sample, parts in samples(page, store, _parsed):
            if any(owner for _, _, owner in parts.values()):
                self._drop(sample.ref)
                self._refused.pop(sample.ref, None)
            elif parts and self._is_followed(sample, parts):
                self._add(sample, parts)

    def _is_followed(self, sample: Sample, parts: Mapping[Place, object]) -> bool:
        """Whether its partitions are within the limit.

        A sample of a group may be several entries. A group of which one is beyond the limit is not followed at all:
        what is not followed of it may advance. Its partitions are counted before it is followed again.
        """
        ref, group, refused = sample.ref, self._groups.get(sample.ref), self._refused.get(sample.ref)
        if refused is not None:
            size = refused.counted(sample, parts)
            if size is None or self._held + size > PARTITIONS_MAX:
                return False
            del self._refused[ref]
            self._groups[ref] = _Group(is_whole=False)
            return True
        known: Mapping[Place, object] = {} if group is None else group.streaks
        if self._held + len(parts.keys() - known.keys()) <= PARTITIONS_MAX:
            return group is not None or len(self._refused) < _REFUSED_MAX
        self._drop(ref)
        if group is not None or len(self._refused) < _REFUSED_MAX:
            self._refused[ref] = _Refused(sample, parts)
        return False

    def _drop(self, ref: str) -> None:
        group = self._groups.pop(ref, None)
        self._held -= 0 if group is None else len(group.streaks)

    def _add(self, sample: Sample, parts: Mapping[Place, tuple[int, bool, bytes]]) -> None:
        group = self._groups.setdefault(sample.ref, _Group(is_whole=True))
        group.is_whole = group.is_whole or not parts.keys().isdisjoint(group.streaks)
        group.time_ms, first, before_count = sample.time_ms, _Since(sample.time_ms, False), len(group.streaks)
        for place, (committed, waits, _) in parts.items():
            before = group.streaks.get(place)
            group.streaks[place] = (
                _Streak(committed, first, first if waits else None)
                if before is None
                else before.followed_by(committed, sample.time_ms, waits)
            )
        self._held += len(group.streaks) - before_count


def _parsed(_: bytes, values: Sequence[bytes]) -> tuple[Sample, dict[Place, tuple[int, bool, bytes]]]:
    sample = Sample.of(values)
    return sample, {split_field(field.decode()): _partition(text) for field, text in sample.texts}


def _partition(text: bytes) -> tuple[int, bool, bytes]:
    """Committed offset, whether records wait, and the owner's member id."""
    fields = fields_of(text)
    return int(fields[b"committed"]), int(fields[b"lag"]) > 0, fields[b"member"]
