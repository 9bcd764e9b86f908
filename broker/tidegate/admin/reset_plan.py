"""Plans an offset reset: which offsets move, and where to, by the strategies of kafka-consumer-groups."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

from tidegate.admin.failures import CommandFailed
from tidegate.admin.group_requests import Place
from tidegate.admin.kafka_client import EARLIEST, LATEST, Topic

_DURATION: Final = re.compile(
    r"(?P<sign>-?)P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)

Spell = Callable[[str], str]
"""Formats the name of a `Choice` field for an error message."""


def as_option(name: str) -> str:
    """The field as a command-line option."""
    return f"--{name.replace('_', '-')}"


class OffsetSource(Protocol):
    """Source of the data for a plan: Kafka brokers, or a broker's own store."""

    async def committed(self, group_id: str) -> dict[Place, int]:
        """The committed offsets of a group."""

    async def topics(self) -> dict[str, Topic]:
        """The existing topics."""

    async def offsets_at(self, wanted: Mapping[Place, int], topics: Mapping[str, Topic]) -> dict[Place, int]:
        """Offsets at a timestamp, ms, EARLIEST or LATEST; -1 without a record at or after it."""


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
    from_file: Path | None = None
    offsets: Mapping[Place, int | None] | None = None
    """The same content as a file's, for callers without files."""

    def check(self, spell: Spell = as_option) -> None:
        """Raises CommandFailed unless exactly one strategy is given."""
        given = [
            name for name in self.__slots__ if getattr(self, name) is not None and getattr(self, name) is not False
        ]
        if len(given) != 1:
            ways = ", ".join(spell(name) for name in self.__slots__ if name != "offsets")
            raise CommandFailed(f"choose one of {ways}" if not given else f"only one of {ways}")


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
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition


def parse_duration(text: str, spell: Spell = as_option) -> timedelta:
    """Parse an ISO 8601 duration of days and time, `P7D`, `PT1H30M`. Raises CommandFailed."""
    found = _DURATION.fullmatch(text)
    parts = (
        {name: float(value) for name, value in found.groupdict().items() if name != "sign" and value} if found else {}
    )
    if found is None or not parts:
        raise CommandFailed(f"{spell('by_duration')} {text}: not a duration like P7D or PT1H30M")
    try:
        return timedelta(**parts) * (-1 if found["sign"] else 1)
    except OverflowError:
        raise CommandFailed(f"{spell('by_duration')} {text}: too long") from None


