"""The part of a run that share groups have, in order of keys: members on whole brokers, judged as real clusters are.

P3  a record whose acceptance was acknowledged is not delivered again, and no record is finished that nobody accepted
P7  a record is delivered when all earlier ones of its key are finished
P8  after a calm every record has been accepted: nobody starves
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tests.kit.checker import check, summary
from tests.kit.history import Acknowledgement, Delivery, History, Outcome, Send, ShareBounds
from tests.simulation.history import Violation
from tests.simulation.share_members import LOCK_S, SharedRecord, ShareMember
from tests.simulation.wire import Disconnected, Wire
from tests.support import clock
from tests.support.log_broker import produce_request
from tidegate.groups import configs
from tidegate.records.build import NewRecord, build_batch

if TYPE_CHECKING:
    from tests.simulation.world import World

PRODUCE, PRODUCE_VERSION = 0, 9
PARTITIONS: Final = 2
KEYS: Final = "abcdef"
DELIVERIES_MAX: Final = 25
_GIVEN_UP: Final = 12
"""Deliveries after which a record may be finished without an acceptance: some of them were lost on their way."""
_PRODUCE_EVERY_S: Final = 4.0
_MINE_S: Final = 45.0
"""Before the end of a calm: records that were produced earlier must have been accepted."""
_NOTES_KEPT: Final = 60
_CONFIGS: Final = {
    "share.auto.offset.reset": "earliest",
    "share.ordering": "key",
    "share.delivery.count.limit": str(DELIVERIES_MAX),
    "share.record.lock.duration.ms": str(int(LOCK_S * 1000)),
    "share.session.timeout.ms": "12000",
    "share.heartbeat.interval.ms": "3000",
}


class ShareGroupHistory:
    """One group: what its members were given, and what they said of it."""

    def __init__(self, traffic: ShareTraffic, group_id: str) -> None:
        self.group_id, self._traffic = group_id, traffic
        self.history = History()
        self.accepting: dict[tuple[int, int], int] = {}
        """Partition and offset of records that somebody accepted, or began to -> number of the last such delivery."""
        self.counts: dict[tuple[int, int], int] = {}
        """Partition and offset -> deliveries that were seen."""
        self.delivered: dict[tuple[int, str], list[int]] = defaultdict(list)
        """Partition and key -> offsets that were delivered."""
        self.notes: deque[str] = deque(maxlen=_NOTES_KEPT)

    def deliver(self, record: SharedRecord, member: str) -> None:
        """A member was given a record. Raises Violation."""
        place = record.partition, record.offset
        self.counts[place] = max(record.count, self.counts.get(place, 0))
        self.note(f"{member} is given {record}")
        offsets = self.delivered[record.partition, record.key]
        for other in {*offsets, *self._traffic.offsets[record.partition, record.key]}:
            if other < record.offset and not self._is_finished(record.partition, other):
                raise self.broken("P7", f"{member} was given {record} before {other} of its key was finished")
            if other > record.offset and other in offsets and not self._is_finished(*place):
                raise self.broken("P7", f"{member} was given {record} after {other} of its key")
        if record.offset not in offsets:
            offsets.append(record.offset)

    def note(self, text: str) -> None:
        """Keep a line for the report of a violation."""
        self.notes.append(f"{self._traffic.world.loop.now:12.4f}  {text}")

    def _is_finished(self, partition: int, offset: int) -> bool:
        return (partition, offset) in self.accepting or self.counts.get((partition, offset), 0) >= _GIVEN_UP

    def broken(self, promise: str, text: str) -> Violation:
        """The error to raise."""
        world = self._traffic.world
        return Violation(
            f"{promise} broken at {world.loop.now:.4f} s in group {self.group_id}: {text}\nlast deliveries:\n  "
            + "\n  ".join(self.notes) + "\nlast faults:\n  " + "\n  ".join(world.history.faults)
        )  # fmt: skip


class ShareTraffic:
    """The share groups of a run, and the producer of their topic."""

    topic: Final = "shared"

    def __init__(self, world: World, group_count: int) -> None:
        self.world = world
        self.groups = {f"h{number}": ShareGroupHistory(self, f"h{number}") for number in range(group_count)}
        self.topic_id: Any = None
        self.sends: list[Send] = []
        self.offsets: dict[tuple[int, str], list[int]] = defaultdict(list)
        """Partition and key -> offsets of acknowledged records."""
        self.slots: dict[str, list[ShareMember | None]] = {}
        self.members_started = 0

    async def create(self) -> None:
        """Make the topic, and set the groups' configs."""
        app = self.world.brokers[0].app
        if app is None or not self.groups:
            return
        await app.context.catalog.create("default", self.topic, PARTITIONS)
        found = await app.context.catalog.find("default", self.topic)
        assert found is not None
        self.topic_id = found.topic_id
        for group_id in self.groups:
            await configs.alter(app.context.store, app.context.store.group_keys("default", group_id), _CONFIGS, [])

    def tasks(self) -> list[asyncio.Task[None]]:
        """Everybody, as tasks that end with the run."""
        create, found = self.world.loop.create_task, []
        for group_id in self.groups:
            self.slots[group_id] = [None] * self._rng(group_id).choice((2, 3, 4))
            found += [create(self._slot(group_id, slot)) for slot in range(len(self.slots[group_id]))]
        return [*found, create(self._produce())] if found else []

    def now_ns(self) -> int:
        """The virtual time."""
        return int(self.world.loop.now * 1e9)

    def partition(self, index: int) -> str:
        """Its name in a history."""
        return f"{self.topic}-{index}"

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"shares {self.world.plan.seed} {name}")

    # -- a producer

    async def _produce(self) -> None:
        """A few records now and then; those of unknown fate may be delivered, or not."""
        rng, number = self._rng("producer"), 0
        while True:
            await asyncio.sleep(rng.expovariate(1 / _PRODUCE_EVERY_S))
            index, keys = rng.randrange(PARTITIONS), [rng.choice(KEYS) for _ in range(rng.randint(1, 4))]
            values = [f"r{number + at}" for at in range(len(keys))]
            number += len(keys)
            now_ms = clock.START_MS + int(self.world.loop.now * 1000)
            records = [
                NewRecord(value.encode(), key=key.encode(), timestamp=now_ms)
                for key, value in zip(keys, values, strict=True)
            ]
            request = produce_request([(self.topic, [(index, build_batch(records))])], version=PRODUCE_VERSION)
            began = self.now_ns()
            try:
                wire = Wire(self.world.net, rng.choice(self.world.ports), lambda: None)
                await wire.ready()
                answers = await wire.ask(request, "producer", 8.0)
                wire.close()
            except Disconnected:
                continue
            answer = answers.responses[0].partition_responses[0]
            if answer.error_code is not ErrorCode.none:
                continue
            for offset, (key, value) in enumerate(zip(keys, values, strict=True), answer.base_offset):
                self.offsets[index, key].append(offset)
                self.sends.append(
                    Send(
                        "producer", began, self.now_ns(), self.partition(index), value, Outcome.OK, offset,
                        idempotent=False,
                    )
                )  # fmt: skip

    # -- members

    async def _slot(self, group_id: str, slot: int) -> None:
        """One place of a group: member after member, until the run ends."""
        rng = self._rng(f"{group_id} {slot}")
        await asyncio.sleep(rng.uniform(0, 10))
        while True:
            self.members_started += 1
            member = ShareMember(self, self.groups[group_id], f"{group_id}.{slot}.{self.members_started}", rng)
            self.slots[group_id][slot] = member
            running = self.world.loop.create_task(member.run())
            try:
                await asyncio.wait({running}, timeout=rng.expovariate(1 / 120) + 5)
                await self._until_not_calm(running)
                if running.done():
                    running.result()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            if rng.random() < 0.5:
                await member.leave()
            else:
                member.crash()
            self.slots[group_id][slot] = None
            await asyncio.sleep(rng.expovariate(1 / 15))
            await self._until_not_calm(None)

    async def _until_not_calm(self, running: asyncio.Task[None] | None) -> None:
        if not self.world.calm_over.done():
            awaited = [self.world.calm_over, *([] if running is None else [running])]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)

    # -- checks

    def event(self, entry: dict[str, str]) -> bool:
        """Whether an event is of one of these groups."""
        return entry["group"].removeprefix("default/") in self.groups

    def check_rest(self) -> None:
        """After a calm. Raises Violation."""
        before = self.now_ns() - int(_MINE_S * 1e9)
        old = {(int(one.partition[-1]), one.offset): one.value for one in self.sends if one.ended < before}
        for group_id, slots in self.slots.items():
            group = self.groups[group_id]
            if any(member is not None and not member.is_gone for member in slots):
                left = {place: value for place, value in old.items() if place not in group.accepting}
                left = {place: value for place, value in left.items() if group.counts.get(place, 0) < _GIVEN_UP}
                if left:
                    raise group.broken("P8", f"after a calm {len(left)} records are not accepted: {left}")

    def check_history(self) -> None:
        """When all is over. Raises Violation."""
        for group_id, group in self.groups.items():
            bounds = [
                ShareBounds(self.now_ns(), group_id, self.partition(index), self._start(group_id, index))
                for index in range(PARTITIONS)
            ]
            if found := list(summary(check(History([*self.sends, *group.history, *bounds])))):
                raise group.broken("P3", "\n  ".join(found))

    def _start(self, group_id: str, index: int) -> int:
        """The start offset of a share-partition, as stored."""
        app = next(broker.app for broker in self.world.brokers if broker.app is not None)
        own, available, acquired, _ = app.context.store.group_keys("default", group_id).share(self.topic_id.hex, index)
        asked = [("HGET", own, "end"), ("ZRANGE", available, 0, 0), ("ZRANGE", acquired, 0, 0)]
        end, *firsts = self.world.connection.calls(self.world.redis.now_ms(), asked)
        return min([int(end or 0), *(int(first) for some in firsts for first in some)])

    def counts(self) -> dict[str, int]:
        """Rows of the report."""
        operations = [one for group in self.groups.values() for one in group.history]
        deliveries = [one for one in operations if isinstance(one, Delivery)]
        answers = [one for one in operations if isinstance(one, Acknowledgement)]
        return {
            "share members started": self.members_started,
            "share records produced": len(self.sends),
            "share deliveries": sum(len(one.records) for one in deliveries),
            "share deliveries again": sum(count > 1 for one in deliveries for _, _, count in one.records),
            "share acceptances acknowledged": sum(len(one.accepted) for one in answers if one.outcome is Outcome.OK),
            "share acceptances of unknown fate": sum(
                len(one.accepted) for one in answers if one.outcome is Outcome.UNKNOWN
            ),
        }
