"""The rules about share groups: who was given a record, and what became of it.

A record's deliveries differ by their count, which rises with each. Neither clocks nor the order of journals
decide anything: whatever is acquired after a confirmed acceptance has a greater count than what was accepted. Only a
fail-over of Redis excuses by its time: acquisitions wait for no replica, so one may be lost and made again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.kit.history import Acknowledgement, Delivery, FailOver, History, Outcome, Send, ShareBounds


@dataclass(slots=True)
class SharedRecord:
    """One record of one share group."""

    deliveries: dict[int, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    """Delivery count -> when who got the record so."""
    accepted: dict[int, Outcome] = field(default_factory=dict)
    """Delivery count -> how the acceptance of that delivery was answered."""
    values: set[str] = field(default_factory=set)


class ShareGroups:
    """Goes through a history once."""

    def __init__(self, history: History) -> None:
        self._records: dict[tuple[str, str, int], SharedRecord] = defaultdict(SharedRecord)
        self._last: dict[tuple[str, str, str, int], int] = {}
        """(process, group, partition, offset) -> count of the last delivery."""
        self._sent: dict[tuple[str, int], str] = {}
        self._starts: dict[tuple[str, str], int] = {}
        self._failovers: list[FailOver] = []
        self.unowned_acknowledgements: list[str] = []
        for operation in history:
            match operation:
                case Delivery():
                    self._delivered(operation)
                case Acknowledgement():
                    self._acknowledged(operation)
                case FailOver():
                    self._failovers.append(operation)
                case ShareBounds():
                    self._starts[operation.group, operation.partition] = operation.start
                case Send(outcome=Outcome.OK) if operation.offset >= 0:
                    self._sent[operation.partition, operation.offset] = operation.value

    def _delivered(self, delivery: Delivery) -> None:
        for offset, value, count in delivery.records:
            record = self._records[delivery.group, delivery.partition, offset]
            record.deliveries[count].append((delivery.at, delivery.process))
            record.values.add(value)
            self._last[delivery.process, delivery.group, delivery.partition, offset] = count

    def _acknowledged(self, answer: Acknowledgement) -> None:
        for offset in (*answer.accepted, *answer.released):
            count = self._last.get((answer.process, answer.group, answer.partition, offset))
            if count is None and answer.outcome is not Outcome.FAILED:
                where = f"{answer.process} of {answer.group}: {answer.partition}@{offset}"
                self.unowned_acknowledgements.append(f"{where} was never delivered to it")
            elif count is not None and offset in answer.accepted:
                self._records[answer.group, answer.partition, offset].accepted[count] = answer.outcome

    # -- rules

    def two_deliveries(self) -> Iterator[str]:
        for (group, partition, offset), record in self._records.items():
            for count, deliveries in record.deliveries.items():
                for (earlier, first), (later, second) in pairwise(sorted(deliveries)):
                    if not self._failed_over_between(earlier, later):
                        yield f"{group}: {partition}@{offset} was delivered as number {count} to {first} and {second}"

    def _failed_over_between(self, earlier: int, later: int) -> bool:
        return any(one.began < later and one.ended > earlier for one in self._failovers)

    def delivered_again(self) -> Iterator[str]:
        for (group, partition, offset), record in self._records.items():
            for count, outcome in record.accepted.items():
                later = {number: one for number, one in record.deliveries.items() if number > count}
                if outcome is Outcome.OK and later:
                    yield f"{group}: {partition}@{offset} was accepted at delivery {count}, then delivered: {later}"

    def other_values(self) -> Iterator[str]:
        for (group, partition, offset), record in self._records.items():
            expected = self._sent.get((partition, offset))
            for value in sorted(record.values):
                if expected is not None and value != expected:
                    yield f"{group}: {partition}@{offset} was delivered as {value}, and sent as {expected}"

    def lost(self) -> Iterator[str]:
        """Finished, though nobody's acceptance can have finished it: the group's limit of deliveries is not reached."""
        for (group, partition), start in self._starts.items():
            for (of, offset), value in self._sent.items():
                if of != partition or offset >= start:
                    continue
                record = self._records.get((group, partition, offset))
                if record is None:
                    yield f"{group}: {partition}@{offset} ({value}) is finished, and was never delivered"
                elif not set(record.accepted.values()) & {Outcome.OK, Outcome.UNKNOWN}:
                    yield f"{group}: {partition}@{offset} ({value}) is finished, and nobody accepted it: {record}"
