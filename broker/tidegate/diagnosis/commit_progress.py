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
    __slots__ = ("streaks", "time_ms")

    def __init__(self) -> None:
        self.streaks: dict[Place, _Streak] = {}
        self.time_ms = 0


class CommitProgress:
    """The groups whose last sample shows no owner of a partition; a cache of what is in Redis."""

    def __init__(self) -> None:
        self._after = b""
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()
        self._groups: dict[str, _Group] = {}

    async def read(self, store: Store) -> None:
        """Read new samples. Raises StoreUnavailable."""
        async with self._reading:
            if monotonic() - self._read_s < FRESH_S:
                return
            since_ms = store.clock.now_ms() - _SPAN_MS
            self._groups = {ref: group for ref, group in self._groups.items() if group.time_ms >= since_ms}
            self._after = await read_new(store, self._after, since_ms, self._take)
            self._read_s = monotonic()

    def of(self, ref: str, commits: Iterable[CommitSnapshot], now_ms: int) -> Progress | None:
        """The progress of a group with these commits, which may be newer than its samples; None without samples.

        For any thread.
        """
        committed = {(one.topic, one.partition): one.offset for one in commits}
        group = self._groups.get(ref)
        found = {} if group is None else {place: one for place, one in [*group.streaks.items()] if place in committed}
        if not found:
            return None
        if any(committed[place] != one.committed for place, one in found.items()):
            return Progress(now_ms, True)
        streaks = found.values()
        waits = min((one.waits for one in streaks if one.waits is not None), default=_Since(now_ms, True))
        return Progress(*max(waits, *(one.since for one in streaks)))

    def _take(self, page: Iterable[StreamEntry], store: Store) -> None:
        held = sum(len(group.streaks) for group in self._groups.values())
        for sample, parts in samples(page, store, _parsed):
            if any(owner for _, _, owner in parts.values()):
                self._groups.pop(sample.ref, None)
            elif sample.ref in self._groups or held + len(parts) <= PARTITIONS_MAX:
                held += self._add(sample, parts)

    def _add(self, sample: Sample, parts: Mapping[Place, tuple[int, bool, bytes]]) -> int:
        """Returns the number of partitions that were not there yet."""
        group = self._groups.setdefault(sample.ref, _Group())
        group.time_ms, first, before_count = sample.time_ms, _Since(sample.time_ms, False), len(group.streaks)
        for place, (committed, waits, _) in parts.items():
            before = group.streaks.get(place)
            group.streaks[place] = (
                _Streak(committed, first, first if waits else None)
                if before is None
                else before.followed_by(committed, sample.time_ms, waits)
            )
        return len(group.streaks) - before_count


def _parsed(_: bytes, values: Sequence[bytes]) -> tuple[Sample, dict[Place, tuple[int, bool, bytes]]]:
    sample = Sample.of(values)
    return sample, {split_field(field.decode()): _partition(text) for field, text in sample.texts}


def _partition(text: bytes) -> tuple[int, bool, bytes]:
    """Committed offset, whether records wait, and the owner's member id."""
    fields = fields_of(text)
    return int(fields[b"committed"]), int(fields[b"lag"]) > 0, fields[b"member"]
