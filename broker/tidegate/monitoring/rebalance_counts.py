"""Counts rebalances by cause and the durations of barriers, from the events of all shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.diagnosis.group_events import CAUSES
from tidegate.store.calls import gather_readable
from tidegate.store.outcome import FaultyKeys
from tidegate.store.store import Store
from tidegate.telemetry.metrics import metrics

_EVENTS_AT_ONCE: Final = 500
_PAGES_MAX: Final = 20
"""Limit of pages for one shard in one round; later rounds count the rest."""
_KNOWN: Final = frozenset(CAUSES) | {"writes_lost"}
_PHASES: Final = {"barrier_joined": "join", "assignment_stored": "sync"}


class RebalanceCounts:
    """Counts events since the last round; if that was long ago, since one sample interval ago."""

    def __init__(self, store: Store, interval_ms: int) -> None:
        self._store, self._interval_ms = store, interval_ms
        self._after: dict[int, str] = {}
        """Shard -> the last counted event."""
        self._counted_ms = 0

    async def count(self, now_ms: int) -> dict[str, FaultyKeys]:
        """Count up to now; returns the streams that cannot be read.

        Raises StoreUnavailable; a later call counts no event twice.
        """
        since_ms = now_ms - 2 * self._interval_ms
        if self._counted_ms < since_ms:  # another broker counted meanwhile
            self._after.clear()
        self._counted_ms = now_ms
        streams = {
            self._store.shard_keys(shard).events: shard for shard in range(self._store.settings.coordinator_shards)
        }
        first = f"{since_ms + self._interval_ms}-0"
        _, faulty = await gather_readable({key: self._count_shard(shard, first) for key, shard in streams.items()})
        return faulty

    async def _count_shard(self, shard: int, first: str) -> None:
        stream = self._store.shard_keys(shard).events
        for _ in range(_PAGES_MAX):
            after = self._after.setdefault(shard, first)
            events = await self._store.read("XRANGE", stream, f"({after}", "+", "COUNT", _EVENTS_AT_ONCE)
            for event in self._store.foreign_entries.leave_out(stream, events, _parsed):
                _count(*event)
            if events:
                self._after[shard] = events[-1][0].decode()
            if len(events) < _EVENTS_AT_ONCE:
                return


def _parsed(_: bytes, values: Sequence[bytes]) -> tuple[str, str, int]:
    """Kind, cause and duration, ms."""
    fields = dict(zip(values[::2], values[1::2], strict=True))
    return fields[b"kind"].decode(), fields.get(b"cause", b"").decode(), int(fields.get(b"duration_ms") or 0)


def _count(kind: str, cause: str, duration_ms: int) -> None:
    if kind == "rebalance_started":
        label = cause if cause in _KNOWN else "other"
        metrics.rebalances[label] = metrics.rebalances.get(label, 0) + 1
    elif kind in _PHASES:
        metrics.barriers[_PHASES[kind]].observe(duration_ms / 1000)
