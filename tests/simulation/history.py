"""Replies to clients and events of groups, checked against the promises P1 to P6.

P1  one owner a partition in a generation; replies to a generation's members never differ
P2  generations only grow
P3  an acknowledged commit is neither lost nor overwritten by a member of an older generation
P5  members are removed only when silent or gone; a Stable group rebalances only for a reason of its members
P6  barriers end (with `quiet` of the world: at rest every group is Stable with exactly its living members)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.members import Member

GENERATIONS_KEPT: Final = 20
COMMITS_KEPT: Final = 400
NOTES_KEPT: Final = 80
LATE_S: Final = 1.5
"""A lost message costs `waiting.POLL_MS` (500); the rest is for the way there and back."""
_RECENT: Final = 16
_ARRIVED_S: Final = 0.1
"""After which a heartbeat is surely with its broker, unless something impedes it."""
EARLY_MS: Final = 2
"""Virtual time is cut to whole milliseconds in the scripts."""


class Violation(AssertionError):
    """A promise was broken. The text names which, where, when, and the group's last events."""


@dataclass(slots=True)
class Commit:
    """One OffsetCommit of one partition."""

    generation: int
    sent_s: float
    acked_s: float | None = None


@dataclass(slots=True)
class Partition:
    """The commits of one partition of one group, by the offset committed, which is never used twice."""

    commits: dict[int, Commit] = field(default_factory=dict)
    newest_acked: Commit | None = None
    """Of those acknowledged, the one that was sent last."""
    generation_acked: int = -1


@dataclass(slots=True)
class Generation:
    """The replies to the members of one generation."""

    leader: str
    protocol: str
    known_replies: dict[str, tuple[int, ...]] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    opened_s: float | None = None
    answers: list[tuple[str, float, float]] = field(default_factory=list)
    """Joins answered before the event of its opening was read: who, when asked, when answered."""


