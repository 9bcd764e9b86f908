"""Read the entries of a log without their values, with a script for each format of logs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, cast

from tidegate.store.keys import LogKeys
from tidegate.store.scripts import Script
from tidegate_pipeline.errors import LogGone, StrayEntry
from tidegate_pipeline.redis_access import Client
from tidegate_pipeline.sources.reads import Read, read_all
from tidegate_pipeline.topics import RecordKeys

PLAN_RANGE = Script("archive/plan_range")
PLAN_RECORDS = Script("records/plan_range")

_KAFKA_STORAGE_ERROR: Final = 56

UNLIMITED: Final = 1 << 53
"""Exact in Lua's numbers, and more than there is."""


Epochs = tuple[tuple[int, int], ...]
"""(leader epoch, start offset) in order."""


class Step(NamedTuple):
    """Consecutive entries: `first` is the base offset of the first, `end` is exclusive.

    `size` is the bytes of their batches, `max_timestamp` is in ms, -1 where they have none.
    """

    first: int
    end: int
    entries: int
    records: int
    size: int
    max_timestamp: int

    def join(self, after: Step) -> Step:
        """This step and the next one as one."""
        return Step(
            self.first, after.end, self.entries + after.entries, self.records + after.records,
            self.size + after.size, max(self.max_timestamp, after.max_timestamp),
        )  # fmt: skip


class LogOffsets(NamedTuple):
    """Offsets of a log: Kafka's log start, the first offset that Redis has, and the end (exclusive).

    `epochs` are leader epochs and where each
    starts: a server that lost writes left a new one, which starts where the log ended then.
    """

    log_start: int
    redis_start: int
    end: int
    epochs: Epochs


@dataclass(frozen=True, slots=True)
class Walked:
    """One walk: the offsets of the log, the offset where the walk stopped, and the steps that it passed."""

    offsets: LogOffsets
    position: int
    steps: list[Step]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a walk and of the size of its steps; an entry is never split."""

    size: int = UNLIMITED
    records: int = UNLIMITED
    at_least_one: bool = True
    grain_size: int = UNLIMITED
    grain_records: int = UNLIMITED


def walk_of(keys: LogKeys, start: int, stop: int = -1, limits: Limits = Limits()) -> Read:
    """A walk from the entry that holds `start` on, for `reads`; its reply is Walked. Raises LogGone, StrayEntry."""
    args: tuple[str | int, ...] = (
        2, keys.log, keys.meta, start, stop, limits.size, limits.records,
        int(limits.at_least_one), limits.grain_size, limits.grain_records,
    )  # fmt: skip
    script = PLAN_RANGE
    if isinstance(keys, RecordKeys):
        args, script = (*args, keys.bits), PLAN_RECORDS
    return Read(args, partial(_walked, keys), script, is_bounded=True)


def _walked(keys: LogKeys, reply: Any) -> Walked:
    if reply[0] == _KAFKA_STORAGE_ERROR:
        raise StrayEntry(
            f"stream entry {reply[1].decode()} of {keys.log} is not an entry of a log (no broker appended it, or"
            " it is truncated): nothing is read until `tidegate topic repair` has left it out"
        )
    if reply[0]:
        raise LogGone(f"{_partition_of(keys)}: it was deleted, there is no log {keys.log}", reply[1])
    _, log_start, redis_start, end, epochs, position, steps = reply
    return Walked(
        LogOffsets(log_start, redis_start, end, parse_epochs(epochs)), position, [Step(*step) for step in steps]
    )


@dataclass(frozen=True, slots=True)
class LogWalker:
    """Walks one log. Needs no Spark; every walk is one call of a script."""

    client: Client
    keys: LogKeys
    retry_s: float

    def walk(self, start: int, stop: int = -1, limits: Limits = Limits()) -> Walked:
        """From the entry that holds `start` on, at most 8 MiB. Raises LogGone, StrayEntry, PipelineError."""
        (walked,) = read_all(self.client, [walk_of(self.keys, start, stop, limits)], self.retry_s)
        if isinstance(walked, LogGone):
            raise walked
        return cast(Walked, walked)

    def offsets(self) -> LogOffsets:
        """The offsets of the log now."""
        return self.walk(UNLIMITED).offsets


def _partition_of(keys: LogKeys) -> str:
    """A partition for people, out of the hash tag `{<org>/<topic>:<partition>}` of its keys."""
    tag = keys.log.partition("{")[2].partition("}")[0]
    topic, _, partition = tag.partition("/")[2].rpartition(":")
    return f"topic {topic} partition {partition}"


def parse_epochs(text: bytes) -> Epochs:
    """As a log's meta has them: `0:0 1:1532`."""
    return tuple((int(epoch), int(start)) for epoch, _, start in (pair.partition(b":") for pair in text.split()))
