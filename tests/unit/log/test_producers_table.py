"""Sequences of idempotent producers (KIP-98): every row of the table that judges them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.log.producers_table import (
    AppendedBatch,
    ProducerState,
    Verdict,
    advance,
    end_transaction,
    find_duplicate,
    from_text,
    judge,
    to_text,
)

LAST = 2**31 - 1


def after(*sequences: tuple[int, int], epoch: int = 3) -> ProducerState:
    """The state after batches of (base sequence, last offset delta), each at ten times its place."""
    state = None
    for place, (sequence, delta) in enumerate(sequences):
        state = advance(state, epoch, sequence, delta, 10 * place, 1_000 + place, 5)
    assert state is not None
    return state


ONLY_A_MARKER = end_transaction(None, 3, 9_000, 0, 9_000)


@pytest.mark.parametrize(
    ("state", "epoch", "sequence", "delta", "verdict"),
    [
        (None, 0, 0, 4, Verdict.ACCEPT),
        (None, 0, 7, 4, Verdict.UNKNOWN_GAP),
        (after((0, 4)), 3, 5, 0, Verdict.ACCEPT),
        (after((0, 4)), 3, 0, 4, Verdict.DUPLICATE),
        (after((0, 4)), 3, 0, 3, Verdict.BEHIND),  # the same start, another length
        (after((0, 4)), 3, 6, 0, Verdict.GAP),
        (after((0, 4)), 2, 5, 0, Verdict.FENCED),
        (after((0, 4)), 4, 0, 0, Verdict.ACCEPT),
        (after((0, 4)), 4, 5, 0, Verdict.GAP),
        (after((LAST - 1, 1)), 3, 0, 0, Verdict.ACCEPT),  # after 2147483647 comes 0
        (after((LAST, 1)), 3, 1, 0, Verdict.ACCEPT),  # a batch that wraps ends at 0
        (after((LAST, 1)), 3, LAST, 1, Verdict.DUPLICATE),
        (after((LAST - 1, 1)), 3, 3, 0, Verdict.GAP),
        (after((0, 0)), 3, LAST, 0, Verdict.BEHIND),
        (after((-1, 0)), 3, 0, 0, Verdict.ACCEPT),
        (ONLY_A_MARKER, 3, 0, 4, Verdict.ACCEPT),
        (ONLY_A_MARKER, 3, 7, 4, Verdict.GAP),
        (ONLY_A_MARKER, 4, 7, 4, Verdict.GAP),
        (end_transaction(after((0, 4)), 3, 9_000, 0, 9_000), 3, 5, 0, Verdict.ACCEPT),
        (end_transaction(after((0, 4)), 4, 9_000, 0, 9_000), 4, 5, 0, Verdict.GAP),
    ],
)
def test_batch_is_judged(state: ProducerState | None, epoch: int, sequence: int, delta: int, verdict: Verdict) -> None:
    assert judge(state, epoch, sequence, delta) is verdict


def test_last_five_batches_are_known_and_no_more() -> None:
    state = after(*((i, 0) for i in range(7)))

    assert [batch.base_sequence for batch in state.batches] == [2, 3, 4, 5, 6]
    assert find_duplicate(state, 3, 2, 0) == AppendedBatch(2, 2, 20, 1_002)
    assert judge(state, 3, 1, 0) is Verdict.BEHIND


def test_last_timestamp_is_of_the_batch_behind_a_marker() -> None:
    marked = end_transaction(after((0, 0)), 3, 9_000, 0, 9_000)
    state = advance(marked, 3, 1, 0, 20, 2_000, 9_001, transactional=True)

    assert (marked.last_timestamp, state.last_timestamp) == (9_000, 2_000)


def test_newer_epoch_clears_the_window() -> None:
    state = advance(after((0, 4)), 4, 0, 0, 50, 2_000, 6)

    assert state == ProducerState(4, (AppendedBatch(0, 0, 50, 2_000),), 6)
    assert judge(state, 3, 0, 4) is Verdict.FENCED


@given(
    st.lists(st.tuples(st.integers(0, LAST), st.integers(0, 1_000)), min_size=1, max_size=8),
    st.integers(0, 32_767),
)
def test_states_are_restored_from_the_snapshot(batches: list[tuple[int, int]], epoch: int) -> None:
    state = after(*batches, epoch=epoch)

    assert from_text(to_text(state)) == state
