"""The rules about records: what was sent, what the log holds, what was read of it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.kit.history import Commit, History, LogBounds, Outcome, Poll, Seek, Send, TransactionEnd

_NONE: Final[frozenset[int]] = frozenset()


class Partition:
    """What a history says of one partition."""

    def __init__(self) -> None:
        self.sends: dict[str, Send] = {}
        self.values_at: dict[int, set[str]] = defaultdict(set)
        """Offset -> what was read or acknowledged there."""
        self.read_at: dict[str, set[int]] = defaultdict(set)
        """Value -> where it was read."""
        self.first_read: dict[str, Poll] = {}
        """Value -> its first read by a reader of committed records."""
        self.polled: set[int] = set()
        self.group_polled: dict[str, set[int]] = defaultdict(set)
        self.group_committed: dict[str, int] = {}
        self.bounds: LogBounds | None = None
        self.known: list[int] = []
        """Offsets of records for every reader, in order."""
        self.known_committed: list[int] = []

    def offset_of(self, send: Send) -> int:
        """Where a record is: as acknowledged, else where it was read; -1 where that is not known or not one place."""
        if send.offset >= 0:
            return send.offset
        read = self.read_at.get(send.value, _NONE)
        return next(iter(read)) if len(read) == 1 else -1


class Log:
    """All partitions of a history."""

    def __init__(self, history: History) -> None:
        self.partitions: dict[str, Partition] = defaultdict(Partition)
        self._ends: dict[str, TransactionEnd] = {}
        self._positions: dict[tuple[str, str], tuple[str, int]] = {}
        """Process and partition -> its group, and the offset behind what it read last."""
        for operation in history:
            match operation:
                case Send():
                    self._sent(operation)
                case Poll():
                    self._read(operation)
                case Seek():
                    self._sought(operation)
                case TransactionEnd():
                    self._ends[operation.transaction] = operation
                case Commit(outcome=Outcome.OK):
                    self._committed(operation)
                case LogBounds():
                    self.partitions[operation.partition].bounds = operation
        self._observed = {
            send.transaction
            for log in self.partitions.values()
            for send in log.sends.values()
            if send.transaction is not None and send.value in log.first_read
        }
        """Transactions of which something was read: they have committed, whatever their producers know."""
        for log in self.partitions.values():
            log.known = sorted(log.values_at)
            log.known_committed = sorted(
                offset for offset, values in log.values_at.items() if any(self._visible(log, one) for one in values)
            )

    def _sent(self, send: Send) -> None:
        log = self.partitions[send.partition]
        log.sends[send.value] = send
        if send.outcome is Outcome.OK and send.offset >= 0:
            log.values_at[send.offset].add(send.value)

    def _read(self, poll: Poll) -> None:
        log = self.partitions[poll.partition]
        for offset, value in poll.records:
            log.values_at[offset].add(value)
            log.read_at[value].add(offset)
            log.polled.add(offset)
            if poll.committed_only:
                log.first_read.setdefault(value, poll)
            if poll.group is not None:
                log.group_polled[poll.group].add(offset)

        if poll.group is not None and poll.records:
            self._positions[poll.process, poll.partition] = poll.group, poll.records[-1][0] + 1

    def _sought(self, seek: Seek) -> None:
        """What a library passes over by itself is no loss of the group's."""
        group, position = self._positions.get((seek.process, seek.partition), ("", seek.offset))
        if seek.by_library and seek.offset > position:
            self.partitions[seek.partition].group_polled[group].update(range(position, seek.offset))

    def _committed(self, commit: Commit) -> None:
        for partition, offset in commit.offsets.items():
            committed = self.partitions[partition].group_committed
            committed[commit.group] = max(committed.get(commit.group, 0), offset)

    def _visible(self, log: Partition, value: str) -> bool:
        """Whether readers of committed records must see it, if it is in the log."""
        send = log.sends.get(value)
        return value in log.first_read or (send is not None and self.outcome(send) is Outcome.OK)

    def outcome(self, send: Send) -> Outcome:
        """Whether a record must, may or must not be read, its transaction considered."""
        if send.transaction is None:
            return send.outcome
        end = self._ends.get(send.transaction)
        if end is None or not end.committed or end.outcome is Outcome.FAILED:
            return Outcome.FAILED
        if end.outcome is Outcome.UNKNOWN and send.transaction not in self._observed:
            return Outcome.UNKNOWN
        return send.outcome

    def next_offset(self, partition: str, position: int, committed_only: bool) -> int:
        """The first record that a reader at `position` must get; -1 where none is known."""
        log = self.partitions[partition]
        known = log.known_committed if committed_only else log.known
        at = bisect_left(known, position)
        return known[at] if at < len(known) else -1

    # -- rules

    def lost_writes(self) -> Iterator[str]:
        for name, log in self.partitions.items():
            highest, bounds = max(log.polled, default=-1), log.bounds
            for send in log.sends.values():
                if self.outcome(send) is not Outcome.OK or send.value in log.read_at:
                    continue
                is_deleted = bounds is not None and 0 <= send.offset < bounds.start
                if not is_deleted and (bounds is not None or 0 <= send.offset <= highest):
                    yield f"{name}@{send.offset} {send.value}, acknowledged at {send.ended}, was never read"
            if bounds is not None and highest >= bounds.end:
                yield f"{name}@{highest} was read, and the log ends at {bounds.end}"

    def duplicates(self) -> Iterator[str]:
        for name, log in self.partitions.items():
            for value, offsets in log.read_at.items():
                send = log.sends.get(value)
                if len(offsets) > 1 and (send is None or send.idempotent):
                    yield f"{name} {value} is at {sorted(offsets)}"

    def inconsistent_offsets(self) -> Iterator[str]:
        for name, log in self.partitions.items():
            for offset, values in log.values_at.items():
                if len(values) > 1:
                    yield f"{name}@{offset} is {sorted(values)}"
            for send in log.sends.values():
                read = log.read_at.get(send.value, _NONE)
                if send.outcome is Outcome.OK and send.offset >= 0 and read and send.offset not in read:
                    yield f"{name} {send.value} was acknowledged at {send.offset} and read at {sorted(read)}"

    def aborted_reads(self) -> Iterator[str]:
        for name, log in self.partitions.items():
            for value, poll in log.first_read.items():
                send = log.sends.get(value)
                if send is not None and self.outcome(send) is Outcome.FAILED:
                    yield f"{name} {value} failed or was aborted ({send.transaction}), and {poll.process} read it"

    def precommitted_reads(self) -> Iterator[str]:
        for name, log in self.partitions.items():
            for value, poll in log.first_read.items():
                send = log.sends.get(value)
                end = None if send is None or send.transaction is None else self._ends.get(send.transaction)
                if end is not None and end.committed and poll.ended < end.began:
                    yield f"{name} {value} was read at {poll.ended}, its commit asked for at {end.began}"

    def nonmonotonic_sends_within(self) -> Iterator[str]:
        return self._nonmonotonic(within=True)

    def nonmonotonic_sends(self) -> Iterator[str]:
        return self._nonmonotonic(within=False)

    def _nonmonotonic(self, within: bool) -> Iterator[str]:
        for name, log in self.partitions.items():
            by_process: dict[str, list[tuple[int, int, Send]]] = defaultdict(list)
            for send in log.sends.values():
                if send.idempotent and (offset := log.offset_of(send)) >= 0:
                    by_process[send.process].append((send.began, offset, send))
            for process, sends in by_process.items():
                sends.sort(key=lambda one: one[:2])
                for (_, earlier_at, earlier), (_, later_at, later) in pairwise(sends):
                    is_within = earlier.transaction is not None and earlier.transaction == later.transaction
                    if later_at < earlier_at and is_within is within:
                        yield f"{process}: {name} {earlier.value}@{earlier_at}, then {later.value}@{later_at}"

    def holes(self) -> Iterator[str]:
        """A transaction's end takes one offset of each partition that it wrote to; its aborted records are not read."""
        explained: Counter[str] = Counter()
        for name, log in self.partitions.items():
            of_transactions = [send for send in log.sends.values() if send.transaction is not None]
            explained[name] = len({send.transaction for send in of_transactions})
            explained[name] += sum(send.value not in log.read_at for send in of_transactions)
            if log.bounds is None:
                continue
            holes = [offset for offset in range(log.bounds.start, log.bounds.end) if offset not in log.polled]
            if len(holes) > explained[name]:
                where = f"{name} [{log.bounds.start}, {log.bounds.end})"
                yield f"{where} has no record at {holes[:10]}, {len(holes)} in all, {explained[name]} explained"

    def group_skips(self) -> Iterator[str]:
        for name, log in self.partitions.items():
            for group, committed in log.group_committed.items():
                polled = log.group_polled.get(group)
                if not polled:
                    continue
                begin, end = (bisect_left(log.known_committed, offset) for offset in (min(polled), committed))
                missed = [offset for offset in log.known_committed[begin:end] if offset not in polled]
                if missed:
                    yield f"{group} committed {name}@{committed} and never read {missed[:5]}, {len(missed)} in all"
