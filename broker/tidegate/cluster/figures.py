"""Measurements of each broker, for humans: a key with an expiry, written every few seconds.

Any broker can report on all brokers without connecting to them. No decision depends on these figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Final

from tidegate.store.store import Store
from tidegate.telemetry.background_tasks import BackgroundTasks

EVERY_MS: Final = 5_000
_KEPT_MS: Final = 4 * EVERY_MS


@dataclass(frozen=True, slots=True)
class Figures:
    """One broker's recent measurements. `cpu_share` is of one core, `memory_bytes` the resident size."""

    process: str
    uptime_s: float
    connections: int
    loop_lag_ms: float
    cpu_share: float
    memory_bytes: int


class FigureReports:
    """Writes the result of `measure` under this broker's node id."""

    def __init__(self, store: Store, node_id: Callable[[], int], measure: Callable[[], Figures]) -> None:
        self._store, self._node_id, self._measure = store, node_id, measure
        self._loops = BackgroundTasks()

    async def start(self) -> None:
        """Write the figures now and periodically. Raises StoreUnavailable."""
        await self.report()
        self._loops.every("figures", EVERY_MS, self.report)

    async def close(self) -> None:
        """Stop."""
        await self._loops.close()

    async def report(self) -> None:
        """Write the figures. Raises StoreUnavailable."""
        text = json.dumps(asdict(self._measure()), separators=(",", ":"))
        await self._store.command("SET", self._store.cluster_keys.figures(self._node_id()), text, "PX", _KEPT_MS)


async def read_figures(store: Store, node_ids: Iterable[int]) -> dict[int, Figures]:
    """Figures of the last 20 s by node id; brokers without are left out. Raises StoreUnavailable."""
    asked = list(node_ids)
    if not asked:
        return {}
    reported = await store.command("MGET", *(store.cluster_keys.figures(node_id) for node_id in asked))
    return {node_id: Figures(**json.loads(text)) for node_id, text in zip(asked, reported, strict=True) if text}
