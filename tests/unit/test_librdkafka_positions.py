"""What the checkers excuse librdkafka for: only what its log says, once for each line."""

from __future__ import annotations

import pytest

from tests.support.librdkafka_positions import LibrdkafkaPositions

QUERIED_AGAIN = (
    "OFFSET [c#consumer-1] [thrd:main]: t [8]: outdated offset response: (re)starting offset query timer "
    "for offset BEGINNING (leader epoch -1)"
)
QUERY_PENDING = (
    "OFFSET [c#consumer-1] [thrd:main]: t [8]: outdated offset response: offset query timer already scheduled "
    "for offset BEGINNING (leader epoch -1)"
)
VALIDATED = (
    "VALIDATE [c#consumer-1] [thrd:main]: 127.0.0.1:9092/1: t [8]: querying broker for epoch validation "
    "of offset 40 (leader epoch 2): epoch updated from metadata"
)


def test_query_for_the_start_explains_one_return_to_it() -> None:
    positions = LibrdkafkaPositions("c")
    positions.read(QUERIED_AGAIN)

    assert not positions.moved(7, 0)
    assert not positions.moved(8, 5)
    assert positions.moved(8, 0)
    assert not positions.moved(8, 0)


def test_query_that_outlived_its_assignment_explains_a_start_and_the_move_from_there() -> None:
    positions = LibrdkafkaPositions("c")
    positions.read(QUERIED_AGAIN)

    assert not positions.started(7, 0)
    assert not positions.started(8, 5)
    assert positions.started(8, 0)
    assert positions.moved(8, 101)
    assert not positions.moved(8, 101)
    assert not positions.started(8, 0)


def test_validation_explains_its_own_position() -> None:
    positions = LibrdkafkaPositions("c")
    positions.read(VALIDATED)

    assert positions.moved(8, 40)
    assert not positions.moved(8, 0)


@pytest.mark.parametrize("line", ["", QUERY_PENDING, QUERIED_AGAIN.replace("outdated", "no")])
def test_other_lines_explain_nothing(line: str) -> None:
    positions = LibrdkafkaPositions("c")
    positions.read(line)

    assert not positions.moved(8, 0)


def test_seek_to_the_end_of_an_epoch_that_a_fetch_has_passed_is_a_move() -> None:
    positions = LibrdkafkaPositions("c")
    seek = (
        "[thrd:main]: Seek orders [3] to offset 228 (leader epoch 0) in state validate-epoch-wait (v3)",
        "[thrd:main]: Seek orders [2] to offset 228 (leader epoch 0) in state validate-epoch-wait (v3)",
    )
    positions.read(
        "[thrd:main]: orders [3]: skipping offset validation for offset 231 (leader epoch 217700000): "
        "validation is already ongoing"
    )
    for line in seek:
        positions.read(line)

    assert not positions.moved(2, 228), "a truncation, if nothing was fetched meanwhile"
    assert not positions.moved(3, 227)
    assert positions.moved(3, 228)
    assert not positions.moved(3, 228)
