"""Plans an offset reset: which offsets move, and where to, by the strategies of kafka-consumer-groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

EARLIEST: Final = -2
LATEST: Final = -1

_DURATION: Final = re.compile(
    r"(?P<sign>-?)P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)

TopicPartition = tuple[str, int]

Partitions = Mapping[str, Collection[int]]
"""Existing topics -> indexes of their partitions."""

FieldName = Callable[[str], str]
"""How a caller of `plan` names a field of `Choice`, `topic` or `all_topics`, for error messages."""


class InvalidReset(Exception):
    """The reset cannot be planned; the message is one line."""


class OffsetSource(Protocol):
    """Source of the data for a plan: Kafka brokers, or a broker's own store."""

    async def committed(self, group_id: str) -> Mapping[TopicPartition, int]:
        """The committed offsets of a group."""

    async def partitions(self) -> Partitions:
        """The existing partitions."""

    async def offsets_at(self, wanted: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Offsets at a timestamp, ms, EARLIEST or LATEST; -1 without a record at or after it."""

    def now_ms(self) -> int:
        """The time from which a duration is counted back: Redis's where the source knows it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategy of a reset: exactly one field is set."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    to_datetime: str | None = None
    by_duration: str | None = None
    offsets: Mapping[TopicPartition, int | None] | None = None
    """Partition -> new offset (None: delete the commit)."""

    def check(self, field_name: FieldName) -> None:
        """Raises InvalidReset unless exactly one strategy is given."""
        given = [
            name for name in self.__slots__ if getattr(self, name) is not None and getattr(self, name) is not False
        ]
        if len(given) != 1:
            ways = ", ".join(map(field_name, self.__slots__))
            raise InvalidReset(f"choose one of {ways}" if not given else f"only one of {ways}")


@dataclass(frozen=True, slots=True)
class Move:
    """One partition: old offset (None: no commit) and new offset (None: delete the commit).

    `metadata` is committed with the new offset.
    """

    topic: str
    partition: int
    before: int | None
    after: int | None
    note: str = ""
    metadata: str = ""

    @property
    def place(self) -> TopicPartition:
        """Topic and partition."""
        return self.topic, self.partition

    def as_row(self) -> dict[str, Any]:
        """The move as a row for display."""
        note = self.note or ("forgotten" if self.after is None else "")
        return {
            "topic": self.topic,
            "partition": self.partition,
            "before": self.before,
            "after": self.after,
            "note": note,
        }


def parse_duration(text: str, name: str) -> timedelta:
    """Parse an ISO 8601 duration of days and time, `P7D`, `PT1H30M`. Raises InvalidReset, which names `name`."""
    found = _DURATION.fullmatch(text)
    parts = (
        {name: float(value) for name, value in found.groupdict().items() if name != "sign" and value} if found else {}
    )
    if found is None or not parts:
        raise InvalidReset(f"{name} {text}: not a duration like P7D or PT1H30M")
    try:
        return timedelta(**parts) * (-1 if found["sign"] else 1)
    except OverflowError:
        raise InvalidReset(f"{name} {text}: too long") from None


def parse_datetime(text: str, name: str) -> int:
    """Parse an ISO 8601 time, UTC without an offset, as ms since 1970. Raises InvalidReset."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidReset(
            f"{name} {text}: not a time like 2026-01-31T18:00:00 (UTC unless it ends in +HH:MM)"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_topics(named: Sequence[str], topics: Partitions, field_name: FieldName) -> list[TopicPartition]:
    """Parse `topic` or `topic:0,2`. Raises InvalidReset for topics and partitions that do not exist."""
    places = []
    for text in named:
        name, colon, partitions = text.rpartition(":") if ":" in text else (text, "", "")
        if name not in topics:
            raise InvalidReset(f"{field_name('topic')} {text}: there is no topic {name}")
        if colon and not all(one.isdigit() for one in partitions.split(",")):
            raise InvalidReset(f"{field_name('topic')} {text}: not topic:0,1,2")
        chosen = [int(one) for one in partitions.split(",")] if colon else sorted(topics[name])
        if not set(chosen) <= set(topics[name]):
            raise InvalidReset(f"{field_name('topic')} {text}: {name} has partitions 0 to {len(topics[name]) - 1}")
        places += [(name, partition) for partition in chosen]
    return places


async def plan(
    source: OffsetSource,
    group_id: str,
    choice: Choice,
    named: Sequence[str],
    all_topics: bool,
    field_name: FieldName,
) -> list[Move]:
    """The moves of a reset, in order. Raises InvalidReset."""
    choice.check(field_name)
    committed = await source.committed(group_id)
    wanted = dict(choice.offsets or {})
    if not (named or all_topics or wanted):
        raise InvalidReset(f"choose {', '.join(map(field_name, ('topic', 'all_topics')))} or {field_name('offsets')}")
    topics = await source.partitions()
    places = list(wanted) if wanted else parse_topics(named, topics, field_name) if named else list(committed)
    gone = [place for place in places if place[0] not in topics or place[1] not in topics[place[0]]]
    if gone:
        others = "leave it out" if wanted else f"name the others with {field_name('topic')}"
        raise InvalidReset(f"{gone[0][0]} {gone[0][1]} does not exist: {others}")
    if not places:
        raise InvalidReset(f"group {group_id} has committed nothing: choose {field_name('topic')}")
    targets = wanted or await _targets(source, choice, places, committed, field_name)
    starts = await source.offsets_at(dict.fromkeys(places, EARLIEST))
    ends = await source.offsets_at(dict.fromkeys(places, LATEST))
    return [_move(place, committed.get(place), targets[place], starts[place], ends[place]) for place in sorted(places)]


def _move(place: TopicPartition, before: int | None, wanted: int | None, start: int, end: int) -> Move:
    """Clamp the new offset to the log, as kafka-consumer-groups does."""
    if wanted is None:
        return Move(*place, before, None)
    if wanted < start:
        return Move(*place, before, start, f"{wanted} is below the log start")
    if wanted > end:
        return Move(*place, before, end, f"{wanted} is beyond the end")
    return Move(*place, before, wanted)


async def _targets(
    source: OffsetSource,
    choice: Choice,
    places: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    field_name: FieldName,
) -> Mapping[TopicPartition, int]:
    if choice.to_offset is not None:
        return dict.fromkeys(places, choice.to_offset)
    if choice.shift_by is not None:
        missing = [place for place in places if place not in committed]
        if missing:
            raise InvalidReset(f"{field_name('shift_by')}: nothing is committed for {missing[0][0]} {missing[0][1]}")
        return {place: committed[place] + choice.shift_by for place in places}
    if choice.to_earliest:
        return await source.offsets_at(dict.fromkeys(places, EARLIEST))
    ends = await source.offsets_at(dict.fromkeys(places, LATEST))
    if choice.to_latest:
        return ends
    if choice.to_current:
        return {place: committed.get(place, ends[place]) for place in places}
    found = await source.offsets_at(dict.fromkeys(places, _timestamp(choice, field_name, source.now_ms())))
    return {place: offset if offset >= 0 else ends[place] for place, offset in found.items()}


def _timestamp(choice: Choice, field_name: FieldName, now_ms: int) -> int:
    """Ms since 1970, clamped to 0, because ListOffsets gives negative timestamps a special meaning."""
    if choice.to_datetime is not None:
        return max(parse_datetime(choice.to_datetime, field_name("to_datetime")), 0)
    assert choice.by_duration is not None
    return max(now_ms - int(parse_duration(choice.by_duration, field_name("by_duration")).total_seconds() * 1000), 0)
