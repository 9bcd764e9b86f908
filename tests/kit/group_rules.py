"""The rules about readers and groups: positions, owners, generations, committed offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tests.kit.history import (
    FOREVER,
    Assigned,
    Commit,
    CommittedFetch,
    History,
    Outcome,
    Poll,
    Removed,
    Revoked,
    Seek,
)


@dataclass(slots=True)
class Ownership:
    """One member's time with one partition."""

    process: str
    member_id: str
    generation: int
    began: int
    ended: int = FOREVER


@dataclass(slots=True)
class Read:
    """What somebody learned of a committed offset; `none` where 0 may also mean that there is none."""

    began: int
    ended: int
    offset: int
    process: str
    none: bool = False
    position: tuple[int, int] = (0, -1)
    """When this process gave the partition up before, and where it stood: some clients continue from there."""


@dataclass(slots=True)
class Register:
    """The committed offset of one group and partition: what was written to it and read from it."""

    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    """Of each acknowledged commit when it ended and began."""
    by_offset: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """The same of those of unknown outcome too, which never ended."""
    reads: list[Read] = field(default_factory=list)

    def add(self, commit: Commit, offset: int) -> None:
        if commit.outcome is Outcome.OK:
            self.acknowledged.append((commit.ended, commit.began))
        ended = commit.ended if commit.outcome is Outcome.OK else FOREVER
        self.by_offset[offset].append((ended, commit.began))

    def impossible(self) -> Iterator[tuple[Read, int]]:
        """Reads of what cannot have been there, and since when it cannot."""
        ended, newest_began = _prefix_max(self.acknowledged)
        possible = {offset: _suffix_min(commits) for offset, commits in self.by_offset.items()}
        for read in self.reads:
            at = bisect_left(ended, read.began)
            newest = newest_began[at - 1] if at else -1
            if newest == -1 and (read.offset == -1 or (read.none and read.offset == 0)):
                continue
            ends, least_began = possible.get(read.offset, ([], []))
            at = bisect_right(ends, newest)
            if at == len(ends) or least_began[at] >= read.ended:
                yield read, newest


