"""Which tier a range is read from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_pipeline.sources.offset_ranges import OffsetRange
from tidegate_pipeline.sources.tiers import PartitionTiers, Tier, TierRange, arrange

REDIS, ARCHIVE, LOST = Tier.REDIS, Tier.ARCHIVE, Tier.LOST


@pytest.mark.parametrize(
    ("redis", "archive", "wanted", "tier_ranges"),
    [
        ((0, 100), None, (0, 100), [TierRange(0, 100, REDIS)]),
        ((50, 100), (0, 50), (0, 100), [TierRange(0, 50, ARCHIVE), TierRange(50, 100, REDIS)]),
        ((50, 100), (0, 80), (0, 100), [TierRange(0, 50, ARCHIVE), TierRange(50, 100, REDIS)]),
        ((50, 100), (0, 80), (60, 70), [TierRange(60, 70, REDIS)]),
        ((50, 100), (0, 80), (10, 20), [TierRange(10, 20, ARCHIVE)]),
        ((50, 100), (20, 40), (0, 100), [
            TierRange(0, 20, LOST), TierRange(20, 40, ARCHIVE),
            TierRange(40, 50, LOST), TierRange(50, 100, REDIS),
        ]),
        ((50, 100), None, (0, 100), [TierRange(0, 50, LOST), TierRange(50, 100, REDIS)]),
        (None, (0, 80), (10, 80), [TierRange(10, 80, ARCHIVE)]),
        (None, (0, 80), (70, 90), [TierRange(70, 80, ARCHIVE), TierRange(80, 90, LOST)]),
        (None, None, (3, 9), [TierRange(3, 9, LOST)]),
        ((100, 100), (0, 90), (0, 100), [TierRange(0, 90, ARCHIVE), TierRange(90, 100, LOST)]),
        ((0, 100), None, (7, 7), []),
    ],
)  # fmt: skip
def test_range_by_tiers(
    redis: tuple[int, int] | None,
    archive: tuple[int, int] | None,
    wanted: tuple[int, int],
    tier_ranges: list[TierRange],
) -> None:
    tiers = PartitionTiers(0, OffsetRange(*redis) if redis else None, OffsetRange(*archive) if archive else None)

    assert list(arrange(*wanted, tiers)) == tier_ranges


ranges_of_tiers = st.none() | st.tuples(st.integers(0, 30), st.integers(0, 30)).map(
    lambda ends: OffsetRange(*sorted(ends))
)


@given(ranges_of_tiers, ranges_of_tiers, st.integers(0, 40), st.integers(0, 40))
def test_tier_ranges_cover_a_range_once_and_match_their_place(
    redis: OffsetRange | None, archive: OffsetRange | None, start: int, end: int
) -> None:
    def holds(held: OffsetRange | None, offset: int) -> bool:
        return held is not None and held.start <= offset < held.end

    tier_ranges = list(arrange(start, end, PartitionTiers(0, redis, archive)))

    reported = [
        (offset, tier_range.tier) for tier_range in tier_ranges for offset in range(tier_range.start, tier_range.end)
    ]
    assert [offset for offset, _ in reported] == list(range(start, end))
    assert all(tier_range.start < tier_range.end for tier_range in tier_ranges)
    for offset, tier in reported:
        expected = REDIS if holds(redis, offset) else ARCHIVE if holds(archive, offset) else LOST
        assert tier is expected


@pytest.mark.parametrize(
    ("redis", "archive", "start", "end"),
    [
        (OffsetRange(5, 9), None, 5, 9),
        (OffsetRange(5, 9), OffsetRange(0, 5), 0, 9),
        (OffsetRange(5, 9), OffsetRange(0, 7), 0, 9),
        (OffsetRange(5, 9), OffsetRange(0, 4), 5, 9),
        (OffsetRange(5, 9), OffsetRange(6, 8), 5, 9),
        (None, OffsetRange(2, 4), 2, 4),
        (None, None, 0, 0),
    ],
)
def test_earliest_is_where_the_archive_leads_up_to_redis(
    redis: OffsetRange | None, archive: OffsetRange | None, start: int, end: int
) -> None:
    tiers = PartitionTiers(0, redis, archive)

    assert (tiers.start, tiers.end) == (start, end)


def test_truncated_log_is_detected_by_its_end_and_by_later_epochs() -> None:
    epochs = ((0, 0), (3, 40), (5, 60))
    tiers = PartitionTiers(0, OffsetRange(0, 100), None, epochs, log_end=100)

    assert [tiers.epoch_before(offset) for offset in (0, 1, 40, 41, 60, 61, 100)] == [0, 0, 0, 3, 3, 5, 5]
    assert tiers.truncated_to(101, 5) == 100
    assert tiers.truncated_to(100, 5) is None
    assert tiers.truncated_to(70, 3) == 60
    assert tiers.truncated_to(60, 3) is None
    assert tiers.truncated_to(70, 0) == 40
