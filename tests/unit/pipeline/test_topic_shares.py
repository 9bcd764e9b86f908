"""Fair shares of a micro-batch, and segments of the archive cut to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tests.support.archive import segment
from tidegate.records.segments import Segment
from tidegate_pipeline.sources.offsets import Offsets
from tidegate_pipeline.sources.planning import share_out, walk_segments
from tidegate_pipeline.sources.tiers import Tier, TierRange
from tidegate_pipeline.sources.walking import Limits


@dataclass
class Entries:
    """A partition that is behind by entries of these sizes."""

    sizes: list[int]
    taken: int = 0

    @property
    def done(self) -> bool:
        return self.taken == len(self.sizes)

    def advance(self, share: int, at_least_one: bool) -> int:
        took = 0
        while not self.done and (took + self.sizes[self.taken] <= share or (at_least_one and took == 0)):
            took += self.sizes[self.taken]
            self.taken += 1
        return took

    @property
    def size(self) -> int:
        return sum(self.sizes[: self.taken])


def test_shares_are_equal_where_all_are_behind() -> None:
    cursors = [Entries([10] * 100) for _ in range(4)]

    share_out(cursors, 400, advance_all)

    assert [cursor.size for cursor in cursors] == [100, 100, 100, 100]


def test_unused_share_is_given_to_the_others() -> None:
    cursors = [Entries([10] * 2), Entries([10] * 100), Entries([10] * 100)]

    share_out(cursors, 300, advance_all)

    assert [cursor.size for cursor in cursors] == [20, 140, 140]


def test_one_entry_at_least_of_each_however_large() -> None:
    cursors = [Entries([1000, 1]), Entries([5] * 10), Entries([2000])]

    share_out(cursors, 1, advance_all)

    assert [cursor.taken for cursor in cursors] == [1, 1, 1]


def advance_all(cursors: Sequence[Entries], share: int, at_least_one: bool) -> list[int]:
    return [cursor.advance(share, at_least_one) for cursor in cursors]


sizes = st.lists(st.integers(1, 50), max_size=30)


@given(st.lists(sizes, max_size=6), st.integers(1, 500))
def test_shares_respect_the_limit_and_starve_no_topic(partitions: list[list[int]], limit: int) -> None:
    cursors = [Entries(list(entries)) for entries in partitions]

    share_out(cursors, limit, advance_all)

    assert all(cursor.taken >= 1 for cursor in cursors if cursor.sizes)
    firsts = sum(cursor.sizes[0] for cursor in cursors if cursor.sizes)
    assert sum(cursor.size for cursor in cursors) <= limit + firsts
    left = limit - sum(cursor.size for cursor in cursors)
    waiting = [cursor for cursor in cursors if not cursor.done]
    assert all(cursor.sizes[cursor.taken] > left // len(waiting) for cursor in waiting), "a share was left that fits"


def test_segment_is_sliced_to_a_share() -> None:
    segments = [segment(0, 100), segment(100, 200)]  # 100 bytes an offset
    tier_range = TierRange(10, 150, Tier.ARCHIVE)

    position, steps = walk_segments(segments, tier_range, Limits())
    assert position == 150
    assert [(step.first, step.end, step.size, step.records) for step in steps] == [
        (10, 100, 9000, 90),
        (100, 150, 5000, 50),
    ]

    position, steps = walk_segments(segments, tier_range, Limits(size=9500))
    assert (position, [(step.first, step.end) for step in steps]) == (105, [(10, 100), (100, 105)])

    assert walk_segments(segments, tier_range, Limits(size=10))[0] == 11, "at least one offset"
    assert walk_segments(segments, tier_range, Limits(size=10, at_least_one=False)) == (10, [])
    assert walk_segments(segments, tier_range, Limits(records=7))[0] == 17


@given(st.integers(0, 99), st.integers(1, 120), st.integers(1, 5000), st.integers(1, 60))
def test_steps_of_a_segment_cover_it_without_overlap(start: int, length: int, size: int, records: int) -> None:
    tier_range = TierRange(start, min(start + length, 200), Tier.ARCHIVE)

    position, steps = walk_segments(
        [segment(0, 100), segment(100, 200)], tier_range, Limits(grain_size=size, grain_records=records)
    )

    assert position == tier_range.end
    assert [step.first for step in steps] == [start, *(step.end for step in steps[:-1])]
    assert all(step.size <= max(size, 100) + 100 and step.records <= records + 1 for step in steps)


def test_segment_without_records_is_passed() -> None:
    hole = Segment(0, 0, 9, 0, 0, -1, "a.parquet")

    assert walk_segments([hole], TierRange(0, 10, Tier.ARCHIVE), Limits(size=5))[0] == 10


@given(st.integers(1, 60), st.integers(0, 5_000), st.integers(1, 40), st.booleans())
def test_sparse_segments_are_sliced_to_a_share(records: int, holes: int, limit: int, by_records: bool) -> None:
    """Offsets without a record are usual: markers of transactions, and in topics of format record nearly all."""
    sparse = Segment(0, 0, records + holes - 1, records, records, 0, "a.parquet")  # one byte a record
    position, taken, walks = 0, 0, 0
    while position < sparse.end_offset and taken < limit:
        left = limit - taken
        limits = Limits(records=left) if by_records else Limits(size=left)
        position, steps = walk_segments([sparse], TierRange(position, sparse.end_offset, Tier.ARCHIVE), limits)
        taken, walks = taken + sum(step.records for step in steps), walks + 1

    assert taken == min(records, limit)
    assert walks <= 2, "a walk is a round trip"


def test_offsets_are_written_in_one_order() -> None:
    places = {("b", 10): 1, ("b", 2): 2, ("a", 0): 3}
    offsets = Offsets(places, {"b": "f1", "a": "f0"}, {("b", 2): 4, ("a", 0): 0})

    assert list(offsets.to_json().items()) == [
        ("a", {"0": 3}), ("b", {"2": 2, "10": 1}), ("_epochs", {"b": {"2": 4}}), ("_ids", {"a": "f0", "b": "f1"}),
    ]  # fmt: skip
    assert list(offsets.to_json()["b"]) == ["2", "10"]
    again = Offsets.from_json(offsets.to_json())
    assert (again.next, again.ids, again.epochs) == (places, offsets.ids, {("b", 2): 4})