def _prefix_max(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """First members in order, and for each the greatest second one up to there."""
    firsts, greatest, so_far = [], [], -1
    for first, second in sorted(pairs):
        so_far = max(so_far, second)
        firsts.append(first)
        greatest.append(so_far)
    return firsts, greatest


def _suffix_min(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """First members in order, and for each the least second one from there on."""
    ordered = sorted(pairs)
    least, so_far = [0] * len(ordered), FOREVER
    for at in range(len(ordered) - 1, -1, -1):
        so_far = min(so_far, ordered[at][1])
        least[at] = so_far
    return [first for first, _ in ordered], least


class Reader:
    """One process: what it owns and where it stands."""

    def __init__(self) -> None:
        self.owned: dict[str, Ownership] = {}
        self.positions: dict[str, int] = {}
        self.left: dict[str, tuple[int, int]] = {}
        self.generations: dict[str, int] = {}


class Groups:
    """Goes through a history once; what takes more than one process is judged after it."""

    def __init__(self, history: History, next_offset: Callable[[str, int, bool], int]) -> None:
        self._history = history
        self._next_offset = next_offset
        self.skips_within: list[str] = []
        self.backward_within: list[str] = []
        self.skips: list[str] = []
        self.backward: list[str] = []
        self.generations_back: list[str] = []
        self.unowned_reads: list[str] = []
        self._readers: dict[str, Reader] = defaultdict(Reader)
        self._registers: dict[tuple[str, str], Register] = defaultdict(Register)
        self._ownerships: dict[tuple[str, str], list[Ownership]] = defaultdict(list)
        self._removed: dict[tuple[str, str], int] = {}
        self._replaced: set[tuple[str, str]] = set()
        self._commits: dict[str, list[Commit]] = defaultdict(list)
        self._opened: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """Group -> when it was surely in a generation."""

    def read(self) -> None:
        """Take every operation."""
        for operation in self._history:
            match operation:
                case Poll():
                    self._polled(operation)
                case Assigned():
                    self._assigned(operation)
                case Revoked():
                    self._revoked(operation)
                case Seek():
                    self._readers[operation.process].positions[operation.partition] = operation.offset
                case Removed():
                    self._note_removed(operation)
                case Commit() if operation.outcome is not Outcome.FAILED:
                    self._committed(operation)
                case CommittedFetch():
                    for partition, offset in operation.offsets.items():
                        read = Read(operation.began, operation.ended, offset, operation.process)
                        self._registers[operation.group, partition].reads.append(read)

    def _note_removed(self, removed: Removed) -> None:
        member = removed.group, removed.member_id
        self._removed[member] = min(removed.at, self._removed.get(member, FOREVER))
        if removed.replaced:
            self._replaced.add(member)

    def _polled(self, poll: Poll) -> None:
        if not poll.records:
            return
        reader, (first, _) = self._readers[poll.process], poll.records[0]
        where = f"{poll.process} at {poll.ended}: {poll.partition}"
        owned = reader.owned.get(poll.partition)
        if poll.group is not None and owned is None:
            self.unowned_reads.append(f"{where}@{first}")
        position = reader.positions.get(poll.partition)
        if position is not None:
            self._step(poll, where, position, first, (self.skips, self.backward))
        elif owned is not None and poll.group is not None:
            left = reader.left.get(poll.partition, (0, -1))
            read = Read(owned.began, poll.ended, first, poll.process, none=True, position=left)
            self._registers[poll.group, poll.partition].reads.append(read)
        before = first
        for offset, _ in poll.records[1:]:
            self._step(poll, where, before + 1, offset, (self.skips_within, self.backward_within))
            before = offset
        reader.positions[poll.partition] = before + 1

    def _step(self, poll: Poll, where: str, position: int, offset: int, wrong: tuple[list[str], list[str]]) -> None:
        skips, backward = wrong
        if offset < position:
            backward.append(f"{where}@{offset} after {position - 1}")
            return
        expected = self._next_offset(poll.partition, position, poll.committed_only)
        if expected != offset:
            skips.append(f"{where}@{offset}, and {expected} was next")

    def _assigned(self, assigned: Assigned) -> None:
        reader, group = self._readers[assigned.process], assigned.group
        if assigned.generation >= 0:
            before = reader.generations.get(group, -1)
            if assigned.generation < before:
                self.generations_back.append(f"{assigned.process} of {group}: {before}, then {assigned.generation}")
            reader.generations[group] = assigned.generation
            self._opened[group].append((assigned.at, assigned.generation))
        for partition in assigned.partitions:
            if partition not in reader.owned:
                owned = Ownership(assigned.process, assigned.member_id, assigned.generation, assigned.at)
                reader.owned[partition] = owned
                reader.positions.pop(partition, None)
                self._ownerships[group, partition].append(owned)

    def _revoked(self, revoked: Revoked) -> None:
        reader = self._readers[revoked.process]
        for partition in revoked.partitions:
            owned = reader.owned.pop(partition, None)
            if owned is not None:
                owned.ended = revoked.at
            if partition in reader.positions:  # else it read nothing, and stands where it stood
                reader.left[partition] = revoked.at, reader.positions.pop(partition)

    def _committed(self, commit: Commit) -> None:
        for partition, offset in commit.offsets.items():
            self._registers[commit.group, partition].add(commit, offset)
        if commit.outcome is Outcome.OK and commit.generation >= 0:
            self._commits[commit.group].append(commit)
            self._opened[commit.group].append((commit.ended, commit.generation))

    # -- rules

    def committed_back(self) -> Iterator[str]:
        for (group, partition), register in self._registers.items():
            for read, newest in register.impossible():
                if not self._kept_its_position(read, group, partition):
                    what = f"{'began to read' if read.none else 'fetched'} {partition}@{read.offset}"
                    when = f"between {read.began} and {read.ended}"
                    why = (
                        f"a commit that began at {newest} had overwritten it" if newest >= 0 else "nobody committed it"
                    )
                    yield f"{group}: {read.process} {what} {when}, but {why}"

    def _kept_its_position(self, read: Read, group: str, partition: str) -> bool:
        left_at, position = read.position
        others = (
            one for one in self._ownerships[group, partition]
            if one.process != read.process and left_at <= one.began < read.began
        )  # fmt: skip
        return read.none and read.offset == position and next(others, None) is None

    def stale_commits(self) -> Iterator[str]:
        for group, commits in self._commits.items():
            at, highest = _prefix_max(self._opened[group])
            for commit in commits:
                before = bisect_left(at, commit.began)
                if before and highest[before - 1] > commit.generation:
                    yield f"accepted after generation {highest[before - 1]} had opened: {commit}"

    def two_owners(self) -> Iterator[str]:
        for (group, partition), ownerships in self._ownerships.items():
            by_generation: dict[int, Ownership] = {}
            still: list[tuple[int, int, Ownership]] = []
            for number, later in enumerate(sorted(ownerships, key=lambda one: one.began)):
                while still and still[0][0] <= later.began:
                    heappop(still)
                earlier = {id(one): one for _, _, one in still if one.process != later.process}
                former = by_generation.setdefault(later.generation, later)
                if later.generation >= 0 and former.member_id != later.member_id:
                    earlier[id(former)] = former
                for one in earlier.values():
                    if not self._has_ended(group, one, later):
                        yield f"{group} {partition}: {one}, then {later}"
                heappush(still, (later.ended, number, later))

    def _has_ended(self, group: str, earlier: Ownership, later: Ownership) -> bool:
        """Whether the coordinator had taken the partition away; within a generation it gives it to a successor only."""
        former = group, earlier.member_id
        if earlier.generation == later.generation >= 0:
            return former in self._replaced
        return self._removed.get(former, FOREVER) <= later.began
