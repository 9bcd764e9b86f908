"""Errors for offsets that are no longer readable."""

from __future__ import annotations

from tidegate_pipeline.errors import DataLoss
from tidegate_pipeline.sources.tiers import DELETED, PartitionTiers

_ADVICE = (
    "To continue without them, set failOnDataLoss=false: the gap is noted in quarantine/gaps of the archive. "
    "To lose nothing the next time, let the archive job run ahead of retention, or keep more"
)


def lost(topic: str, partition: int, wanted: int, end: int, tiers: PartitionTiers) -> DataLoss:
    """Offsets `wanted` to `end` were trimmed, or deleted with their topic, before they were read."""
    if tiers is DELETED:
        return deleted(topic, partition, wanted, end)
    return DataLoss(
        f"topic {topic} partition {partition}: offset {wanted} is wanted and is gone, the log starts at "
        f"{tiers.log_start}: {end - wanted} offsets are lost, the next that can be read is {end}. {_ADVICE}"
    )


def deleted(topic: str, partition: int, wanted: int, end: int) -> DataLoss:
    """The topic was deleted before offsets `wanted` to `end` were read; -1: nobody knows where it ended."""
    what = f"{end - wanted} offsets are lost, {wanted} to {end - 1}" if end >= 0 else "where it ended is not known"
    return DataLoss(
        f"topic {topic} partition {partition} was deleted, and was read up to offset {wanted}: {what}. "
        "To continue without them, set failOnDataLoss=false: the gap is noted in quarantine/gaps of the archive"
    )


def moved_back(topic: str, partition: int, wanted: int, end: int) -> DataLoss:
    """The log ends below what was read already. No option lets a query continue: offsets would mean other records."""
    return DataLoss(
        f"topic {topic} partition {partition}: offset {wanted} is wanted, but the log ends at {end}: it was truncated "
        f"by {wanted - end} offsets, as after a fail-over that lost writes, or a restore of an old copy. "
        "Find out what was lost, then start the query with a new checkpoint and startingOffsets"
    )


def made_again(topic: str, before: str, now: str) -> DataLoss:
    """The topic is another one under the same name."""
    return DataLoss(
        f"topic {topic} was deleted and made again (its id was {before}, now {now}): what was not read of the one "
        "before is lost, and offsets start again. To continue with the new topic from its start, set "
        "failOnDataLoss=false; else start the query with a new checkpoint"
    )
