"""The part of a run that KIP-848 and streams groups have: members on whole brokers, judged as real clusters are.

P1  a partition, or the task that reads it, has one owner over all epochs
P2  a member's epoch only grows
P3  no commit of a former owner is accepted, and no acknowledged commit is lost
P5  a member is removed only after its session, or the time to confirm a revocation, has ended
P6  after a calm all members have reached one target, in which each partition has an owner
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tests.kit.checker import check, summary
from tests.kit.history import CommittedFetch, History, Removed
from tests.kit.wire import request
from tests.simulation.epoch_members import SESSION_S, EpochMember, StreamsThread, names
from tests.simulation.history import EARLY_MS, Violation
from tests.simulation.members import TOPIC
from tests.simulation.wire import Disconnected, Wire
from tidegate.groups import configs

if TYPE_CHECKING:
    from tests.simulation.world import World

FETCH: Final = 9
READ_EVERY_S: Final = 20.0
_NOTES_KEPT: Final = 60
_CONFIGS: Final = {"session.timeout.ms": str(int(SESSION_S * 1000)), "heartbeat.interval.ms": "3000"}


class EpochGroupHistory:
    """One group: the replies to its members."""

    def __init__(self, traffic: EpochTraffic, group_id: str) -> None:
        self.group_id, self._traffic = group_id, traffic
        self.history = History()
        self.members: dict[str, EpochMember] = {}
        """Member id -> its process, former ids too."""
        self.owners: dict[int, tuple[str, int]] = {}
        """Partition -> the member that got it last, and when."""
        self.notes: deque[str] = deque(maxlen=_NOTES_KEPT)
        self.removed = 0
        self._offset = 0

    def next_offset(self) -> int:
        """An offset that nobody has committed."""
        self._offset += 1
        return self._offset

    def broken(self, promise: str, text: str) -> Violation:
        """The error to raise."""
        world = self._traffic.world
        lines = "\n  ".join([*self.notes, *map(str, self.history.operations[-20:])])
        return Violation(
            f"{promise} broken at {world.loop.now:.4f} s in group {self.group_id}: {text}\n"
            f"last events of the group:\n  {lines}\nlast faults:\n  " + "\n  ".join(world.history.faults)
        )

    def event(self, entry: dict[str, str], at_s: float) -> None:
        """One entry of the group's events. Raises Violation."""
        kind, member_id = entry["kind"], entry["member"]
        self.notes.append(f"{at_s:12.4f}  [{kind}] epoch {entry['generation']} {member_id} {entry['cause']}")
        if kind in ("member_left", "member_expired"):
            self.history.add(Removed(int(at_s * 1e9), self.group_id, member_id))
        member = self.members.get(member_id)
        if kind != "member_expired" or member is None:
            return
        self.removed += 1
        ends_s = member.contact.last_s + SESSION_S - EARLY_MS / 1000
        if entry["cause"] == "session_timed_out" and member.member_id == member_id and at_s < ends_s:
            raise self.broken("P5", f"{member.name} was removed before its session ended at {ends_s:.4f}")

    def judge(self) -> None:
        """When all is over. Raises Violation."""
        if found := list(summary(check(self.history))):
            promise = "P1" if any(one.startswith("two owners") for one in found) else "P3"
            raise self.broken(promise, "\n  ".join(found))


