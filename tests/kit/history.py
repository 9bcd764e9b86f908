"""A history: what clients asked and were answered, in the order in which each of them did it.

The operations follow the model that Jepsen uses for Kafka (`jepsen.tests.kafka`): totally ordered partitions of unique
values, sends whose offsets may be unknown, polls of several records, and beside them what a group sees: assignments,
commits, committed offsets. Times are ns of a clock that all processes share. `tests.kit.checker` judges it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

FOREVER: Final = 1 << 62
Records: TypeAlias = tuple[tuple[int, str], ...]


class Outcome(StrEnum):
    """What the one who asked knows (Jepsen's ok, fail and info)."""

    OK = "ok"
    FAILED = "failed"
    """Surely not done."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Send:
    """One record handed to a producer, and how it was answered; `offset` is -1 where it is not known."""

    process: str
    began: int
    ended: int
    partition: str
    value: str
    outcome: Outcome
    offset: int = -1
    idempotent: bool = True
    """Whether the producer promises no duplicate and the order of its sends."""
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """A producer asked to commit or to abort; one that never asks aborts in the end."""

    process: str
    began: int
    ended: int
    transaction: str
    committed: bool
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Poll:
    """Records that one call handed out, of one partition. Without a group the process assigned itself."""

    process: str
    began: int
    ended: int
    partition: str
    records: Records
    group: str | None = None
    committed_only: bool = True
    """Whether the reader is `read_committed`."""


@dataclass(frozen=True, slots=True)
class Seek:
    """From here on the process reads somewhere else."""

    process: str
    at: int
    partition: str
    offset: int
    by_library: bool = False
    """The client's library moved by itself: a group is not held to records that it passed over so."""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The listener learned of new partitions: the process owns them from now on."""

    process: str
    at: int
    group: str
    member_id: str
    generation: int
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """The process gave partitions up, or learned that they are lost: it has read the last of them."""

    process: str
    at: int
    group: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """The coordinator removed a member, which may not know it yet."""

    at: int
    group: str
    member_id: str
    replaced: bool = False
    """By a restart of the same static member, to which its assignment passes in the same generation."""


@dataclass(frozen=True, slots=True)
class FailOver:
    """Another Redis server may have become the primary: what waits for no replica may be lost."""

    began: int
    ended: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets of one group, sent by a member (or by nobody's member: generation -1)."""

    process: str
    began: int
    ended: int
    group: str
    generation: int
    offsets: Mapping[str, int]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CommittedFetch:
    """What a group's committed offsets were said to be; -1 for none."""

    process: str
    began: int
    ended: int
    group: str
    offsets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records that a share group handed to a member: offset, value and delivery count of each."""

    process: str
    at: int
    group: str
    partition: str
    records: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a member of a share group said of records of its last delivery, and how that was answered."""

    process: str
    began: int
    ended: int
    group: str
    partition: str
    accepted: tuple[int, ...]
    released: tuple[int, ...]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ShareBounds:
    """The start offset of a share-partition when all was over: everything below it is finished."""

    at: int
    group: str
    partition: str
    start: int


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Start and end of a partition when all was over; a process of no group has read everything between."""

    at: int
    partition: str
    start: int
    end: int


Operation: TypeAlias = (
    Send | TransactionEnd | Poll | Seek | Assigned | Revoked | Removed | Commit | CommittedFetch | LogBounds
    | Delivery | Acknowledgement | ShareBounds | FailOver
)  # fmt: skip
_KINDS: Final = {kind.__name__: kind for kind in Operation.__args__}


def now_ns() -> int:
    """CLOCK_MONOTONIC: the same in every process of a machine."""
    return time.monotonic_ns()


@dataclass(slots=True)
class History:
    """Operations in the order in which they were noted. Appending is safe from any thread."""

    operations: list[Operation] = field(default_factory=list)

    def add(self, operation: Operation) -> None:
        """Note one operation, after it ended; a process notes its own in their order."""
        self.operations.append(operation)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)

    def dump(self, path: Path) -> None:
        """One JSON object a line."""
        with path.open("w") as file:
            for operation in self.operations:
                file.write(json.dumps({"kind": type(operation).__name__, **asdict(operation)}) + "\n")

    @classmethod
    def load(cls, path: Path) -> History:
        """What `dump` wrote."""
        with path.open() as file:
            return cls([_loaded(json.loads(line)) for line in file])


def _loaded(fields: dict[str, Any]) -> Operation:
    kind = _KINDS[fields.pop("kind")]
    if kind is Delivery:
        fields["records"] = tuple(map(tuple, fields["records"]))
    elif "records" in fields:
        fields["records"] = records_of(fields["records"])
    for name in ("partitions", "accepted", "released"):
        if name in fields:
            fields[name] = tuple(fields[name])
    if "outcome" in fields:
        fields["outcome"] = Outcome(fields["outcome"])
    loaded: Operation = kind(**fields)
    return loaded


def records_of(pairs: Iterable[Iterable[Any]]) -> Records:
    """Offsets and values, of whatever pairs."""
    return tuple((int(offset), str(value)) for offset, value in pairs)