class GroupHistory:
    """One group: the replies to its members, in virtual seconds."""

    def __init__(self, world: History, group_id: str, partition_count: int) -> None:
        self.group_id = group_id
        self.generation = 0
        """The highest in any reply."""
        self.event_generation = 0
        self.state = "Empty"
        self.state_since_s = 0.0
        self.members: dict[str, Member] = {}
        self.generations: dict[int, Generation] = {}
        self.partitions = [Partition() for _ in range(partition_count)]
        self.notes: deque[str] = deque(maxlen=NOTES_KEPT)
        self.rebalances_s: deque[float] = deque(maxlen=_RECENT)
        self.wakes_lost_s: deque[float] = deque(maxlen=_RECENT)
        """When a message about this group was lost on its way to a broker."""
        self._late_heartbeats: deque[tuple[str, float, float]] = deque(maxlen=_RECENT)
        """Heartbeats whose answers were kept back for long: whose, when sent, when answered."""
        self._world = world
        self._offset = 0

    def note(self, text: str) -> None:
        """Something worth telling should this group break a promise."""
        self.notes.append(f"{self._world.now():12.4f}  {text}")

    def broken(self, promise: str, text: str) -> Violation:
        """The error to raise."""
        lines = "\n  ".join(self.notes)
        return Violation(
            f"{promise} broken at {self._world.now():.4f} s in group {self.group_id}: {text}\n"
            f"last events of the group:\n  {lines}\nlast faults:\n  " + "\n  ".join(self._world.faults)
        )

    # -- joins and assignments

    def joined(
        self, member: Member, member_id: str, generation: int, elected: tuple[str, str], floor: int, asked_s: float
    ) -> None:
        """A member got its generation, leader and protocol.

        `floor` is the generation that was known when it asked.
        """
        leader, protocol = elected
        self.note(f"{member.name} joined generation {generation} as {member_id[-12:]}, leader {leader[-12:]}")
        if generation < floor:
            raise self.broken("P2", f"{member.name} got generation {generation} after {floor}")
        self.generation = max(self.generation, generation)
        self.members[member_id] = member
        known = self.generations.get(generation)
        if known is None:
            self.generations[generation] = Generation(leader, protocol)
            self.generations.pop(generation - GENERATIONS_KEPT, None)
        elif known.protocol != protocol or (known.leader != leader and not self._is_static(known.leader)):
            raise self.broken("P1", f"generation {generation}: leader {known.leader}, then {leader}")
        self._answered(self.generations[generation], (member.name, asked_s, self._world.now()))

    def opened(self, generation: int, at_s: float) -> None:
        """The event of a generation's opening was read."""
        known = self.generations.get(generation)
        if known is not None:
            known.opened_s, answers = at_s, known.answers
            known.answers = []
            for answer in answers:
                self._answered(known, answer)

    def _answered(self, known: Generation, answer: tuple[str, float, float]) -> None:
        """A parked join is answered soon after its generation opens, also where its message is lost."""
        if known.opened_s is None:
            known.answers.append(answer)
            return
        who, asked_s, logged_at_s = answer
        if asked_s < known.opened_s < logged_at_s - LATE_S and not self._world.was_impeded(known.opened_s, logged_at_s):
            raise self.broken(
                "P6", f"{who} learned at {logged_at_s:.4f} s of the generation opened at {known.opened_s:.4f}"
            )

    def heartbeat_answered(self, who: str, sent_s: float) -> None:
        """A member has its answer; how long it was kept back shows whether it was released in time."""
        logged_at_s = self._world.now()
        if logged_at_s - sent_s > LATE_S:
            self._late_heartbeats.append((who, sent_s, logged_at_s))
            for at_s in self.rebalances_s:
                self._judge_hold(at_s, who, sent_s, logged_at_s)

    def rebalancing(self, at_s: float) -> None:
        """The event of a rebalance's start was read."""
        self.rebalances_s.append(at_s)
        for heartbeat in self._late_heartbeats:
            self._judge_hold(at_s, *heartbeat)

    def _judge_hold(self, at_s: float, who: str, sent_s: float, logged_at_s: float) -> None:
        """A delayed heartbeat is answered soon after a rebalance begins, unless the message of it was lost."""
        if not sent_s + _ARRIVED_S < at_s < logged_at_s - LATE_S or self._world.was_impeded(at_s, logged_at_s):
            return
        if not any(at_s - _ARRIVED_S < lost_s <= logged_at_s for lost_s in self.wakes_lost_s):
            raise self.broken("P6", f"{who} learned at {logged_at_s:.4f} s of the rebalance that began at {at_s:.4f}")

    def assigned(self, member: Member, member_id: str, generation: int, partitions: tuple[int, ...]) -> None:
        """A member got its partitions."""
        self.note(f"{member.name} has {list(partitions)} in generation {generation}")
        known = self.generations.get(generation)
        if known is None:
            return
        before = known.known_replies.setdefault(member_id, partitions)
        if before != partitions:
            raise self.broken("P1", f"{member_id}: {before}, then {partitions} in generation {generation}")
        for partition in partitions:
            owner = known.owners.setdefault(partition, member_id)
            if owner != member_id and not self._is_same_instance(owner, member):
                raise self.broken("P1", f"partition {partition} has two owners in generation {generation}")
            known.owners[partition] = member_id

    def _is_static(self, member_id: str) -> bool:
        """A static leader that restarts leads on under another id (KIP-814)."""
        member = self.members.get(member_id)
        return member is not None and member.instance_id is not None

    def _is_same_instance(self, owner: str, member: Member) -> bool:
        former = self.members.get(owner)
        return bool(member.instance_id) and former is not None and former.instance_id == member.instance_id

    # -- commits

    def commit_sent(self, generation: int, partitions: tuple[int, ...]) -> list[tuple[int, int]]:
        """A commit goes out: the offset of each partition."""
        self._offset += 1
        for index in partitions:
            commits = self.partitions[index].commits
            commits[self._offset] = Commit(generation, self._world.now())
            if len(commits) > COMMITS_KEPT:
                del commits[next(iter(commits))]
        return [(index, self._offset) for index in partitions]

    def commit_acked(self, entries: list[tuple[int, int]]) -> None:
        """It was acknowledged."""
        for index, offset in entries:
            partition = self.partitions[index]
            commit = partition.commits.get(offset)
            if commit is None:
                continue
            commit.acked_s = self._world.now()
            if commit.generation < partition.generation_acked and commit.sent_s > partition.newest_acked.acked_s:
                raise self.broken(
                    "P3",
                    f"partition {index}: a commit of generation {commit.generation} was acknowledged "
                    f"after one of {partition.generation_acked}",
                )
            partition.generation_acked = max(partition.generation_acked, commit.generation)
            if partition.newest_acked is None or commit.sent_s > partition.newest_acked.sent_s:
                partition.newest_acked = commit

    def read_begins(self) -> list[tuple[Commit | None, int]]:
        """What a read that is sent now must not be behind."""
        return [(one.newest_acked, one.generation_acked) for one in self.partitions]

    def read_ends(self, who: str, begun: list[tuple[Commit | None, int]], offsets: dict[int, int]) -> None:
        """What it was answered: offset by partition, -1 for none."""
        for index, (newest, generation) in enumerate(begun):
            offset = offsets.get(index, -1)
            if offset < 0:
                if newest is not None:
                    raise self.broken("P3", f"{who} reads no offset of partition {index}, which was committed")
                continue
            read = self.partitions[index].commits.get(offset)
            if read is None:
                raise self.broken("P3", f"{who} reads offset {offset} of partition {index}: too old, or never sent")
            if newest is not None and read.acked_s is not None and read.acked_s < newest.sent_s:
                raise self.broken("P3", f"{who} reads offset {offset} of partition {index}: a later commit is lost")
            if read.generation < generation:
                raise self.broken(
                    "P3",
                    f"{who} reads offset {offset} of generation {read.generation} in partition {index}: "
                    f"one of {generation} was acknowledged before",
                )