class EpochTraffic:
    """The KIP-848 and streams groups of a run."""

    def __init__(self, world: World, group_count: int, streams_group_count: int) -> None:
        self.world = world
        self.members = dict.fromkeys((f"e{number}" for number in range(group_count)), EpochMember)
        self.members |= dict.fromkeys((f"t{number}" for number in range(streams_group_count)), StreamsThread)
        """Group id -> what its members are."""
        self.groups = {group_id: EpochGroupHistory(self, group_id) for group_id in self.members}
        self.topic_id: Any = None
        self.slots: dict[str, list[EpochMember | None]] = {}
        self.members_started = 0

    async def create(self) -> None:
        """Set the groups' times."""
        app = self.world.brokers[0].app
        if app is None or not self.groups:
            return
        found = await app.context.catalog.find("default", TOPIC)
        assert found is not None
        self.topic_id = found.topic_id
        for group_id, member in self.members.items():
            kind = "streams" if member is StreamsThread else "consumer"
            times = {f"{kind}.{name}": value for name, value in _CONFIGS.items()}
            await configs.alter(app.context.store, app.context.store.group_keys("default", group_id), times, [])

    def tasks(self) -> list[asyncio.Task[None]]:
        """Everybody, as tasks that end with the run."""
        create, found = self.world.loop.create_task, []
        for group_id in self.groups:
            rng = self._rng(group_id)
            self.slots[group_id] = [None] * rng.choice((1, 2, 3, 3, 4))
            found += [create(self._slot(group_id, slot)) for slot in range(len(self.slots[group_id]))]
            found.append(create(self._read(group_id)))
        return found

    def now_ns(self) -> int:
        """The virtual time."""
        return int(self.world.loop.now * 1e9)

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"epochs {self.world.plan.seed} {name}")

    # -- members

    async def _slot(self, group_id: str, slot: int) -> None:
        """One place of a group: member after member, until the run ends."""
        rng, starts = self._rng(f"{group_id} {slot}"), 0
        await asyncio.sleep(rng.uniform(0, 10))
        while True:
            starts += 1
            self.members_started += 1
            member = self.members[group_id](self, self.groups[group_id], f"{group_id}.{slot}.{starts}", rng)
            self.slots[group_id][slot] = member
            running = self.world.loop.create_task(member.run())
            try:
                await self._life(member, running, rng)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
            self.slots[group_id][slot] = None
            await asyncio.sleep(rng.expovariate(1 / 15))
            await self._until_not_calm(None)

    async def _life(self, member: EpochMember, running: asyncio.Task[None], rng: random.Random) -> None:
        while True:
            await asyncio.wait({running}, timeout=rng.expovariate(1 / 150) + 5)
            await self._until_not_calm(running)
            if running.done():
                running.result()
            fate = rng.random()
            if fate < 0.4:
                member.hang(rng.uniform(2, 2.5 * SESSION_S))
                continue
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            if fate < 0.7:
                await member.leave()
            else:
                member.crash()
            return

    async def _until_not_calm(self, running: asyncio.Task[None] | None) -> None:
        if not self.world.calm_over.done():
            awaited = [self.world.calm_over, *([] if running is None else [running])]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)

    # -- an administrator

    async def _read(self, group_id: str) -> None:
        """Ask for the committed offsets now and then."""
        rng, group = self._rng(f"{group_id} reader"), self.groups[group_id]
        topic = {"name": TOPIC, "partition_indexes": tuple(range(self.world.partition_count))}
        asked = request(FETCH, 8, groups=[{"group_id": group_id, "topics": [topic]}], require_stable=False)
        while True:
            await asyncio.sleep(rng.expovariate(1 / READ_EVERY_S))
            began = self.now_ns()
            try:
                wire = Wire(self.world.net, rng.choice(self.world.ports), lambda: None)
                await wire.ready()
                answers = await wire.ask(asked, "reader", 5.0)
                wire.close()
            except Disconnected:
                continue
            (answer,) = answers.groups
            if answer.error_code is ErrorCode.none:
                (read,) = answer.topics
                offsets = {names((one.partition_index,))[0]: one.committed_offset for one in read.partitions}
                group.history.add(CommittedFetch("reader", began, self.now_ns(), group_id, offsets))

    # -- checks

    def event(self, entry: dict[str, str], at_s: float) -> bool:
        """One event; whether it is of one of these groups. Raises Violation."""
        group = self.groups.get(entry["group"].removeprefix("default/"))
        if group is not None:
            group.event(entry, at_s)
        return group is not None

    def check_rest(self) -> None:
        """After a calm. Raises Violation."""
        for group_id, slots in self.slots.items():
            group = self.groups[group_id]
            living = [member for member in slots if member is not None and not member.is_gone]
            if len({member.epoch for member in living}) > 1:
                epochs = {member.name: member.epoch for member in living}
                raise group.broken("P6", f"after a calm the members' epochs are {epochs}")
            owned = sorted(index for member in living for index in member.owned)
            if living and owned != list(range(self.world.partition_count)):
                raise group.broken("P6", f"after a calm the partitions owned are {owned}")

    def check_history(self) -> None:
        """When all is over. Raises Violation."""
        for group in self.groups.values():
            group.judge()

    def counts(self) -> dict[str, int]:
        """Rows of the report."""
        return {
            **self._counts("KIP-848", EpochMember),
            **self._counts("streams", StreamsThread),
            "KIP-848 and streams members started": self.members_started,
        }

    def _counts(self, name: str, members: type[EpochMember]) -> dict[str, int]:
        groups = [self.groups[group_id] for group_id, one in self.members.items() if one is members]
        kinds = [type(one).__name__ for group in groups for one in group.history]
        return {
            f"{name} members removed": sum(group.removed for group in groups),
            f"{name} assignments": kinds.count("Assigned"),
            f"{name} commits": kinds.count("Commit"),
            f"{name} looks at commits": kinds.count("CommittedFetch"),
        }
