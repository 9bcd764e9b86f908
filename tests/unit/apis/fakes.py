"""A broker's services with logs that answer when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tests.support.log_broker import Connection
from tidegate.apis.call import BrokerContext, Client
from tidegate.errors import KafkaError, OffsetOutOfRange
from tidegate.log.append import Appended
from tidegate.log.read import Slice
from tidegate.log.state import LogOffsets
from tidegate.records.batch import Batch
from tidegate.records.build import NewRecord, build_batch
from tidegate.settings import Settings
from tidegate.store.changed_groups import ChangedGroups
from tidegate.store.keys import ClusterKeys
from tidegate.store.redis_clock import RedisClock

SETTINGS = Settings()
BATCH = build_batch([NewRecord(bytes(32))])
BATCH_BYTES = 100
assert len(BATCH) == BATCH_BYTES


class FakeLog:
    """A log of batches of `BATCH_BYTES`, one record each. With `held` reads and appends wait in `waiting`.

    `subscribed`: that nothing is to be read at its end is known without a read.
    """

    def __init__(self) -> None:
        self.end = 0
        self.start = 0
        self.epoch = 0
        self.aborts = 0
        self.held = self.subscribed = False
        self.waiting: list[Callable[[], None]] = []
        self.listeners: list[Callable[[], None]] = []
        self.reads: list[tuple[int, int, bool]] = []
        self.appended: list[Batch] = []
        self.failure: KafkaError | None = None
        self.topic: Any = None

    def grow(self, count: int = 1) -> None:
        """Batches come in."""
        self.end += count
        self.changed()

    def changed(self) -> None:
        """Notify whoever listens."""
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

    def append(self, batch: Batch, on_done: Any, *, acks_all: bool = True, transaction: Any = None) -> None:
        def answer() -> None:
            if self.failure is not None:
                on_done(self.failure)
                return
            self.appended.append(batch)
            self.grow()
            on_done(Appended(self.end - 1, -1, self.start, 0))

        asyncio.get_running_loop().call_soon(self._later, answer)

    def read(self, offset: int, bytes_max: int, at_least_one: bool, on_done: Any, committed: bool = False) -> None:
        self.reads.append((offset, bytes_max, at_least_one))

        def answer() -> None:
            if self.failure is not None or not self.start <= offset <= self.end:
                on_done(self.failure or OffsetOutOfRange())
                return
            count = min(self.end - offset, max(bytes_max // BATCH_BYTES, 1 if at_least_one else 0))
            buffers: list[Any] = [BATCH] * count
            ends = self.end, self.end, self.start
            aborted = [(self.aborts, offset)] if committed and count and self.aborts else []
            on_done(Slice(buffers, count * BATCH_BYTES, offset + count, *ends, range(offset, offset + count), aborted))

        self._later(answer)

    def is_at_end(self, offset: int, committed: bool = False) -> bool:
        return self.subscribed and self.start <= offset == self.end

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def known(self) -> LogOffsets:
        return LogOffsets(self.end, self.end, self.start, self.end, self.epoch, self.start, self.epoch)

    def has_offsets(self, high_watermark: int, log_start: int) -> bool:
        return (self.end, self.start) == (high_watermark, log_start)

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        return epoch, self.end


@dataclass(slots=True)
class FakeBroker:
    """Topic t over `logs`, one a partition."""

    logs: list[FakeLog]
    settings: Settings = SETTINGS
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
            record_bytes_max=None,
            compression_codec=None,
            compression_level=None,
            validates=True,
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
        alone = SimpleNamespace(node_id=1, rack=None, endpoint=lambda listener: ("h", 9092))
        lease: Any = SimpleNamespace(nameable=lambda listener: [alone])
        changed = ChangedGroups(lambda args, on_reply: None, ClusterKeys("tidegate"), 0)
        clock_only: Any = SimpleNamespace(clock=RedisClock(), pubsub=None, changed_groups=changed)
        catalog: Any = SimpleNamespace(
            record_topics=0,
            version=1,
            get=lambda org, name: topic if name == "t" and self.found else None,
            by_id=lambda org, topic_id: topic if topic_id == topic.topic_id else None,
            find=self._find,
            find_by_id=self._find,
        )
        durability = SimpleNamespace(prover=None)
        logs: Any = SimpleNamespace(partition=lambda topic, index: self.logs[index], durability=durability)
        self.context = BrokerContext(
            settings=self.settings, store=clock_only, broker_lease=lease, catalog=catalog, logs=logs, waits=nothing,
            heartbeats=nothing, offsets=nothing, consumers=nothing, producer_ids=nothing,
        )  # fmt: skip

    async def _find(self, org: str, key: Any) -> Any:
        self.lookups += 1
        await asyncio.sleep(0)
        self.found = True
        return self.context.catalog.get(org, key)

    def connect(self, connection_id: int = 1) -> Connection:
        """A client."""
        return Connection(self, Client(connection_id, "127.0.0.1", 50_000))  # type: ignore[arg-type]
