"""A mirror against a plain dict: reads anywhere, commits anywhere, members that come and go, through two brokers."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kio.schema.errors import ErrorCode

from tests.support.machines import run_machine
from tests.support.valkey import ValkeyServer
from tests.support.whole_broker import ClientOf, WholeBroker
from tidegate.settings import Settings

GROUP, TOPIC = "orders", "t"
RECORD_BYTES = 75
"""More than a batch of one record, less than one and another."""

offsets = st.integers(0, 1_000)
"""An offset, modulo what the log has and its end."""


class Mirrors(RuleBasedStateMachine):
    """`pending` maps the base of an entry to its member; news is written when `write` says so, or must be."""

    url = ""

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.ends = [0]
        self.pending: dict[int, str] = {}
        self.acknowledged, self.unwritten_commit = 0, False
        self.position: str | None = None
        self.positions: dict[str, int] = {}
        self.member: ClientOf
        self.before: ClientOf | None = None
        self.shown = False
        self.members = 0
        self.written, self.making = True, -1
        self.runner.run(self._start())

    async def _start(self) -> None:
        settings = Settings(redis_url=self.url, group_initial_rebalance_delay_ms=0)
        self.brokers = [await WholeBroker(settings, node_id).start() for node_id in (1, 2)]
        self.store = self.brokers[0].store
        await self.store.command("FLUSHALL")
        for broker in self.brokers:
            await broker.context.catalog.refresh()
        topic = await self.brokers[0].create(TOPIC)
        await self.brokers[1].context.catalog.refresh()
        self.keys = self.store.log_keys("default", TOPIC, 0, topic.topic_hex)
        await self._join(0)
        await self._produce([3, 2, 4, 1])

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self._close())
            self.runner.close()

    async def _close(self) -> None:
        for broker in self.brokers:
            await broker.close()

    async def _join(self, number: int) -> None:
        self.members += 1
        self.member = self.brokers[number].client(f"app-{self.members}")
        self.shown = False
        await self.member.own(TOPIC)
        await self._write()  # the owner is noted

    async def _write(self) -> None:
        for broker in self.brokers:
            await broker.mirrored()
        self.written, self.making, self.unwritten_commit = True, -1, False

    def _offset(self, number: int) -> int:
        return number % (self.ends[-1] + 1)

    def _end(self, base: int) -> int:
        return self.ends[self.ends.index(base) + 1]

    # -- what happens

    @rule(counts=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def produce(self, counts: list[int]) -> None:
        self.runner.run(self._produce(counts))

    async def _produce(self, counts: list[int]) -> None:
        await self.member.produce(TOPIC, *counts)
        for count in counts:
            self.ends.append(self.ends[-1] + count)

    @rule(number=offsets, entry_count=st.integers(1, 3))
    def fetch(self, number: int, entry_count: int) -> None:
        offset = self._offset(number)
        found = self.runner.run(self.member.fetch(TOPIC, offset, partition_max_bytes=RECORD_BYTES * entry_count))
        end_offset = _end_of(found.records, offset)
        bases = [
            base for base, end in zip(self.ends, self.ends[1:], strict=False) if base < end_offset and end > offset
        ]
        member_id = self.member.member_id
        if not bases and self.positions.get(member_id) == offset:
            return
        self.written, self.making = False, -1
        self.positions[member_id] = end_offset
        self.position = f"{bases[-1]}-1" if bases else f"{offset}-0"
        if not self.shown:
            self.shown = True
            self.pending = {base: owner for base, owner in self.pending.items() if owner == member_id}
        self.pending |= {base: member_id for base in bases if self._end(base) > self.acknowledged}

    @rule(number=offsets)
    def the_member_before_reads_on(self, number: int) -> None:
        if self.before is not None:
            self.runner.run(self.before.fetch(TOPIC, self._offset(number)))

    @rule(number=offsets, elsewhere=st.booleans())
    def commit(self, number: int, elsewhere: bool) -> None:
        offset, committer = self._offset(number), self.member
        if elsewhere:
            if offset < self.acknowledged or self.unwritten_commit:  # one coordinator's commits are in order
                self.runner.run(self._write())
            committer = self.brokers[0 if self.member.broker is self.brokers[1] else 1].client(self.member.client_id)
            committer.member_id, committer.generation = self.member.member_id, self.member.generation
        is_behind = self._is_behind(offset)
        if is_behind:  # it is judged by what is written before it
            self.runner.run(self._write())
        assert self.runner.run(committer.commit(TOPIC, offset)) is ErrorCode.none
        if is_behind:
            self.position = max(self.position, self._position_of(offset), key=_number)
        is_lower = offset < self.acknowledged
        self.acknowledged, self.unwritten_commit = offset, True
        finished = {base for base, end in zip(self.ends, self.ends[1:], strict=False) if end <= offset}
        self.pending = {base: owner for base, owner in self.pending.items() if base not in finished}
        if self.position is None or self.making >= 0:  # commits that are written together make it at the highest
            self.making = max(offset, self.making)
            spans = zip(self.ends, self.ends[1:], strict=False)
            holder = max((base for base, end in spans if base < self.making < end), default=self.making)
            self.position = f"{holder}-0"
        self.written = False
        if elsewhere or is_lower or is_behind:  # what is read on, without a seek, before it is written is not pending
            self.runner.run(self._write())

    def _is_behind(self, offset: int) -> bool:
        """Whether a commit completes more than the entries that are pending: delivered elsewhere, or long ago."""
        if self.position is None or self.making >= 0:
            return False
        below = [base for base in self.pending if base < offset]
        return self._end(max(below)) < offset if below else offset != self.acknowledged

    def _position_of(self, offset: int) -> str:
        """Where a commit proves a reader to be."""
        base = max((base for base in self.ends[:-1] if base < offset), default=0)
        return f"{base}-1" if 0 < self._end(base) <= offset else f"{base}-0"

    @rule(number=st.integers(0, 1))
    def another_member_takes_over(self, number: int) -> None:
        async def take_over() -> None:
            await self._write()
            self.before = self.brokers[0].client(self.member.client_id)
            await self.member.leave()
            await self._join(number)

        self.runner.run(take_over())

    @rule()
    def write(self) -> None:
        self.runner.run(self._write())

    # -- what must be so

    @invariant()
    def the_mirror_shows_it(self) -> None:
        if hasattr(self, "keys") and self.written:
            assert self.runner.run(self._observe()) == (self.position, self.pending)

    async def _observe(self) -> tuple[str | None, dict[int, str]]:
        groups = await self.store.command("XINFO", "GROUPS", self.keys.log)
        if not groups:
            return None, {}
        rows: list[Any] = await self.store.command("XPENDING", self.keys.log, GROUP, "-", "+", 10_000)
        pending = {int(row[0].partition(b"-")[0]): row[1].decode() for row in rows}
        return groups[0][b"last-delivered-id"].decode(), pending


def _number(position: str) -> tuple[int, ...]:
    return tuple(map(int, position.split("-")))


def _end_of(records: bytes | None, offset: int) -> int:
    """The offset behind the batches of a fetch."""
    at, end = 0, offset
    while records and at < len(records):
        end = int.from_bytes(records[at : at + 8]) + int.from_bytes(records[at + 23 : at + 27]) + 1
        at += 12 + int.from_bytes(records[at + 8 : at + 12])
    return end


def test_mirrors_follow_a_plain_dict(valkey: ValkeyServer) -> None:
    Mirrors.url = valkey.url
    run_machine(Mirrors, examples=15, steps=60)
