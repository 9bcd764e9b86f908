"""One seeded run: real clients of two or three libraries, three brokers, faults; then the history is judged."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos import ledger
from tests.kit.checker import Rule, check, summary
from tests.kit.clients import AiokafkaReader, LibrdkafkaReader, Reader
from tests.kit.cluster import FaultyCluster
from tests.kit.faults import Faults
from tests.kit.history import (
    Commit,
    CommittedFetch,
    Delivery,
    History,
    Operation,
    Outcome,
    Poll,
    Seek,
    Send,
    TransactionEnd,
)
from tests.kit.java_clients import JavaClients, JavaReader, JavaWriter
from tests.kit.judged import judged
from tests.kit.log_reader import NAME as LOG_READER
from tests.kit.log_reader import read_logs
from tests.kit.refused_writer import RefusedWriter
from tests.kit.removals import removals
from tests.kit.writers import AiokafkaWriter, LibrdkafkaWriter, Session, Writer, acknowledged_ends
from tests.support.broker_logs import tracebacks
from tidegate.store.keys import ShardKeys, shard_of
from tidegate.store.slots import key_slot

TOPIC: Final = "orders"
PARTITIONS: Final = 4
MEMBERS: Final = 2
WARM_UP_S: Final = 180.0
CATCH_UP_S: Final = 90.0
GROUPS: Final = {"librdkafka": LibrdkafkaReader, "aiokafka": AiokafkaReader}
JAVA: Final = "java"
"""The group of Java's members, where the plan has them."""
JUDGES_THE_END: Final = frozenset({Rule.HOLE, Rule.SHARE_LOST})
"""Rules about what was read when all is over."""
SHARDS: Final = 50
"""The default of `coordinator_shards`."""
TOPOLOGIES: Final = ("one server", "sentinel", "cluster")


def slots_in_use() -> list[int]:
    """The slots of the partitions, of the groups' shards, and of the keys that all brokers share."""
    topics = {TOPIC: PARTITIONS, ledger.TOPIC: ledger.PARTITIONS}
    logs = [f"{{default/{topic}:{index}}}" for topic, count in topics.items() for index in range(count)]
    groups = [ShardKeys("tidegate", shard_of(group, SHARDS)).groups for group in (*GROUPS, JAVA, ledger.GROUP)]
    return [key_slot(key) for key in (*logs, *groups, "{cluster}")]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed decides before anything runs."""

    seed: int
    seconds: float
    replicated: bool
    stepped_clocks: bool
    only: tuple[str, ...] = ()
    """Kinds of faults, where not all are wanted."""
    writers: int = 1
    """Producers of librdkafka, beside one of aiokafka."""
    sharded: bool = False
    """On a Redis Cluster."""
    java: tuple[str, ...] = ()
    """What starts Java's clients; empty for none."""

    @classmethod
    def of(cls, seed: int, seconds: float, topology: str | None = None, java: tuple[str, ...] = ()) -> Plan:
        """Without a topology: of four runs one has sentinels or a Cluster, and one stepped clocks."""
        if topology is not None:
            return cls(seed, seconds, topology == "sentinel", False, sharded=topology == "cluster", java=java)
        drawn = random.Random(f"plan {seed}").random()
        stepped = drawn > 0.75
        return cls(seed, seconds, drawn < 0.13, stepped, sharded=0.13 <= drawn < 0.25, java=java)

    @property
    def kind(self) -> str:
        if self.sharded:
            return "cluster"
        return "sentinel" if self.replicated else "stepped clocks" if self.stepped_clocks else "one server"


@dataclass(slots=True)
class Report:
    """What happened in one run."""

    plan: Plan
    faults: dict[str, int] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    schedule: list[str] = field(default_factory=list)
    judged: dict[Rule, int] = field(default_factory=dict)
    """How much each rule had to judge."""
    positions: list[str] = field(default_factory=list)
    """What librdkafka did about its positions by itself."""
    wall_s: float = 0.0

    def line(self) -> str:
        """For people."""
        outcome = f"{len(self.violations)} VIOLATIONS" if self.violations else "ok"
        counts = ", ".join(f"{count} {name}" for name, count in self.operations.items())
        faults = sum(self.faults.values())
        return f"seed {self.plan.seed} ({self.plan.kind}): {outcome}; {faults} faults; {counts}; {self.wall_s:.0f} s"

    def details(self) -> str:
        """What was done to the cluster, what was wrong after it, and what may explain that."""
        lines = ["faults:", *self.schedule, "violations:", *self.violations]
        return "\n  ".join([*lines, "positions:", *self.positions] if self.violations else lines)


