"""What a share group's records have gone through, by the answers of Kafka: allowed differences are judged by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_RELEASE: Final = 2
Place = tuple[int, int]
"""Partition and offset."""


def acquired_by(answer: Mapping[str, Any]) -> dict[Place, int]:
    """The delivery count of each record that a ShareFetch gave."""
    return {
        (partition["partition_index"], offset): one["delivery_count"]
        for found in answer["responses"]
        for partition in found["partitions"]
        for one in partition["acquired_records"]
        for offset in range(one["first_offset"], one["last_offset"] + 1)
    }


@dataclass
class Deliveries:
    """The records of one topic. A record that is in none of the tables is finished, or was never delivered."""

    delivery_limit: int
    ends: dict[int, int]
    """Partition -> offset behind its last record."""
    delivered_ends: dict[int, int] = field(default_factory=dict)
    """Partition -> offset behind the last record that was delivered."""
    held: dict[Place, tuple[str, int]] = field(default_factory=dict)
    """Who has it, and how often it was delivered."""
    available: dict[Place, int] = field(default_factory=dict)
    """How often it was delivered."""

    def acquire(self, member: str, answer: Mapping[str, Any]) -> None:
        """A ShareFetch was answered."""
        for place, count in acquired_by(answer).items():
            self.available.pop(place, None)
            self.held[place] = member, count
            self.delivered_ends[place[0]] = max(self.delivered_ends.get(place[0], 0), place[1] + 1)

    def acknowledge(self, places: Iterable[tuple[Place, int]]) -> None:
        """Records were acknowledged, each with its type."""
        for place, kind in places:
            _, count = self.held.pop(place)
            if kind == _RELEASE and count < self.delivery_limit:
                self.available[place] = count

    def close(self, member: str) -> None:
        """A session ended."""
        self.acknowledge([(place, _RELEASE) for place, (holder, _) in self.held.items() if holder == member])

    def may_give(self, answer: Mapping[str, Any]) -> bool:
        """Whether it gives only records that are available or new, each with the right count."""
        return all(
            count == self.available.get(place, 0) + 1
            and (place in self.available or self.delivered_ends.get(place[0], 0) <= place[1] < self.ends[place[0]])
            for place, count in acquired_by(answer).items()
        )

    def gives_the_lowest(self, answer: Mapping[str, Any]) -> bool:
        """Whether it gives some of the records that are available again, of each partition the lowest offsets."""
        again = sorted(acquired_by(answer).keys() & self.available.keys())
        for partition in self.ends:
            given = [place for place in again if place[0] == partition]
            if given != sorted(place for place in self.available if place[0] == partition)[: len(given)]:
                return False
        return bool(again) or not self.available

    def progress(self, partition: int) -> tuple[int, int]:
        """Its start offset, which is that of the first record that is not finished, and how many are not."""
        known = {*self.held, *self.available}
        unfinished = [offset for index, offset in known if index == partition]
        end = self.delivered_ends.get(partition, 0)
        return min(unfinished, default=end), len(unfinished) + self.ends[partition] - end