def parse_datetime(text: str, spell: Spell = as_option) -> int:
    """Parse an ISO 8601 time, UTC without an offset, as ms since 1970. Raises CommandFailed."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(
            f"{spell('to_datetime')} {text}: not a time like 2026-01-31T18:00:00 (UTC unless it ends in +HH:MM)"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_file(path: Path, group_id: str) -> dict[Place, int | None]:
    """Parse lines `topic,partition,offset` or `group,topic,partition,offset`; `-` deletes. Raises CommandFailed."""
    wanted: dict[Place, int | None] = {}
    number = 1
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            for number, row in enumerate(csv.reader(lines), 1):
                if not row or (number == 1 and row[-1].strip() == "offset"):
                    continue
                if len(row) == 4 and row[0] == group_id:
                    row = row[1:]
                topic, partition, offset = row
                wanted[topic, int(partition)] = None if offset.strip() == "-" else int(offset)
    except OSError as error:
        raise CommandFailed(f"--from-file {path}: {error.strerror}") from None
    except ValueError:
        raise CommandFailed(f"--from-file {path}, line {number}: not topic,partition,offset of this group") from None
    return wanted


def parse_topics(named: Sequence[str], topics: Mapping[str, Topic], spell: Spell = as_option) -> list[Place]:
    """Parse `topic` or `topic:0,2`. Raises CommandFailed for topics and partitions that do not exist."""
    places = []
    for text in named:
        name, colon, partitions = text.rpartition(":") if ":" in text else (text, "", "")
        if name not in topics:
            raise CommandFailed(f"{spell('topic')} {text}: there is no topic {name}")
        leaders = topics[name].leaders
        if colon and not all(one.isdigit() for one in partitions.split(",")):
            raise CommandFailed(f"{spell('topic')} {text}: not topic:0,1,2")
        chosen = [int(one) for one in partitions.split(",")] if colon else sorted(leaders)
        if not set(chosen) <= set(leaders):
            raise CommandFailed(f"{spell('topic')} {text}: {name} has partitions 0 to {len(leaders) - 1}")
        places += [(name, partition) for partition in chosen]
    return places


async def plan(
    source: OffsetSource,
    group_id: str,
    choice: Choice,
    named: Sequence[str],
    all_topics: bool,
    spell: Spell = as_option,
) -> list[Move]:
    """The moves of a reset, in order. Raises CommandFailed."""
    choice.check(spell)
    committed = await source.committed(group_id)
    if choice.from_file is not None and (named or all_topics):
        raise CommandFailed("--from-file names its partitions itself: leave --topic and --all-topics out")
    wanted = dict(choice.offsets or {})
    if choice.from_file is not None:
        wanted = parse_file(choice.from_file, group_id)
    if choice.from_file is not None and not wanted:
        raise CommandFailed(f"--from-file {choice.from_file}: nothing is in it")
    if not (named or all_topics or wanted):
        raise CommandFailed(f"choose {', '.join(map(spell, ('topic', 'all_topics')))} or {spell('from_file')}")
    topics = await source.topics()
    places = list(wanted) if wanted else parse_topics(named, topics, spell) if named else list(committed)
    gone = [place for place in places if place[0] not in topics or place[1] not in topics[place[0]].leaders]
    if gone:
        others = "take it out of the file" if wanted else f"name the others with {spell('topic')}"
        raise CommandFailed(f"{gone[0][0]} {gone[0][1]} does not exist: {others}")
    if not places:
        raise CommandFailed(f"group {group_id} has committed nothing: choose {spell('topic')}")
    targets = wanted or await _targets(source, choice, places, committed, topics, spell)
    starts = await source.offsets_at(dict.fromkeys(places, EARLIEST), topics)
    ends = await source.offsets_at(dict.fromkeys(places, LATEST), topics)
    return [_move(place, committed.get(place), targets[place], starts[place], ends[place]) for place in sorted(places)]


def _move(place: Place, before: int | None, wanted: int | None, start: int, end: int) -> Move:
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
    places: Sequence[Place],
    committed: Mapping[Place, int],
    topics: Mapping[str, Topic],
    spell: Spell,
) -> Mapping[Place, int]:
    if choice.to_offset is not None:
        return dict.fromkeys(places, choice.to_offset)
    if choice.shift_by is not None:
        missing = [place for place in places if place not in committed]
        if missing:
            raise CommandFailed(f"{spell('shift_by')}: nothing is committed for {missing[0][0]} {missing[0][1]}")
        return {place: committed[place] + choice.shift_by for place in places}
    if choice.to_earliest:
        return await source.offsets_at(dict.fromkeys(places, EARLIEST), topics)
    ends = await source.offsets_at(dict.fromkeys(places, LATEST), topics)
    if choice.to_latest:
        return ends
    if choice.to_current:
        return {place: committed.get(place, ends[place]) for place in places}
    found = await source.offsets_at(dict.fromkeys(places, _timestamp(choice, spell)), topics)
    return {place: offset if offset >= 0 else ends[place] for place, offset in found.items()}


def _timestamp(choice: Choice, spell: Spell = as_option) -> int:
    """Ms since 1970, clamped to 0, because ListOffsets gives negative timestamps a special meaning."""
    if choice.to_datetime is not None:
        return max(parse_datetime(choice.to_datetime, spell), 0)
    assert choice.by_duration is not None
    return max(int((time.time() - parse_duration(choice.by_duration, spell).total_seconds()) * 1000), 0)
