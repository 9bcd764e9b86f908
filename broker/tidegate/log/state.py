"""What a broker knows of one log: a function of the log, kept in memory, void as soon as it may be wrong.

A view belongs to one set of connections and one incarnation. A successful append proves that it was not
behind; every other answer that depends on the end is given after a look (design, the log, rules 5 to 8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.log.entries import Entry, StrayEntry, read_header
from tidegate.log.producers_table import ProducerState, advance


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The offsets and the leader epoch of a partition, as clients are told them."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    local_start_offset: int


@dataclass(slots=True)
class LogState:
    """One broker's view of one log. Offsets are exclusive ends; `epochs` is (epoch, start offset) in order.

    `log_start` holds for both tiers; below `local_start`, which is never less, only the archive has the log.
    The high watermark is known from `unproved_end` on: up to there another broker may have shown the log.
    `stray` is what stands, or stood, behind `end`: nothing can be appended until the log is repaired.
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
        """The leader epoch under which `offset` was (or will be) written."""
        if offset >= self.epochs[-1][1]:
            return self.epochs[-1][0]
        at = bisect_right(self.epochs, offset, key=lambda epoch: epoch[1]) - 1
        return self.epochs[max(at, 0)][0]

    @property
    def last_stable_offset(self) -> int:
        """The high watermark: there are no transactions that could be open."""
        return self.high_watermark

    @property
    def high_watermark_known(self) -> bool:
        """Whether no broker can have told a higher one of what this view has."""
        return self.high_watermark >= self.unproved_end

    def known(self) -> LogOffsets:
        """The offsets, as clients are told them."""
        return LogOffsets(
            self.high_watermark, self.last_stable_offset, self.log_start, self.end, self.epochs[-1][0], self.local_start
        )  # fmt: skip

    def apply(self, entry: Entry, now_ms: int) -> None:
        """Go on past an entry that another writer appended (or this broker, found by reading)."""
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
        """Go on past this broker's own entry, whose batches were judged into `producers` before it was sent."""
        self.producers.update(producers)
        self.count(entry)

    def count(self, entry: Entry) -> None:
        """Move the end past an entry, and keep the figures that follow from it."""
        self.end = entry.end
        if entry.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_base = entry.max_timestamp, entry.base
        self.mean_entry_bytes += (entry.size - self.mean_entry_bytes) / 16
        self.unsaved_bytes += entry.size
        self.unsaved_entries += 1
