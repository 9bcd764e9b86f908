"""Which tier each part of a range is read from."""

from __future__ import annotations

import pytest

from tidegate_pipeline.sources.tiers import Piece, Span, Spans, Tier, arrange


@pytest.mark.parametrize(
    ("redis", "archive", "pieces"),
    [
        (Span(0, 90), None, [Piece(Tier.REDIS, 10, 50)]),
        (Span(30, 90), Span(0, 40), [Piece(Tier.ARCHIVE, 10, 30), Piece(Tier.REDIS, 30, 50)]),
        (Span(30, 90), None, [Piece(Tier.LOST, 10, 30), Piece(Tier.REDIS, 30, 50)]),
        (Span(60, 90), None, [Piece(Tier.LOST, 10, 50)]),
        (Span(0, 20), None, [Piece(Tier.REDIS, 10, 20), Piece(Tier.LOST, 20, 50)]),
        (Span(40, 90), Span(20, 30), [Piece(Tier.LOST, 10, 20), Piece(Tier.ARCHIVE, 20, 30), Piece(Tier.LOST, 30, 40),
                                      Piece(Tier.REDIS, 40, 50)]),
        (None, None, [Piece(Tier.LOST, 10, 50)]),
    ],
)  # fmt: skip
def test_a_range_is_arranged_without_holes(redis: Span | None, archive: Span | None, pieces: list[Piece]):
    assert list(arrange(10, 50, Spans(0, redis, archive))) == pieces
