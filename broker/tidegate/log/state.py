"""The cached state of one log: a function of the log, void as soon as it may be wrong.

A state belongs to one set of connections and one failover epoch. A successful append proves that it was current;
every other answer that depends on the log end is given after a refresh (design, the log, rules 5 to 8).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidegate.log.entries import Entry, StrayEntry, read_header
from tidegate.log.open_transactions import OpenTransactions
from tidegate.log.producers_table import ProducerState, advance, end_transaction
from tidegate.records.batch_header import CONTROL, TRANSACTIONAL
from tidegate.records.control import MarkerType, read_marker


class LogOffsets(NamedTuple):
    """The offsets and the leader epoch of a partition, as reported to clients.

    `record_epoch` is the leader epoch of the newest records: lower, where later ones began at servers of other logs.
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    local_start_offset: int
    record_epoch: int

    def is_current(self, offset: int, last_epoch: int) -> bool:
        """Whether a client that read in an epoch up to an offset has read this log (KIP-320), by what is known here."""
        return self.record_epoch <= last_epoch <= self.leader_epoch and offset <= self.log_end_offset

    def agrees(self, offset: int, leader_epoch: int, last_epoch: int) -> bool:
        """Whether a client's epochs need no check by the log's history; -1 where it sent none."""
        return (leader_epoch < 0 or leader_epoch == self.leader_epoch) and (
            last_epoch < 0 or self.is_current(offset, last_epoch)
        )


EpochEnds = tuple[LogOffsets, dict[int, tuple[int, int]]]
"""Offsets of a log, and leader epoch -> (leader epoch, end offset) of it, (-1, -1) where undefined."""


_STATE_BYTES: Final = 1_000
_PRODUCER_BYTES: Final = 1_500
"""Memory of a producer with five batches."""
_TRANSACTION_BYTES: Final = 256
_EPOCH_BYTES: Final = 160


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
    transactions: OpenTransactions = field(default_factory=OpenTransactions)
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
    record_epoch: int = field(init=False)
    """The newest epoch of records, the next one's too."""
    leader_epoch: int = field(init=False)
    """The partition's, as Metadata has it: also where the log did not begin it because its server lost nothing."""

    def __post_init__(self) -> None:
        self.record_epoch = self.epochs[-1][0]
        self.leader_epoch = max(self.record_epoch, self.failover_epoch - 1)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at `offset`, also for the next record."""
        if offset >= self.epochs[-1][1]:
            return self.epochs[-1][0]
        at = bisect_right(self.epochs, offset, key=lambda epoch: epoch[1]) - 1
        return self.epochs[max(at, 0)][0]

    @property
    def last_stable_offset(self) -> int:
        """The start of the first transaction that is open below the high watermark, or the high watermark."""
        transactions = self.transactions
        if not transactions.first and not transactions.ended:
            return self.high_watermark
        return max(self.log_start, min(self.high_watermark, transactions.first_unstable(self.high_watermark)))

    @property
    def high_watermark_known(self) -> bool:
        """Whether no broker can have reported a higher one."""
        return self.high_watermark >= self.unproved_end

    def known(self) -> LogOffsets:
        """The offsets, as reported to clients."""
        return LogOffsets(
            self.high_watermark, self.last_stable_offset, self.log_start, self.end, self.leader_epoch, self.local_start,
            self.record_epoch,
        )  # fmt: skip

    @property
    def memory_bytes(self) -> int:
        """Upper bound of the memory."""
        producers = _PRODUCER_BYTES * len(self.producers)
        transactions = _TRANSACTION_BYTES * len(self.transactions)
        return _STATE_BYTES + producers + transactions + _EPOCH_BYTES * len(self.epochs)

    def apply(self, entry: Entry, now_ms: int) -> None:
        """Apply an entry that was read from the log."""
        base = entry.base
        for batch, end in zip(entry.batches, entry.ends, strict=True):
            header = read_header(batch)
            producer_id = header.producer_id
            if header.attributes & CONTROL:
                self._apply_marker(batch, base, now_ms)
            elif producer_id >= 0:
                transactional = header.attributes & TRANSACTIONAL != 0
                state = self.producers[producer_id] = advance(
                    self.producers.get(producer_id),
                    header.producer_epoch,
                    header.base_sequence,
                    header.last_offset_delta,
                    base,
                    header.max_timestamp,
                    now_ms,
                    transactional,
                )
                if transactional:
                    self.transactions.add(producer_id, state.transaction_start)
            base = end
        self.count(entry)

    def _apply_marker(self, batch: bytes | bytearray | memoryview, base: int, now_ms: int) -> None:
        marker = read_marker(batch)
        if marker is None:
            return  # a kind of control record that ends no transaction
        before = self.producers.get(marker.producer_id)
        self.producers[marker.producer_id] = end_transaction(
            before, marker.producer_epoch, marker.ended_ms, marker.coordinator_epoch, now_ms
        )
        aborted = marker.type is MarkerType.ABORT
        self.transactions.end(marker.producer_id, base, aborted, is_below=base < self.high_watermark)

    def apply_own(self, entry: Entry, producers: Mapping[int, ProducerState]) -> None:
        """Apply this broker's own entry; its batches were judged into `producers` before it was sent.

        Not for entries with transactional batches or markers: those are read by `apply`.
        """
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
