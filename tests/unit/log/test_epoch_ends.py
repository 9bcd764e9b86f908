"""The end of a leader epoch: scenarios 51 and 137 of the specification of logs."""

from __future__ import annotations

from tidegate.log.positions import epoch_end
from tidegate.log.state import LogState


def _state(*epochs: tuple[int, int], failover_epoch: int = 1) -> LogState:
    return LogState(
        end=20, log_start=0, local_start=0, epochs=list(epochs), failover_epoch=failover_epoch, high_watermark=20
    )


def test_log_51_the_end_of_an_epoch_is_where_the_next_begins() -> None:
    state = _state((0, 0), (2, 10))
    assert [epoch_end(state, epoch) for epoch in (0, 1, 2, 3)] == [(0, 10), (0, 10), (2, 20), (-1, -1)]


def test_log_137_epochs_before_the_first_end_where_it_begins() -> None:
    state = _state(
        (4, 7),
    )
    assert [epoch_end(state, epoch) for epoch in (-1, -2, 3)] == [(-1, -1), (-2, 7), (3, 7)]


def test_epoch_that_began_at_servers_of_other_logs_only_truncates_no_reader() -> None:
    state = _state((0, 0), (2, 10), failover_epoch=8)
    assert (state.record_epoch, state.leader_epoch, state.epoch_at(15)) == (2, 7, 2)
    ends = [epoch_end(state, epoch) for epoch in (1, 2, 4, 7, 8)]
    assert ends == [(0, 10), (2, 20), (2, 20), (7, 20), (-1, -1)]