class Run:
    """The clients of one cluster, from the first record to the last."""

    def __init__(self, plan: Plan, cluster: FaultyCluster) -> None:
        self.plan, self.cluster = plan, cluster
        self.rng = random.Random(f"run {plan.seed}")
        self.history = History()
        self.session = Session(self.history, cluster.bootstrap, TOPIC, PARTITIONS)
        self.faults = Faults(cluster, random.Random(f"faults {plan.seed}"), plan.only, slots_in_use())
        self.ledger = ledger.Ledger(self.session, random.Random(f"ledger {plan.seed}"))
        self.groups = (*GROUPS, JAVA) if plan.java else tuple(GROUPS)
        self.members: dict[str, list[Reader]] = {group: [] for group in self.groups}
        self.stuck: list[str] = []
        self._joined = 0
        self._java = JavaClients(self.session, plan.java) if plan.java else None
        self._java_kind = self.rng.choice(("classic", "consumer"))

    async def live(self) -> None:
        """Clients work while faults come and go; then all is well again, and everything is read to its end."""
        try:
            await self._live()
        finally:
            if self._java is not None:
                await self._java.end()

    async def _live(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        topics = [NewTopic(TOPIC, PARTITIONS, 1), NewTopic(ledger.TOPIC, ledger.PARTITIONS, 1)]
        for made in admin.create_topics(topics).values():
            await asyncio.to_thread(made.result, 30)
        writers: list[Writer] = [
            AiokafkaWriter(self.session, "w-aiokafka"),
            RefusedWriter(self.session, "w-refused"),
            *(LibrdkafkaWriter(self.session, f"w-librdkafka-{number}") for number in range(self.plan.writers)),
        ]
        if self._java is not None:
            writers.append(JavaWriter(self.session, "w-java", self._java))
        over = asyncio.Event()
        for writer in writers:
            writer.start()
        try:
            await self.ledger.start(admin)
            for group in self.groups:
                for _ in range(MEMBERS):
                    self._join(group)
            await self._warm_up()
            changing = asyncio.create_task(self._change_members(over))
            try:
                await self.faults.rage(self.plan.seconds)
            finally:
                over.set()
                await changing
        finally:
            await asyncio.gather(self.ledger.stop_writer(), *(writer.stop() for writer in writers))
            _, stuck = await asyncio.gather(self._catch_up(), self.ledger.catch_up(CATCH_UP_S))
            self.stuck += stuck
            members = (member.stop() for members in self.members.values() for member in members)
            await asyncio.gather(self.ledger.stop(), *members)
        for session in (self.session, self.ledger.session):
            await asyncio.to_thread(read_logs, session)
        self._note_removals()
        self.history.operations += self.faults.failovers
        self.stuck += self.ledger.lost_producers()

    async def _warm_up(self) -> None:
        """Until every group has committed and every rule can judge: what comes after is not about how groups begin."""
        deadline, waiting = time.monotonic() + WARM_UP_S, set(self.groups)
        while waiting or (unjudged := self._unjudged() - JUDGES_THE_END):
            if self.session.fatal or time.monotonic() > deadline:
                raise RuntimeError(f"not before the first fault: commits of {sorted(waiting)}, or {unjudged}")
            await asyncio.sleep(0.1)
            waiting -= {one.group for one in self.history.operations[:] if isinstance(one, Commit)}

    def _unjudged(self) -> set[Rule]:
        return {rule for rule, count in judged(History(self.history.operations[:])).items() if count == 0}

    def _join(self, group: str) -> None:
        self._joined += 1
        name = f"{group}-{self._joined}"
        if self._java is not None and group == JAVA:
            member: Reader = JavaReader(self.session, name, group, self._java, self._java_kind)
        else:
            member = GROUPS[group](self.session, name, group)
        self.members[group].append(member)
        member.start()

    async def _change_members(self, over: asyncio.Event) -> None:
        """Now and then a member leaves, and another joins."""
        while not over.is_set():
            try:
                await asyncio.wait_for(over.wait(), self.rng.uniform(4, 9))
            except TimeoutError:
                group = self.rng.choice([*sorted(self.groups), ledger.GROUP])
                if group == ledger.GROUP:
                    await self.ledger.change_member()
                    continue
                self._join(group)
                await self.members[group].pop(0).stop()

    async def _catch_up(self) -> None:
        """Every group reads and commits every acknowledged record (P6, P8): nothing has to be restarted for it."""
        ends = acknowledged_ends(self.session)
        deadline = time.monotonic() + CATCH_UP_S
        for group in self.groups:
            while (behind := self._behind(group, ends)) and time.monotonic() < deadline:
                await asyncio.sleep(0.2)
            if behind:
                self.stuck.append(f"stuck: group {group} has not committed to the end after the faults: {behind}")
                self.stuck += await asyncio.to_thread(self._members_of, group)

    def _behind(self, group: str, ends: Counter[str]) -> dict[str, tuple[int, int]]:
        committed: dict[str, int] = {}
        for operation in self.history.operations[:]:
            if isinstance(operation, Commit) and operation.group == group and operation.outcome is Outcome.OK:
                committed.update(operation.offsets)
        return {name: (committed.get(name, 0), end) for name, end in ends.items() if committed.get(name, 0) < end}

    def _members_of(self, group: str) -> list[str]:
        """What Redis has about a group that is stuck: who is missing, and what happened last."""
        lines = [f"{key}: {text}" for key, text in self.cluster.group(group).items()]
        events = [event for event in self.cluster.events() if event["group"] == f"default/{group}"][-12:]
        return lines + [" ".join(f"{name}={text}" for name, text in event.items() if text) for event in events]

    def _note_removals(self) -> None:
        to_monotonic_ns = time.monotonic_ns() - time.time_ns()
        for removed in removals(self.cluster.events(), to_monotonic_ns, self.faults.redis_steps):
            self.history.add(removed)


COUNTED: Final = {
    Commit: "commits",
    CommittedFetch: "fetches of commits",
    Seek: "restarts of librdkafka",
}


def counted(history: Sequence[Operation]) -> dict[str, int]:
    """Operations by kind, as the table has them."""
    counts: Counter[str] = Counter()
    for operation in history:
        match operation:
            case Send(outcome=Outcome.OK):
                counts["acknowledged"] += 1
            case Send(outcome=Outcome.FAILED):
                counts["refused"] += 1
            case Send():
                counts["unknown"] += 1
            case TransactionEnd():
                counts["transactions committed" if operation.committed else "transactions aborted"] += 1
            case Delivery():
                counts["deliveries by the share group"] += len(operation.records)
            case Poll() if operation.process != LOG_READER:
                counts["read by groups"] += len(operation.records)
            case Seek() | Commit() | CommittedFetch():
                counts[COUNTED[type(operation)]] += 1
    return dict(counts)


async def _run(plan: Plan, keep: Path | None) -> Report:
    report, began = Report(plan), time.monotonic()
    async with FaultyCluster(plan.replicated, plan.stepped_clocks, plan.seed, sharded=plan.sharded) as cluster:
        run = Run(plan, cluster)
        try:
            await run.live()
        except Exception as error:  # noqa: BLE001 - a run that cannot be finished is a finding, with its history
            report.violations.append(f"the run ended early: {error!r}")
        if trace := tracebacks(cluster.cluster):
            report.violations.append(trace)
        report.violations += run.session.fatal + run.stuck + list(summary(check(run.history)))
        report.judged = judged(run.history)
        report.violations += [f"no input of a rule: {rule}" for rule, count in report.judged.items() if count == 0]
        report.faults, report.schedule = dict(run.faults.counts), run.faults.log
        report.positions = run.session.resets
        report.operations, report.wall_s = counted(run.history.operations), time.monotonic() - began
        if keep is not None and report.violations:
            await asyncio.to_thread(_keep, run, report, keep / str(plan.seed))
    return report


def _keep(run: Run, report: Report, directory: Path) -> None:
    """The history, the brokers' logs, and the report."""
    directory.mkdir(parents=True, exist_ok=True)
    run.history.dump(directory / "history.jsonl")
    lines = [report.line(), report.details()]
    (directory / "report.txt").write_text("\n".join(lines) + "\n")
    for node in run.cluster.nodes:
        shutil.copy(node.process.log_path, directory)


def run_plan(plan: Plan, keep: Path | None = None) -> Report:
    """One run, in a process of its own or a test's."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it reports every lost connection
    return asyncio.run(_run(plan, keep))
