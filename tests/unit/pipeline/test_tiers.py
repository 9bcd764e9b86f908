"""Which tier each part of a range is read from."""

from __future__ import annotations

import pytest

from tidegate_pipeline.sources.offset_ranges import OffsetRange
from tidegate_pipeline.sources.tiers import PartitionTiers, Tier, TierRange, arrange


@pytest.mark.parametrize(
    ("redis", "archive", "tier_ranges"),
    [
        (OffsetRange(0, 90), None, [TierRange(10, 50, Tier.REDIS)]),
        (OffsetRange(30, 90), OffsetRange(0, 40), [TierRange(10, 30, Tier.ARCHIVE), TierRange(30, 50, Tier.REDIS)]),
        (OffsetRange(30, 90), None, [TierRange(10, 30, Tier.LOST), TierRange(30, 50, Tier.REDIS)]),
        (OffsetRange(60, 90), None, [TierRange(10, 50, Tier.LOST)]),
        (OffsetRange(0, 20), None, [TierRange(10, 20, Tier.REDIS), TierRange(20, 50, Tier.LOST)]),
        (OffsetRange(40, 90), OffsetRange(20, 30), [
            TierRange(10, 20, Tier.LOST), TierRange(20, 30, Tier.ARCHIVE),
            TierRange(30, 40, Tier.LOST), TierRange(40, 50, Tier.REDIS),
        ]),
        (None, None, [TierRange(10, 50, Tier.LOST)]),
    ],
)  # fmt: skip
def test_range_is_arranged_without_holes(
    redis: OffsetRange | None, archive: OffsetRange | None, tier_ranges: list[TierRange]
):
    assert list(arrange(10, 50, PartitionTiers(0, redis, archive))) == tier_ranges
