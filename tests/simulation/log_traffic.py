"""The log's part of a run: producers and readers of one topic, whose history the checker of real clusters judges."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from tests.kit.checker import check, summary
from tests.kit.history import History, LogBounds, Outcome, Send
from tests.simulation.history import Violation
from tests.simulation.log_clients import LIFE_S, TOPIC, LogReader, Writer

if TYPE_CHECKING:
    from tests.simulation.world import World

WRITERS: Final = 3
READERS: Final = 2


class LogTraffic:
    """Producers and readers of `partition_count` partitions."""

    def __init__(self, world: World, partition_count: int) -> None:
        self.world, self.partition_count = world, partition_count
        self.history = History()
        self.readers = [
            LogReader(self, f"reader-{number}", self._rng(f"reader {number}"))
            for number in range(READERS if partition_count else 0)
        ]
        self.writers: dict[int, Writer] = {}
        self.writers_started = 0

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"log {self.world.plan.seed} {name}")

    async def create(self) -> None:
        """Make the topic."""
        if self.partition_count:
            app = self.world.brokers[0].app
            assert app is not None
            await app.context.catalog.create("default", TOPIC, self.partition_count)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Everybody, as tasks that end with the run."""
        create = self.world.loop.create_task
        producing = [create(self._live(number)) for number in range(WRITERS if self.partition_count else 0)]
        return producing + [create(reader.run()) for reader in self.readers]

    def partition(self, index: int) -> str:
        """Its name in the history."""
        return f"{TOPIC}-{index}"

    def now_ns(self) -> int:
        return int(self.world.loop.now * 1e9)

    async def until_not_calm(self) -> None:
        if not self.world.calm_over.done():
            await asyncio.wait([self.world.calm_over])

    def broken(self, promise: str, text: str) -> Violation:
        """The error to raise."""
        faults = "\n  ".join(self.world.history.faults)
        return Violation(
            f"{promise} broken at {self.world.loop.now:.4f} s in the log: {text}\nlast faults:\n  {faults}"
        )

    async def _live(self, number: int) -> None:
        """One producer after another: a process crashes, and the next one has another producer id."""
        rng = self._rng(f"writer {number}")
        while True:
            self.writers_started += 1
            writer = self.writers[number] = Writer(self, f"w{self.writers_started}", rng)
            running = self.world.loop.create_task(writer.run())
            try:
                await asyncio.wait({running}, timeout=rng.expovariate(1 / LIFE_S) + 10)
                await self.until_not_calm()
                if running.done():
                    running.result()
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                writer.note_unanswered()
                writer.close()

    # -- checks

    def check_rest(self) -> None:
        """After a calm nothing waits: every batch is answered, and every reader is at the end (P8)."""
        for writer in self.writers.values():
            for queue in writer.queues:
                if queue.unacked:
                    raise self.broken(
                        "P8", f"{writer.name}: {len(queue.unacked)} batches of partition {queue.index} wait"
                    )
        ends = [max(reader.ends[index] for reader in self.readers) for index in range(self.partition_count)]
        for reader in self.readers:
            if reader.positions != ends:
                raise self.broken("P8", f"{reader.name} is at {reader.positions} of {ends} after a calm")

    def check_history(self) -> None:
        """When all is over, after a calm. Raises Violation."""
        ends = self.readers[0].positions if self.readers else []
        for index, end in enumerate(ends):
            self.history.add(LogBounds(self.now_ns(), self.partition(index), 0, end))
        if found := list(summary(check(self.history))):
            raise self.broken("P4", "\n  ".join(found))

    def counts(self) -> dict[str, int]:
        """Rows of the report."""
        sends = [one for one in self.history if isinstance(one, Send)]
        return {
            "producers started": self.writers_started,
            "records acknowledged": sum(one.outcome is Outcome.OK for one in sends),
            "records of unknown fate": sum(one.outcome is Outcome.UNKNOWN for one in sends),
            "records read": sum(sum(reader.positions) for reader in self.readers),
        }
