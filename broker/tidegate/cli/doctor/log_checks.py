"""Findings about logs: those that refuse appends, and those that lost their end in a fail-over. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from tidegate.cli.client.stray_entries import Stopped, Truncated
from tidegate.cli.doctor.finding import Finding, Severity
from tidegate.diagnosis.formatting import counted, format_timestamp

TRUNCATED_MS: Final = 7 * 86_400_000
"""A lost end is reported for a week."""
_PARTITIONS_MAX: Final = 20


def judge(stopped: Sequence[Stopped], truncated: Sequence[Truncated]) -> Iterator[Finding]:
    """All findings, of lost ends the largest first."""
    for one in stopped:
        yield _stray(one)
    recent = sorted((one for one in truncated if one.age_ms < TRUNCATED_MS), key=lambda one: one.partition.full_topic)
    topics = [
        _truncated(topic, list(some)) for topic, some in groupby(recent, key=lambda one: one.partition.full_topic)
    ]
    for _, finding in sorted(topics, key=lambda item: -item[0]):
        yield finding


def _stray(one: Stopped) -> Finding:
    return Finding(
        "log-stray-entry",
        Severity.PROBLEM,
        str(one.partition),
        f"Nothing can be produced to {one.partition}: {one.stray}.",
        (
            f"key {one.partition.keys.log}",
            "records before it can be read; produces, and reads of what follows, get KAFKA_STORAGE_ERROR",
        ),
        f"`tidegate topic repair {one.partition.topic} {one.partition.index}` copies the good entries into a new "
        "stream and says what it left out. XDEL is not enough: Redis takes no id below the last one.",
    )


def _truncated(topic: str, logs: list[Truncated]) -> tuple[int, Finding]:
    """The records that a topic lost, and the finding."""
    lost_records = sum(one.lost_records for one in logs)
    logs.sort(key=lambda one: one.partition.index)
    evidence = [
        f"partition {one.partition.index}: {counted(one.lost_records, 'record')} from offset {one.end}, "
        f"at {format_timestamp(one.at_ms)}"
        for one in logs[:_PARTITIONS_MAX]
    ]
    if len(logs) > _PARTITIONS_MAX:
        evidence.append(f"and {counted(len(logs) - _PARTITIONS_MAX, 'more partition')}")
    return lost_records, Finding(
        "log-truncated",
        Severity.WARNING,
        topic,
        f"Topic {topic} lost {counted(lost_records, 'record')} when Redis failed over or came back with older data.",
        (
            *evidence,
            "these offsets were given again, under a higher leader epoch, by which clients learn of it",
            "counted are records that a broker knew; the last loss of each partition is kept, and named for 7 days",
        ),
        "Produce them again if their source has them. docs/durability.md says which setting loses what.",
    )
