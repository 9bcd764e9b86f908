"""One simulated cluster: brokers, a server, groups of members, faults; and the report of a run."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time
from typing import Any, Final

from tests.simulation import outside
from tests.simulation.brokers import Broker
from tests.simulation.epoch_traffic import EpochTraffic
from tests.simulation.faults import Faults
from tests.simulation.history import GroupHistory, History, Violation
from tests.simulation.log_traffic import LogTraffic
from tests.simulation.loop import SimLoop
from tests.simulation.members import TOPIC, Member
from tests.simulation.network import Network
from tests.simulation.redis_link import SERVER_OPTIONS, ServerConnection, SimRedis
from tests.simulation.report import Plan, Report
from tests.simulation.share_traffic import ShareTraffic
from tests.support import clock
from tests.support.valkey import ValkeyServer
from tidegate.settings import Settings
from tidegate.store.keys import ShardKeys
from tidegate.telemetry.metrics import metrics

PORTS: Final = (9092, 9093, 9094)
PREFIX: Final = "tidegate"
SHARDS: Final = 2
"""Few, so that heartbeats of several groups meet in one script."""
CALM_S: Final = 90.0
EVENTS_EVERY_S: Final = 5.0
_FIRST_S: Final = 30.0
_GARBAGE_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Traits:
    """What the members of one group have in common."""

    session_timeout_s: float
    rebalance_timeout_s: float
    interval_s: float
    commit_s: float
    join_version: int


class World:
    """Everything of one run."""

    def __init__(self, plan: Plan, server: ValkeyServer) -> None:
        self.plan = plan
        self.loop = SimLoop()
        self.errors: list[str] = []
        self.broken: asyncio.Future[None] = self.loop.create_future()
        self.loop.set_exception_handler(self._fail)
        self.rng = random.Random(f"world {plan.seed}")
        self.net = Network(self.loop, random.Random(f"network {plan.seed}"))
        self.connection = ServerConnection(server, PREFIX)
        self.redis = SimRedis(self.loop, self.connection, random.Random(f"redis {plan.seed}"))
        self.history = History(self.loop)
        self.redis.on_message_lost = self.history.wake_lost
        self.faults = Faults(self, random.Random(f"faults {plan.seed}"))
        self.partition_count = 6
        self.ports = PORTS
        settings = [Settings(port=port, admin_port=0, coordinator_shards=SHARDS) for port in PORTS]
        self.brokers = [
            Broker(self.loop, self.net, self.redis, one, random.Random(f"broker {plan.seed} {one.port}"))
            for one in settings
        ]
        self.traits: dict[str, Traits] = {}
        self.members: dict[str, list[Member | None]] = {}
        self.calm_over: asyncio.Future[None] = self.loop.create_future()
        """Done while there is no calm."""
        self.calm_over.set_result(None)
        self.members_started = 0
        self.log = LogTraffic(self, plan.partitions)
        self.epochs = EpochTraffic(self, plan.epoch_groups, plan.streams_groups)
        self.shares = ShareTraffic(self, plan.share_groups)
        for broker in self.brokers:
            broker.on_killed = self._broker_killed
            broker.evicts_logs = plan.partitions > 0
        self._read_to = [b"-"] * SHARDS

    def _broker_killed(self, port: int) -> None:
        for group in (*self.history.groups.values(), *self.epochs.groups.values()):
            for member in group.members.values():
                member.contact.broker_killed(port, self.loop.now)

    # -- a run

    async def run(self) -> None:
        """Start, live through faults and calms, check."""
        for broker in self.brokers:
            broker.start()
            while not broker.ready:
                await asyncio.sleep(0.1)
        await self.brokers[0].app.context.catalog.create("default", TOPIC, self.partition_count)
        await self.log.create()
        await self.epochs.create()
        await self.shares.create()
        slots = [self.loop.create_task(self._slot(*slot)) for slot in self._slots()]
        slots += self.log.tasks() + self.epochs.tasks() + self.shares.tasks()
        checks = self.loop.create_task(self._check_events())
        ends_s = self.plan.hours * 3600
        try:
            await self._watched(self._live(ends_s), checks, *slots)
        finally:
            for task in (checks, *slots):
                task.cancel()
            await asyncio.gather(checks, *slots, return_exceptions=True)
            for broker in self.brokers:
                broker.kill()

    async def _watched(self, living: Any, *others: asyncio.Task[Any]) -> None:
        """Until `living` ends; what fails first ends the run."""
        main = self.loop.create_task(living)
        try:
            await asyncio.wait((main, self.broken, *others), return_when=asyncio.FIRST_COMPLETED)
            for task in (self.broken, *others, main):
                if task.done():
                    task.result()
        finally:
            main.cancel()
            await asyncio.gather(main, return_exceptions=True)

    async def _live(self, ends_s: float) -> None:
        await asyncio.sleep(_FIRST_S)
        while self.loop.now < ends_s:
            gentle_until = self.loop.now + self.plan.gentle_s
            while self.loop.now < min(gentle_until, ends_s - CALM_S):
                await self.faults.gentle()
            if self.loop.now < ends_s - CALM_S:
                await self.faults.rough()
            self.calm_over = self.loop.create_future()
            await asyncio.sleep(CALM_S)
            self._check_rest()
            self.log.check_rest()
            self.epochs.check_rest()
            self.shares.check_rest()
            self.calm_over.set_result(None)
        self.log.check_history()
        self.epochs.check_history()
        self.shares.check_history()

    def _fail(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback failed, of the simulation (a promise is broken, most likely) or of a broker."""
        error = context.get("exception")
        if error is None or "never retrieved" in context["message"]:
            return
        if not self.broken.done():
            self.broken.set_exception(error)

    # -- members

    def _slots(self) -> list[tuple[str, int, str | None]]:
        slots = []
        for number in range(self.plan.groups):
            group_id = f"g{number}"
            session_s, interval_s = self.rng.choice(((10.0, 3.0),) * 6 + ((30.0, 3.0),) * 2 + ((6.0, 2.0),))
            self.traits[group_id] = Traits(
                session_s,
                self.rng.choice((15.0, 20.0, 30.0)),
                interval_s,
                self.rng.choice((10.0, 20.0)),
                self.rng.choice((9, 9, 9, 7, 5)),
            )
            self.history.groups[f"default/{group_id}"] = GroupHistory(self.history, group_id, self.partition_count)
            size = self.rng.choice((1, 2, 2, 3, 3, 4))
            self.members[group_id] = [None] * size
            for slot in range(size):
                static = self.rng.random() < 0.25
                slots.append((group_id, slot, f"{group_id}-i{slot}" if static else None))
        return slots

    async def _slot(self, group_id: str, slot: int, instance_id: str | None) -> None:
        """One place of a group: member after member, until the run ends."""
        rng = random.Random(f"slot {self.plan.seed} {group_id} {slot}")
        history, starts = self.history.groups[f"default/{group_id}"], 0
        await asyncio.sleep(rng.uniform(0, 10))
        while True:
            starts += 1
            member = Member(self, history, f"{group_id}.{slot}.{starts}", instance_id, rng)
            self.members[group_id][slot] = member
            history.note(f"{member.name} starts{' as ' + instance_id if instance_id else ''}")
            self.members_started += 1
            running = self.loop.create_task(member.run())
            try:
                await self._life(member, running, rng)
            finally:
                running.cancel()
            self.members[group_id][slot] = None
            await asyncio.sleep(rng.uniform(0, 4) if instance_id else rng.expovariate(1 / 15))
            await self._until_not_calm()

    async def _life(self, member: Member, running: asyncio.Task[None], rng: random.Random) -> None:
        """Let a member live for a while, then end it one way or another."""
        while True:
            await asyncio.wait({running}, timeout=rng.expovariate(1 / 200) + 5)
            await self._until_not_calm(running)
            if running.done():
                running.result()
                return
            fate = rng.random()
            if fate < 0.25:
                member.hang(rng.uniform(1, 25))
                continue
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            if fate < 0.65:
                await member.leave()
            else:
                member.crash(closing=fate < 0.9)
            return

    async def _until_not_calm(self, running: asyncio.Task[None] | None = None) -> None:
        if not self.calm_over.done():
            awaited = [self.calm_over] if running is None else [self.calm_over, running]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)

    # -- checks

    async def _check_events(self) -> None:
        while True:
            await asyncio.sleep(EVENTS_EVERY_S)
            self.read_events()
            if self.errors:
                raise Violation("a broker logged an error: " + self.errors[0])

    def read_events(self) -> None:
        """Judge what the groups' event streams have had since the last time."""
        keys = [ShardKeys(PREFIX, shard).events for shard in range(SHARDS)]
        asked = [("XRANGE", key, start, "+") for key, start in zip(keys, self._read_to, strict=True)]
        for shard, entries in enumerate(self.connection.calls(self.redis.now_ms(), asked)):
            for entry_id, fields in entries:
                texts = [text.decode() for text in fields]
                entry = dict(zip(texts[::2], texts[1::2], strict=True))
                at_s = (int(entry["time"]) - clock.START_MS) / 1000
                if not self.epochs.event(entry, at_s) and not self.shares.event(entry):
                    self.history.event(entry, at_s)
                self._read_to[shard] = b"(" + entry_id
        self.connection.calls(self.redis.now_ms(), [("XTRIM", key, "MAXLEN", 0) for key in keys])

    def _check_rest(self) -> None:
        """After a calm: every group is Stable with exactly its living members, each partition owned once (P6)."""
        self.read_events()
        for group_id, slots in self.members.items():
            history = self.history.groups[f"default/{group_id}"]
            living = [member for member in slots if member is not None and member.gone_s is None]
            expected = "Stable" if living else "Empty"
            if history.state != expected:
                raise history.broken(
                    "P6", f"{history.state} after a calm, not {expected}, since {history.state_since_s:.1f} s"
                )
            for member in living:
                if not member.is_assigned or member.generation != history.event_generation:
                    raise history.broken(
                        "P6", f"{member.name} is not in generation {history.event_generation} after a calm"
                    )
            owned = sorted(partition for member in living for partition in member.partitions)
            if living and owned != list(range(self.partition_count)):
                raise history.broken("P1", f"after a calm the partitions owned are {owned}")


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Look for garbage in cycles rarely: nearly all that a run makes is freed by counting, and it ends soon."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_GARBAGE_MAX, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def simulate(plan: Plan) -> Report:
    """One run, from its seed."""
    clock.install()
    server = ValkeyServer(SERVER_OPTIONS)
    report, started_s, cpu_s = Report(plan), outside.real_s(), process_time()
    try:
        world = World(plan, server)
        taken = outside.taken_from(world.loop, plan.seed, world.errors)
        with taken, world.net.asked_after_stalls(), _garbage_kept():
            try:
                world.loop.run_until_complete(world.run())
            except Violation as violation:
                report.violation = str(violation)
        report.wall_s, report.cpu_s = outside.real_s() - started_s, process_time() - cpu_s
        _fill(report, world)
        world.connection.close()
        world.loop.close()
    finally:
        clock.uninstall()
        server.stop()
    return report


def _fill(report: Report, world: World) -> None:
    history = world.history
    report.virtual_s = world.loop.now
    report.trace = world.redis.trace.hexdigest()
    report.faults = {**history.fault_counts, "message lost": world.redis.messages_lost}
    report.counts = {
        **world.log.counts(),
        **world.epochs.counts(),
        **world.shares.counts(),
        "members started": world.members_started,
        "rebalances": history.rebalances,
        "members removed": history.removals,
        "events of groups": history.events,
        "commands to Redis": world.connection.commands,
        "round trips to Redis": world.connection.round_trips,
        "turns of the loop": world.loop.iterations,
        "callbacks of the loop": world.loop.callbacks,
        "logs evicted from memory": sum(broker.logs_evicted for broker in world.brokers),
        "broker processes": sum(broker.starts for broker in world.brokers),
        **{f"heartbeats held until: {reason}": meter.count for reason, meter in sorted(metrics.held.items())},
        "seconds that heartbeats were held": round(sum(meter.total_s for meter in metrics.held.values())),
    }
