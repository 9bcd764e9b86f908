"""Read the entries of a log without their values, with the script `archive/plan_range`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tidegate.store.keys import LogKeys
from tidegate.store.scripts import Script
from tidegate_pipeline.errors import PipelineError
from tidegate_pipeline.redis_access import Client, retry_while_unavailable, run

PLAN_RANGE = Script("archive/plan_range")

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
    """Offsets of a log: Kafka's log start, the first offset that Redis has, and the end (exclusive, all committed).

    There are no transactions yet, so the last stable offset is the end. `epochs` are leader epochs and where each
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


class StrayEntry(PipelineError):
    """A stream entry that no broker appended, or that is truncated: its offsets are unknown."""


class LogGone(PipelineError):
    """The log was deleted, or never made."""


@dataclass(frozen=True, slots=True)
class LogWalker:
    """Walks one log. Needs no Spark; every walk is one call of a script."""

    client: Client
    keys: LogKeys
    retry_s: float

    def walk(self, start: int, stop: int = -1, limits: Limits = Limits()) -> Walked:
        """From the entry that holds `start` on, at most 8 MiB. Raises LogGone, StrayEntry, PipelineError."""
        reply = retry_while_unavailable(
            lambda: run(
                self.client, PLAN_RANGE, [self.keys.log, self.keys.meta], start, stop, limits.size, limits.records,
                int(limits.at_least_one), limits.grain_size, limits.grain_records,
            ),
            self.retry_s,
        )  # fmt: skip
        if reply[0] == _KAFKA_STORAGE_ERROR:
            raise StrayEntry(
                f"stream entry {reply[1].decode()} of {self.keys.log} is no entry of a log (no broker appended it, or"
                " it is truncated): nothing is read until `tidegate topic repair` has left it out"
            )
        if reply[0]:
            raise LogGone(f"there is no log {self.keys.log}")
        _, log_start, redis_start, end, epochs, position, steps = reply
        return Walked(
            LogOffsets(log_start, redis_start, end, parse_epochs(epochs)), position, [Step(*step) for step in steps]
        )

    def offsets(self) -> LogOffsets:
        """The offsets of the log now."""
        return self.walk(UNLIMITED).offsets


def parse_epochs(text: bytes) -> Epochs:
    """As a log's meta has them: `0:0 1:1532`."""
    return tuple((int(epoch), int(start)) for epoch, _, start in (pair.partition(b":") for pair in text.split()))
