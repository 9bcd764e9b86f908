"""The check of an outside run: every promise that members and writers can witness, from their own journals alone.

Times are ns of the clock that all processes share. An owner owns a partition from the start of its listener's
*assigned* to the end of its *revoked* (or *lost*, or until it began to close, after which it reads nothing).

* Nothing lost: every group read every acknowledged record, at its offset.
* Nothing without cause: within an ownership offsets follow one another, but for seeks; it begins where the group's
  commits say, or (kafka-python keeps its position) where the same process ended if nobody else owned the partition
  between. So whatever is read twice was sought, or was not committed when its partition moved.
* No commit gone back: what is fetched, and where an ownership begins, is the last acknowledged commit, or one
  whose answer was not there yet. A seek commits lower by itself: it is a commit like any other.
* One owner: ownerships of a partition do not overlap. (The one excuse: the coordinator had removed the earlier
  owner before the later one was assigned, and accepts no commit of it any more.)
* Paused means paused: no record between *paused* and *resuming*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

FOREVER = 1 << 62
REFUSALS = ("Generation", "GENERATION", "UnknownMember", "UNKNOWN_MEMBER", "Rebalance", "REBALANCE", "Fenced", "FENCED")
"""Parts of the names of errors that say for certain that a commit was not taken."""

Entry = Mapping[str, Any]


@dataclass(slots=True)
class Commit:
    """One offset sent: taken at some moment between `began` and `ended`, if it was."""

    owner: str
    offset: int
    began: int
    ended: int
    generation: int
    acknowledged: bool


@dataclass(slots=True)
class Ownership:
    """One member's time with one partition, and the reads in it: (at, offset)."""

    owner: str
    member_id: str
    generation: int
    began: int
    ended: int = FOREVER
    reads: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class GroupHistory:
    """All that the members of one group saw."""

    group: str
    removed: Mapping[str, int]
    """Member id -> when the coordinator removed it."""
    violations: list[str] = field(default_factory=list)
    ownerships: dict[int, list[Ownership]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[int, list[Commit]] = field(default_factory=lambda: defaultdict(list))
    fetches: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    """began, ended, partition, offset, who: what the group's commit was said to be; -1 for none."""
    first_reads: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    """The same where an ownership began to read; 0 may be the commit, or that there was none."""
    kept: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    """Who, partition, begin of an ownership -> when it last gave the partition up having read it, and how far."""
    values: dict[tuple[int, int], str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    generations: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, owner: str, entries: Iterable[Entry]) -> None:
        """One process's journal."""
        reader = _Reader(self, owner)
        for entry in entries:
            reader.take(entry)

    def check(self, acknowledged: Mapping[tuple[int, int], str]) -> None:
        """Everything that takes more than one journal; see `violations`."""
        for partition, ownerships in self.ownerships.items():
            self._one_owner(partition, sorted(ownerships, key=lambda one: one.began))
        for began, ended, partition, offset, who in self.fetches:
            if not self._could_be_committed(partition, offset, began, ended):
                self._gone_back(f"{who} was told {partition}@{offset} at {ended}", partition, began)
        for began, ended, partition, offset, who in self.first_reads:
            could = self._could_be_committed(partition, offset, began, ended)
            could = could or (offset == 0 and self._could_be_committed(partition, -1, began, ended))
            if not could and not self._kept_its_position(who, partition, began, offset):
                self._gone_back(f"{who} began to read {partition}@{offset} at {ended}", partition, began)
        lost = [place for place, value in acknowledged.items() if self.values.get(place) != value]
        if lost:
            self.violations.append(f"{len(lost)} acknowledged records were not read where they are: {sorted(lost)[:5]}")
        for owner, observed in self.generations.items():
            if observed != sorted(observed):
                self.violations.append(f"{owner} saw generations fall: {observed}")

    def _one_owner(self, partition: int, ownerships: list[Ownership]) -> None:
        for place, earlier in enumerate(ownerships):
            for later in ownerships[place + 1 :]:
                if later.began >= earlier.ended:
                    continue
                late = [one for one in self.commits[partition] if _is_late(one, earlier, later)]
                if late or self.removed.get(earlier.member_id, FOREVER) > later.began:
                    self.violations.append(f"two owners of {partition}: {earlier} and {later}; late commits {late}")
                else:
                    self.counts["ownerships that outlived their membership"] += 1

    def _kept_its_position(self, who: str, partition: int, began: int, offset: int) -> bool:
        ended, position = self.kept.get((who, partition, began), (0, -1))
        others = [one for one in self.ownerships[partition] if one.owner != who and ended <= one.began < began]
        return offset == position and not others

    def _gone_back(self, what: str, partition: int, began: int) -> None:
        known = sorted((one for one in self.commits[partition] if one.ended < began), key=lambda one: one.ended)
        self.violations.append(f"{what}, after the commits {known[-2:]}")

    def _could_be_committed(self, partition: int, offset: int, began: int, ended: int) -> bool:
        """Whether `offset` may be what a fetch between two moments finds: a register's reads."""
        commits = self.commits[partition]
        newest = max((one.began for one in commits if one.acknowledged and one.ended < began), default=-1)
        if offset == -1:
            return newest == -1
        return any(one.offset == offset and one.began < ended and one.ended > newest for one in commits)


def _is_late(commit: Commit, earlier: Ownership, later: Ownership) -> bool:
    return commit.acknowledged and commit.owner == earlier.owner and commit.began > later.began


class _Reader:
    """Goes through one journal in order."""

    def __init__(self, history: GroupHistory, owner: str) -> None:
        self.history = history
        self.owner = owner
        self.owned: dict[int, Ownership] = {}
        self.expected: dict[int, int] = {}
        self.sought: set[int] = set()
        self.paused: set[int] = set()
        self.high: dict[int, int] = {}
        self.left: dict[int, tuple[int, int]] = {}

    def take(self, entry: Entry) -> None:
        """One entry."""
        taker = getattr(self, f"_{entry['kind']}", None)
        if taker is not None:
            taker(entry)
        self.history.counts[entry["kind"]] += 1

    def _wrong(self, entry: Entry, what: str) -> None:
        self.history.violations.append(f"{self.owner} at {entry['at']}: {what}")

    def _assigned(self, entry: Entry) -> None:
        self.history.generations[self.owner].append(entry["generation"])
        for partition in entry["partitions"]:
            if partition not in self.owned:
                owned = Ownership(self.owner, entry["member"], entry["generation"], entry["at"])
                self.owned[partition] = owned
                self.history.ownerships[partition].append(owned)
                if partition in self.left:
                    self.history.kept[self.owner, partition, owned.began] = self.left[partition]

    def _revoked(self, entry: Entry) -> None:
        for partition in entry["partitions"]:
            owned = self.owned.pop(partition, None)
            if owned is None:
                self._wrong(entry, f"{entry['kind']} {partition}, which it did not own")
            else:
                owned.ended = entry["at"]
            if partition in self.expected:  # else it read nothing, and stands where it stood
                self.left[partition] = entry["at"], self.expected.pop(partition)
            self.high.pop(partition, None)
            self.sought.discard(partition)
            self.paused.discard(partition)

    _lost = _revoked

    def _read(self, entry: Entry) -> None:
        partition = entry["partition"]
        owned = self.owned.get(partition)
        if owned is None:
            self._wrong(entry, f"read {partition} without owning it: {entry['records'][0]}")
            return
        if partition in self.paused:
            self._wrong(entry, f"read {partition} while it was paused: {entry['records'][0]}")
        for offset, value in entry["records"]:
            self._read_one(entry, owned, partition, offset, value)

    def _read_one(self, entry: Entry, owned: Ownership, partition: int, offset: int, value: str) -> None:
        history = self.history
        expected = self.expected.get(partition)
        if expected is None:
            history.first_reads.append((owned.began, entry["at"], partition, offset, self.owner))
        elif offset != expected:
            self._wrong(entry, f"read {partition}@{offset}, expected {expected}")
        if history.values.setdefault((partition, offset), value) != value:
            self._wrong(entry, f"read {value} at {partition}@{offset}, others {history.values[partition, offset]}")
        elif offset < self.high.get(partition, 0):
            history.counts["records read again after a seek"] += 1
        owned.reads.append((entry["at"], offset))
        self.high[partition] = max(self.high.get(partition, 0), offset + 1)
        self.expected[partition] = offset + 1
        history.counts["records read"] += 1

    def _seek(self, entry: Entry) -> None:
        if entry["partition"] in self.owned:
            self.expected[entry["partition"]] = entry["offset"]

    def _paused(self, entry: Entry) -> None:
        self.paused.add(entry["partition"])

    def _resuming(self, entry: Entry) -> None:
        self.paused.discard(entry["partition"])

    def _commit(self, entry: Entry) -> None:
        error = entry["error"]
        self.history.counts["commits acknowledged" if error is None else f"commits refused: {error}"] += 1
        if error is not None and any(part in error for part in REFUSALS):
            return
        for partition, offset in entry["offsets"].items():
            ended = entry["at"] if error is None else FOREVER
            commit = Commit(self.owner, offset, entry["began"], ended, entry["generation"], error is None)
            self.history.commits[int(partition)].append(commit)

    def _committed(self, entry: Entry) -> None:
        for partition, offset in entry["offsets"].items():
            self.history.fetches.append((entry["began"], entry["at"], int(partition), offset, self.owner))


def order_of_log(values: Mapping[tuple[int, int], str]) -> list[str]:
    """What the log holds out of order or twice: each writer's numbers rise by one in each partition."""
    wrong, last = [], {}
    for (partition, offset), value in sorted(values.items()):
        writer, index, number = value.split(":")
        if int(index) != partition:
            wrong.append(f"{value} is in partition {partition}")
        if int(number) != last.get((writer, partition), -1) + 1:
            wrong.append(f"{value} at {partition}@{offset} follows number {last.get((writer, partition), -1)}")
        last[writer, partition] = int(number)
    return wrong
