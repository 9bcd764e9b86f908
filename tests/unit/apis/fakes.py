"""A broker's rooms with logs that answer when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tests.support.log_broker import Connection
from tidegate.apis.call import BrokerContext, Client
from tidegate.errors import OffsetOutOfRange
from tidegate.log.append import Appended
from tidegate.log.read import Slice
from tidegate.log.state import LogOffsets
from tidegate.records.batch import Batch
from tidegate.records.build import NewRecord, build_batch
from tidegate.settings import Settings
from tidegate.store.redis_clock import RedisClock

BATCH = build_batch([NewRecord(bytes(32))])
BATCH_BYTES = 100
assert len(BATCH) == BATCH_BYTES


class FakeLog:
    """A log of batches of `BATCH_BYTES`, one record each. With `held` reads and appends wait in `waiting`."""

    def __init__(self) -> None:
        self.end = 0
        self.start = 0
        self.held = False
        self.waiting: list[Callable[[], None]] = []
        self.listeners: list[Callable[[], None]] = []
        self.reads: list[tuple[int, int, bool]] = []
        self.appended: list[Batch] = []
        self.failure: Exception | None = None
        self.topic: Any = None

    def grow(self, count: int = 1) -> None:
        """Batches come in."""
        self.end += count
        for listener in list(self.listeners):
            listener()

    def release(self) -> None:
        """Answer what waits."""
        waiting, self.waiting = self.waiting, []
        for answer in waiting:
            answer()

    def _later(self, answer: Callable[[], None]) -> None:
        if self.held:
            self.waiting.append(answer)
        else:
            answer()

    def append(self, batch: Batch, on_done: Any, *, acks_all: bool = True) -> None:
        def answer() -> None:
            if self.failure is not None:
                on_done(self.failure)
                return
            self.appended.append(batch)
            self.grow()
            on_done(Appended(self.end - 1, -1, self.start, 0))

        asyncio.get_running_loop().call_soon(self._later, answer)

    def read(self, offset: int, bytes_max: int, at_least_one: bool, on_done: Any) -> None:
        self.reads.append((offset, bytes_max, at_least_one))

        def answer() -> None:
            if self.failure is not None or not self.start <= offset <= self.end:
                on_done(self.failure or OffsetOutOfRange())
                return
            count = min(self.end - offset, max(bytes_max // BATCH_BYTES, 1 if at_least_one else 0))
            buffers: list[Any] = [BATCH] * count
            on_done(Slice(buffers, count * BATCH_BYTES, offset + count, self.end, self.end, self.start))

        self._later(answer)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def known(self) -> LogOffsets:
        return LogOffsets(self.end, self.end, self.start, self.end, 0, self.start)


@dataclass(slots=True)
class FakeBroker:
    """Topic t over `logs`, one a partition."""

    logs: list[FakeLog]
    settings: Settings = field(default_factory=Settings)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    lookups: int = 0
    found: bool = True
    context: Any = None

    def __post_init__(self) -> None:
        config = SimpleNamespace(
            max_message_bytes=1 << 20,
            cleanup_policy=frozenset({"delete"}),
            message_timestamp_type="CreateTime",
            message_timestamp_before_max_ms=(1 << 63) - 1,
            message_timestamp_after_max_ms=3_600_000,
        )
        topic = SimpleNamespace(
            org="default",
            name="t",
            topic_id=UUID(int=7),
            topic_hex=UUID(int=7).hex,
            partition_count=len(self.logs),
            config=config,
        )
        for log in self.logs:
            log.topic = topic
        nothing: Any = None
        clock_only: Any = SimpleNamespace(clock=RedisClock())
        catalog: Any = SimpleNamespace(
            version=1,
            get=lambda org, name: topic if name == "t" and self.found else None,
            by_id=lambda org, topic_id: topic if topic_id == topic.topic_id else None,
            find=self._find,
            find_by_id=self._find,
        )
        logs: Any = SimpleNamespace(partition=lambda topic, index: self.logs[index])
        self.context = BrokerContext(
            settings=self.settings, store=clock_only, broker_lease=nothing, catalog=catalog, logs=logs, waits=nothing,
            heartbeats=nothing, offsets=nothing, producer_ids=nothing,
        )  # fmt: skip

    async def _find(self, org: str, key: Any) -> Any:
        self.lookups += 1
        await asyncio.sleep(0)
        self.found = True
        return self.context.catalog.get(org, key)

    def connect(self) -> Connection:
        """A client."""
        return Connection(self, Client(1, "127.0.0.1", 50_000))  # type: ignore[arg-type]
