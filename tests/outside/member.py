"""One group member in a process of its own: `python -m tests.outside.member '<JSON of a MemberSpec>'`.

It reads, commits what it has read, pauses and resumes partitions, seeks back, asks for committed offsets, and
writes into its journal what it did and what its listener was called with. SIGTERM closes it. A client library
is driven by a `Driver`; this module decides what is done and when, and keeps the journal.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from tests.kit.history import now_ns
from tests.outside.journal import Journal

COMMIT_EVERY_S, PAUSE_EVERY_S, SEEK_EVERY_S, ASK_EVERY_S = 0.5, 3.0, 5.0, 2.0
PAUSE_S = 1.0
SEEK_BACK_MAX = 20


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """Library, group and behaviour of one member."""

    library: str
    name: str
    group: str
    topic: str
    bootstrap: str
    journal: str
    instance_id: str | None
    synchronous: bool
    """Whether it waits for each commit."""
    seed: int
    session_timeout_ms: int = 30_000

    def command(self) -> list[str]:
        """What starts it."""
        return [sys.executable, "-m", "tests.outside.member", json.dumps(asdict(self))]


class Driver(Protocol):
    """One library's consumer; partitions are numbers, offsets those to be read next."""

    async def start(self) -> None: ...

    errors: tuple[type[Exception], ...]
    """What a call may raise while brokers die; it is noted, and tried again in its time."""

    async def poll(self) -> Mapping[int, list[tuple[int, str]]]:
        """Offsets and values by partition."""

    async def commit(self, offsets: Mapping[int, int], synchronous: bool) -> None: ...

    async def committed(self, partitions: list[int]) -> Mapping[int, int]: ...

    async def seek(self, partition: int, offset: int) -> None: ...

    async def pause(self, partition: int) -> None: ...

    async def resume(self, partition: int) -> None: ...

    async def close(self) -> None: ...


class GroupMember:
    """Owns partitions between its listener's calls, and remembers how far it has read each."""

    def __init__(self, spec: MemberSpec) -> None:
        self.spec = spec
        self.journal = Journal(spec.journal)
        self.positions: dict[int, int] = {}
        self.first: dict[int, int] = {}
        self.owned: set[int] = set()
        self.paused: dict[int, float] = {}
        """Partition -> when it is resumed."""
        self.stopping = False
        self._random = random.Random(spec.seed)
        module = importlib.import_module(f"tests.outside.{spec.library}_driver")
        self.driver: Driver = module.open_driver(self)

    # -- what drivers report

    def assigned(self, partitions: Iterable[int], generation: int, member_id: str) -> None:
        """New partitions: they are owned from now on."""
        new = sorted(partitions)
        self.owned.update(new)
        self.journal.note("assigned", partitions=new, generation=generation, member=member_id)

    def released(self, kind: str, partitions: Iterable[int]) -> None:
        """The listener has done all that it does with partitions that were revoked, or lost."""
        gone = sorted(partitions)
        for partition in gone:
            self.owned.discard(partition)
            self.paused.pop(partition, None)
            self.positions.pop(partition, None)
            self.first.pop(partition, None)
        self.journal.note(kind, partitions=gone)

    def uncommitted(self, partitions: Iterable[int]) -> dict[int, int]:
        """How far partitions have been read, where anything was."""
        return {partition: self.positions[partition] for partition in partitions if partition in self.positions}

    def committed(
        self, began: int, offsets: Mapping[int, int], generations: tuple[int, int], error: str | None
    ) -> None:
        """The answer to a commit. Its generation is known if it was the same before and after."""
        generation = generations[0] if generations[0] == generations[1] else -1
        self.journal.note("commit", began=began, offsets=dict(offsets), generation=generation, error=error)

    # -- what it does

    async def run(self) -> None:
        """Until SIGTERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        self.journal.note("starting", spec=asdict(self.spec))
        await self.driver.start()
        due = {name: loop.time() + self._random.uniform(0.5, 1.5) * every for name, every in self._every().items()}
        while not self.stopping:
            await self._try("poll")
            for name, every in self._every().items():
                if loop.time() >= due[name] and not self.stopping:
                    due[name] = loop.time() + self._random.uniform(0.5, 1.5) * every
                    await self._try(name)
            await self._try("resume")
        self.journal.note("stopping", partitions=sorted(self.owned))
        offsets = self.uncommitted(self.owned)
        if offsets:
            await self.driver.commit(offsets, synchronous=True)
        self.journal.note("revoked", partitions=sorted(self.owned))  # it reads and commits nothing any more
        self.owned.clear()
        await self.driver.close()
        self.journal.note("stopped")

    def _stop(self) -> None:
        self.stopping = True

    @staticmethod
    def _every() -> dict[str, float]:
        return {"commit": COMMIT_EVERY_S, "pause": PAUSE_EVERY_S, "seek": SEEK_EVERY_S, "ask": ASK_EVERY_S}

    async def _try(self, name: str) -> None:
        try:
            await getattr(self, f"_{name}")()
        except self.driver.errors as error:
            self.journal.note("error", action=name, error=repr(error))

    async def _poll(self) -> None:
        for partition, records in (await self.driver.poll()).items():
            if records:
                self.first.setdefault(partition, records[0][0])
                self.positions[partition] = records[-1][0] + 1
                self.journal.note("read", partition=partition, records=records)

    async def _commit(self) -> None:
        offsets = self.uncommitted(self.owned)
        if offsets:
            await self.driver.commit(offsets, self.spec.synchronous)

    async def _pause(self) -> None:
        if not self.owned:
            return
        partition = self._random.choice(sorted(self.owned))
        await self.driver.pause(partition)
        self.journal.note("paused", partition=partition)
        self.paused[partition] = asyncio.get_running_loop().time() + PAUSE_S

    async def _resume(self) -> None:
        now = asyncio.get_running_loop().time()
        for partition in [one for one, until in self.paused.items() if now >= until]:
            del self.paused[partition]
            self.journal.note("resuming", partition=partition)
            await self.driver.resume(partition)

    async def _seek(self) -> None:
        """Back by a few records of one partition, never to before what this ownership began with."""
        able = sorted(self.owned & self.positions.keys() - self.paused)
        if able:
            partition = self._random.choice(able)
            position = self.positions[partition]
            target = max(self.first[partition], position - self._random.randint(1, SEEK_BACK_MAX))
            await self.driver.seek(partition, target)
            self.journal.note("seek", partition=partition, offset=target)
            self.positions[partition] = target

    async def _ask(self) -> None:
        partitions = sorted(self.owned)
        if partitions:
            began = now_ns()
            found = await self.driver.committed(partitions)
            self.journal.note("committed", began=began, offsets=dict(found))


if __name__ == "__main__":
    asyncio.run(GroupMember(MemberSpec(**json.loads(sys.argv[1]))).run())
