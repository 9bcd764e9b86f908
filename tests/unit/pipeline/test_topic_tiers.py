"""Which tier a range is read from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate_pipeline.sources.tiers import Piece, Span, Spans, Tier, arrange

REDIS, ARCHIVE, LOST = Tier.REDIS, Tier.ARCHIVE, Tier.LOST


@pytest.mark.parametrize(
    ("redis", "archive", "wanted", "pieces"),
    [
        ((0, 100), None, (0, 100), [(REDIS, 0, 100)]),
        ((50, 100), (0, 50), (0, 100), [(ARCHIVE, 0, 50), (REDIS, 50, 100)]),
        ((50, 100), (0, 80), (0, 100), [(ARCHIVE, 0, 50), (REDIS, 50, 100)]),
        ((50, 100), (0, 80), (60, 70), [(REDIS, 60, 70)]),
        ((50, 100), (0, 80), (10, 20), [(ARCHIVE, 10, 20)]),
        ((50, 100), (20, 40), (0, 100), [(LOST, 0, 20), (ARCHIVE, 20, 40), (LOST, 40, 50), (REDIS, 50, 100)]),
        ((50, 100), None, (0, 100), [(LOST, 0, 50), (REDIS, 50, 100)]),
        (None, (0, 80), (10, 80), [(ARCHIVE, 10, 80)]),
        (None, (0, 80), (70, 90), [(ARCHIVE, 70, 80), (LOST, 80, 90)]),
        (None, None, (3, 9), [(LOST, 3, 9)]),
        ((100, 100), (0, 90), (0, 100), [(ARCHIVE, 0, 90), (LOST, 90, 100)]),
        ((0, 100), None, (7, 7), []),
    ],
)  # fmt: skip
def test_a_range_by_tiers(
    redis: tuple[int, int] | None, archive: tuple[int, int] | None, wanted: tuple[int, int], pieces: list[Piece]
) -> None:
    spans = Spans(0, Span(*redis) if redis else None, Span(*archive) if archive else None)

    assert list(arrange(*wanted, spans)) == pieces


spans_of_tiers = st.none() | st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: Span(*sorted(ends)))


@given(spans_of_tiers, spans_of_tiers, st.integers(0, 40), st.integers(0, 40))
def test_pieces_cover_a_range_once_and_are_where_they_are_said_to_be(
    redis: Span | None, archive: Span | None, start: int, end: int
) -> None:
    def holds(span: Span | None, offset: int) -> bool:
        return span is not None and span.start <= offset < span.end

    pieces = list(arrange(start, end, Spans(0, redis, archive)))

    reported = [(offset, piece.tier) for piece in pieces for offset in range(piece.start, piece.end)]
    assert [offset for offset, _ in reported] == list(range(start, end))
    assert all(piece.start < piece.end for piece in pieces)
    for offset, tier in reported:
        expected = REDIS if holds(redis, offset) else ARCHIVE if holds(archive, offset) else LOST
        assert tier is expected


@pytest.mark.parametrize(
    ("redis", "archive", "start", "end"),
    [
        (Span(5, 9), None, 5, 9),
        (Span(5, 9), Span(0, 5), 0, 9),
        (Span(5, 9), Span(0, 7), 0, 9),
        (Span(5, 9), Span(0, 4), 5, 9),
        (Span(5, 9), Span(6, 8), 5, 9),
        (None, Span(2, 4), 2, 4),
        (None, None, 0, 0),
    ],
)
def test_earliest_is_where_the_archive_leads_up_to_redis(
    redis: Span | None, archive: Span | None, start: int, end: int
) -> None:
    spans = Spans(0, redis, archive)

    assert (spans.start, spans.end) == (start, end)


def test_a_log_that_was_cut_back_is_known_by_its_end_and_by_later_epochs() -> None:
    epochs = ((0, 0), (3, 40), (5, 60))
    spans = Spans(0, Span(0, 100), None, epochs)

    assert [spans.epoch_before(offset) for offset in (0, 1, 40, 41, 60, 61, 100)] == [0, 0, 0, 3, 3, 5, 5]
    assert spans.cut_back(101, 5) == 100
    assert spans.cut_back(100, 5) is None
    assert spans.cut_back(70, 3) == 60
    assert spans.cut_back(60, 3) is None
    assert spans.cut_back(70, 0) == 40
