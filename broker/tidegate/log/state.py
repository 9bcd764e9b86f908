"""The cached state of one log: a function of the log, void as soon as it may be wrong.

A state belongs to one set of connections and one failover epoch. A successful append proves that it was current;
every other answer that depends on the log end is given after a refresh (design, the log, rules 5 to 8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.log.entries import Entry, StrayEntry, read_header
from tidegate.log.producers_table import ProducerState, advance


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The offsets and the leader epoch of a partition, as reported to clients."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    local_start_offset: int


@dataclass(slots=True)
class LogState:
    """One broker's cached state of one log. Offsets are exclusive ends; `epochs` is (epoch, start offset) in order.

    `log_start` covers both tiers; records below `local_start`, which is never lower, are only in the archive.
    The high watermark is known once it reaches `unproved_end`: another broker may have served records up to there.
    `stray` is an entry behind `end` that blocks appends until the log is repaired.
    """

    end: int
    log_start: int
    local_start: int
    epochs: list[tuple[int, int]]
    failover_epoch: int
    high_watermark: int
    log_version: int = 0
    producers: dict[int, ProducerState] = field(default_factory=dict)
    max_timestamp: int = -1
    max_timestamp_base: int = -1
    mean_entry_bytes: float = 16_384.0
    verified_at: float = 0.0
    snapshot_offset: int = 0
    stored_high_watermark: int = 0
    unproved_end: int = 0
    unsaved_bytes: int = 0
    unsaved_entries: int = 0
    stray: StrayEntry | None = None

    @property
    def leader_epoch(self) -> int:
        """The newest epoch."""
        return self.epochs[-1][0]

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at `offset`, also for the next record."""
        if offset >= self.epochs[-1][1]:
            return self.epochs[-1][0]
        at = bisect_right(self.epochs, offset, key=lambda epoch: epoch[1]) - 1
        return self.epochs[max(at, 0)][0]

    @property
    def last_stable_offset(self) -> int:
        """The high watermark, since no transaction can be open."""
        return self.high_watermark

    @property
    def high_watermark_known(self) -> bool:
        """Whether no broker can have reported a higher one."""
        return self.high_watermark >= self.unproved_end

    def known(self) -> LogOffsets:
        """The offsets, as reported to clients."""
        return LogOffsets(
            self.high_watermark, self.last_stable_offset, self.log_start, self.end, self.epochs[-1][0], self.local_start
        )  # fmt: skip

    def apply(self, entry: Entry, now_ms: int) -> None:
        """Apply an entry that was read from the log."""
        base = entry.base
        for batch, end in zip(entry.batches, entry.ends, strict=True):
            header = read_header(batch)
            if header.producer_id >= 0:
                self.producers[header.producer_id] = advance(
                    self.producers.get(header.producer_id),
                    header.producer_epoch,
                    header.base_sequence,
                    header.last_offset_delta,
                    base,
                    header.max_timestamp,
                    now_ms,
                )
            base = end
        self.count(entry)

    def apply_own(self, entry: Entry, producers: Mapping[int, ProducerState]) -> None:
        """Apply this broker's own entry; its batches were judged into `producers` before it was sent."""
        self.producers.update(producers)
        self.count(entry)

    def count(self, entry: Entry) -> None:
        """Move the end past an entry, and update the derived figures."""
        self.end = entry.end
        if entry.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_base = entry.max_timestamp, entry.base
        self.mean_entry_bytes += (entry.size - self.mean_entry_bytes) / 16
        self.unsaved_bytes += entry.size
        self.unsaved_entries += 1
