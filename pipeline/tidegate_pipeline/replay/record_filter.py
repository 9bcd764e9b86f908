"""The filter for the records of a topic that are replayed, parsed from command-line options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tidegate_pipeline.errors import UsageError

_RANGE: Final = re.compile(r"(?:(\d+):)?(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """`ranges` by partition (ends exclusive, None for all partitions), and times in ms; without any: all records."""

    ranges: dict[int | None, tuple[int, int]] | None = None
    since_ms: int | None = None
    until_ms: int | None = None


def parse_record_filter(ranges: str | None, since: str | None, until: str | None) -> RecordFilter:
    """`100-200` of all partitions or `0:100-200,2:0-50`; times in ISO 8601. Raises UsageError."""
    if ranges and (since or until):
        raise UsageError("--range, or --since and --until, not both")
    return RecordFilter(_ranges(ranges) if ranges else None, _time_ms(since), _time_ms(until))


def _ranges(text: str) -> dict[int | None, tuple[int, int]]:
    found: dict[int | None, tuple[int, int]] = {}
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None or int(match[2]) >= int(match[3]):
            raise UsageError(f"--range {item}: first-end or partition:first-end, the end exclusive")
        found[int(match[1]) if match[1] else None] = int(match[2]), int(match[3])
    return found


def _time_ms(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text}: not a time like 2026-01-31T18:00:00 (UTC unless it ends in +HH:MM)") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