class History:
    """All groups. `now` is the loop's; `strict` says whether faults are such that no living member may be removed."""

    def __init__(self, loop: object) -> None:
        self._loop = loop
        self.groups: dict[str, GroupHistory] = {}
        self.faults: deque[str] = deque(maxlen=20)
        self.fault_counts: dict[str, int] = {}
        self.lenient_until_s = 0.0
        self.impeded: deque[tuple[float, float]] = deque(maxlen=10)
        """From when to when something else than a lost message could delay an answer."""
        self.events = self.rebalances = self.removals = 0

    def now(self) -> float:
        """Virtual seconds."""
        return self._loop.time()

    def was_impeded(self, since_s: float, until_s: float) -> bool:
        """Whether an answer could be late at any time between."""
        return until_s <= self.lenient_until_s or any(
            start <= until_s and end >= since_s for start, end in self.impeded
        )

    def fault(self, kind: str, detail: str = "", count: int = 1) -> None:
        """A fault begins."""
        self.fault_counts[kind] = self.fault_counts.get(kind, 0) + count
        self.faults.append(f"{self.now():12.4f}  {kind} {detail}")

    def wake_lost(self, channel: bytes, payload: bytes) -> None:
        """A message reached not every broker; those on a shard's wake channel name a group."""
        group = self.groups.get(payload.rsplit(b":", 3)[0].decode()) if channel.endswith(b":wake") else None
        if group is not None:
            group.wakes_lost_s.append(self.now())

    # -- the groups' own events

    def event(self, entry: dict[str, str], at_s: float) -> None:
        """One entry of a shard's event stream; `at_s` is its time."""
        group = self.groups.get(entry["group"])
        if group is None:
            return
        self.events += 1
        kind, generation, member_id = entry["kind"], int(entry["generation"]), entry["member"]
        known_replies = (
            f"generation {generation} {member_id[-12:]} {entry['cause'] or entry['reason']} (broker {entry['broker']})"
        )
        group.notes.append(f"{at_s:12.4f}  [{kind}] {known_replies}")
        if generation < group.event_generation:
            raise group.broken("P2", f"event {kind} of generation {generation} after {group.event_generation}")
        if kind == "barrier_joined" and generation == group.event_generation:
            raise group.broken("P2", f"generation {generation} opened twice")
        group.event_generation = generation
        if kind == "member_expired":
            self._judge_removal(group, member_id, entry["cause"], at_s)
        elif kind == "rebalance_started":
            self.rebalances += 1
            if group.state == "Stable":
                self._judge_rebalance(group, member_id, entry["cause"], at_s)
            group.state, group.state_since_s = "PreparingRebalance", at_s
            group.rebalancing(at_s)
        elif kind == "barrier_joined":
            group.state, group.state_since_s = "CompletingRebalance", at_s
            group.opened(generation, at_s)
        elif kind == "assignment_stored":
            group.state, group.state_since_s = "Stable", at_s
        elif kind == "emptied":
            group.state, group.state_since_s = "Empty", at_s

    def _judge_removal(self, group: GroupHistory, member_id: str, cause: str, at_s: float) -> None:
        member = group.members.get(member_id)
        if member is None:
            return  # no living member ever got its id
        self.removals += 1
        ends_s = member.contact.last_s + member.session_timeout_s - EARLY_MS / 1000
        is_its_own = member.member_id == member_id
        if cause == "session_timed_out" and is_its_own and at_s < ends_s:
            raise group.broken("P5", f"{member.name} was removed before its session ended at {ends_s:.4f}")
        since_s = at_s - max(member.session_timeout_s, member.rebalance_timeout_s)
        if is_its_own and not member.was_silent(since_s, at_s) and at_s > self.lenient_until_s:
            raise group.broken("P5", f"{member.name} was removed ({cause}) though it lives")

    def _judge_rebalance(self, group: GroupHistory, member_id: str, cause: str, at_s: float) -> None:
        if at_s <= self.lenient_until_s:
            return
        member = group.members.get(member_id)
        if cause == "leader_rejoined" and member is not None and not member.might_rejoin(at_s):
            raise group.broken(
                "P5", f"a Stable group rebalances because {member.name} rejoined, which had no reason to"
            )
        if cause == "subscription_changed":
            raise group.broken("P5", f"a Stable group rebalances: {cause}, and nobody's did")
