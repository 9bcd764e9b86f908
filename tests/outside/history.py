"""The check of an outside run: members' and writers' journals as one history for `tests.kit.checker`.

A member owns a partition from the start of its listener's *assigned* to the end of its *revoked* (or *lost*, or until
it began to close, after which it reads nothing). Beside the kit's rules the journals witness two of this run alone:
every group read every acknowledged record, and nothing is read between *paused* and *resuming*.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from tests.kit.checker import check
from tests.kit.history import (
    Assigned,
    Commit,
    CommittedFetch,
    History,
    Operation,
    Outcome,
    Poll,
    Removed,
    Revoked,
    Seek,
    Send,
    records_of,
)

REFUSALS: Final = (
    "Generation", "GENERATION", "UnknownMember", "UNKNOWN_MEMBER", "Rebalance", "REBALANCE", "Fenced", "FENCED",
)  # fmt: skip
"""Parts of the names of errors that say for certain that a commit was not taken."""

Entry = Mapping[str, Any]


@dataclass(slots=True)
class GroupHistory:
    """All that the members of one group and all writers saw."""

    group: str
    removed: Mapping[str, int]
    """Member id -> when the coordinator removed it."""
    replaced: Set[str] = frozenset()
    """Those of them to which a restart of the same static member succeeded."""
    counts: Counter[str] = field(default_factory=Counter)
    values: dict[tuple[int, int], str] = field(default_factory=dict)
    """Partition and offset -> what was read there."""
    _history: History = field(default_factory=History)
    _while_paused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for member_id, at in self.removed.items():
            self._history.add(Removed(at, self.group, member_id, member_id in self.replaced))

    @property
    def read_again(self) -> int:
        """How many records were read more than once, counted each time."""
        return self.counts["records read"] - len(self.values)

    @property
    def refused_commits(self) -> dict[str, int]:
        """By the error."""
        return {name: count for name, count in self.counts.items() if name.startswith("commits refused")}

    def add(self, owner: str, entries: Iterable[Entry]) -> None:
        """One member's journal."""
        paused: set[int] = set()
        for entry in entries:
            kind = entry["kind"]
            self.counts[kind] += 1
            if kind == "commit":
                error = entry["error"]
                self.counts["commits acknowledged" if error is None else f"commits refused: {error}"] += 1
            if kind == "paused":
                paused.add(entry["partition"])
            elif kind == "resuming":
                paused.discard(entry["partition"])
            elif kind in ("revoked", "lost"):
                paused.difference_update(entry["partitions"])
            elif kind == "read":
                self._count(entry)
                if entry["partition"] in paused:
                    self._while_paused.append(f"{owner} at {entry['at']} read {entry['partition']}, which was paused")
            if kind in _TRANSLATED:
                self._history.add(_TRANSLATED[kind](owner, self.group, entry))

    def observe(self, fetched: Iterable[CommittedFetch]) -> None:
        """Committed offsets that somebody else asked for."""
        for one in fetched:
            self._history.add(one)

    def _count(self, entry: Entry) -> None:
        self.counts["records read"] += len(entry["records"])
        for offset, value in entry["records"]:
            self.values.setdefault((entry["partition"], offset), value)

    def violations(self, acknowledged: Mapping[tuple[int, int], str]) -> list[str]:
        """Broken promises in the journals; `acknowledged` is partition and offset -> value.

        A writer's values are `<writer>:<partition>:<number>`, and it sends them in the order of their numbers.
        """
        history = History([*_sends(acknowledged), *self._history])
        unread = [place for place, value in acknowledged.items() if self.values.get(place) != value]
        lost = [f"{len(unread)} acknowledged records were not read where they are: {sorted(unread)[:5]}"]
        return [*map(str, check(history)), *self._while_paused, *(lost if unread else []), *order_of_log(self.values)]


def _sends(acknowledged: Mapping[tuple[int, int], str]) -> Iterator[Send]:
    for (partition, offset), value in acknowledged.items():
        writer, _, number = value.split(":")
        began = int(number)  # a writer's own order; records may be read before they are acknowledged
        yield Send(writer, began, began, str(partition), value, Outcome.OK, offset)


def _assigned(owner: str, group: str, entry: Entry) -> Operation:
    return Assigned(owner, entry["at"], group, entry["member"], entry["generation"], _names(entry))


def _revoked(owner: str, group: str, entry: Entry) -> Operation:
    return Revoked(owner, entry["at"], group, _names(entry))


def _read(owner: str, group: str, entry: Entry) -> Operation:
    return Poll(owner, entry["at"], entry["at"], str(entry["partition"]), records_of(entry["records"]), group)


def _seek(owner: str, group: str, entry: Entry) -> Operation:
    return Seek(owner, entry["at"], str(entry["partition"]), entry["offset"])


def _commit(owner: str, group: str, entry: Entry) -> Operation:
    error = entry["error"]
    outcome = Outcome.OK if error is None else Outcome.UNKNOWN
    if error is not None and any(part in error for part in REFUSALS):
        outcome = Outcome.FAILED
    return Commit(owner, entry["began"], entry["at"], group, entry["generation"], entry["offsets"], outcome)


def _committed(owner: str, group: str, entry: Entry) -> Operation:
    return CommittedFetch(owner, entry["began"], entry["at"], group, entry["offsets"])


_TRANSLATED: Final = {
    "assigned": _assigned, "revoked": _revoked, "lost": _revoked, "read": _read, "seek": _seek, "commit": _commit,
    "committed": _committed,
}  # fmt: skip


def _names(entry: Entry) -> tuple[str, ...]:
    return tuple(map(str, entry["partitions"]))


def order_of_log(values: Mapping[tuple[int, int], str]) -> list[str]:
    """What was left out, or is in another partition: each writer's numbers rise by one in each partition."""
    wrong = []
    written: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
    for (partition, _), value in sorted(values.items()):
        writer, index, number = value.split(":")
        if int(index) != partition:
            wrong.append(f"{value} is in partition {partition}")
        written[writer, partition].append((int(number), value))
    for numbers in written.values():
        follow = pairwise([(-1, "the begin"), *numbers])
        wrong += [f"{value} follows {before}" for (last, before), (number, value) in follow if number != last + 1]
    return wrong
