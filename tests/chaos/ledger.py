"""The second topic of a run: transactions, a reader of what they committed, and a share group."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka.admin import AdminClient

from tests.kit.history import ShareBounds, now_ns
from tests.kit.share_members import ShareMember, configure, start_offsets
from tests.kit.transactions import TRANSACTION_S, CommittedReader, TransactionalWriter
from tests.kit.writers import Session, acknowledged_ends

TOPIC: Final = "ledger"
PARTITIONS: Final = 2
GROUP: Final = "share"
MEMBERS: Final = 2


class Ledger:
    """Its clients, from the first record to the last; what is fatal to one is so to the run."""

    def __init__(self, orders: Session, rng: random.Random) -> None:
        self.session = Session(orders.history, orders.bootstrap, TOPIC, PARTITIONS)
        self.session.fatal, self.session.resets = orders.fatal, orders.resets
        self._rng, self._joined = rng, 0
        self._writer = TransactionalWriter(self.session, "w-transactions", rng)
        self._reader = CommittedReader(self.session, "committed")
        self._members: list[ShareMember] = []

    async def start(self, admin: AdminClient) -> None:
        await asyncio.to_thread(configure, admin, GROUP)
        self._writer.start()
        self._reader.start()
        for _ in range(MEMBERS):
            self._join()

    def _join(self) -> None:
        self._joined += 1
        self._members.append(ShareMember(self.session, f"{GROUP}-{self._joined}", GROUP, self._rng))
        self._members[-1].start()

    async def change_member(self) -> None:
        """One joins, and another leaves."""
        self._join()
        await self._members.pop(0).stop()

    async def stop_writer(self) -> None:
        await self._writer.stop()

    async def catch_up(self, within_s: float) -> list[str]:
        """Until the share group has finished every acknowledged record; else what it has not. Notes what it has."""
        ends, deadline = acknowledged_ends(self.session), time.monotonic() + within_s
        starts: Mapping[str, int] = {}
        while (not starts or _behind(starts, ends)) and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            starts = await start_offsets(self.session, GROUP)
        for partition, start in starts.items():
            self.session.history.add(ShareBounds(now_ns(), GROUP, partition, start))
        behind = _behind(starts, ends)
        return [f"stuck: the share group has not finished all after the faults: {behind}"] if behind else []

    def lost_producers(self) -> list[str]:
        """Errors that ended a producer, unless its transaction was open too long."""
        lost = self._writer.lost
        return [f"fatal: {one.error}" for one in lost if one.ended - one.began < TRANSACTION_S * 1e9]

    async def stop(self) -> None:
        """After `catch_up`."""
        await asyncio.gather(self._reader.stop(), *(member.stop() for member in self._members))


def _behind(starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    return {name: (starts.get(name, 0), end) for name, end in ends.items() if starts.get(name, 0) < end}
