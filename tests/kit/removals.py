"""When coordinators removed members: by their events, whose times are those of Redis's clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.kit.history import FOREVER, Removed

ORG_PREFIX: Final = "default/"
KINDS: Final = ("member_expired", "member_removed", "member_evicted")
"""Not `member_left`: who leaves has noted before that it gave its partitions up."""
TAKES_EFFECT_NS: Final = 1_500_000_000
"""A process reads its stepped clock anew each second."""


@dataclass(frozen=True, slots=True)
class ClockStep:
    """Redis's clock was stepped: when, by the clock of histories, and by how much (ns)."""

    at: int
    step: int


def removals(
    events: Iterable[Mapping[str, str]], to_monotonic_ns: int, steps: Sequence[ClockStep] = ()
) -> Iterator[Removed]:
    """Who was removed. Events of a group are in their order; `to_monotonic_ns` is what the true clock lacks."""
    times: dict[str, int] = {}
    for event in events:
        group = event["group"]
        shown = int(event["time"]) * 1_000_000 + to_monotonic_ns
        times[group] = _true_time(shown, times.get(group, 0), steps)
        if event["kind"] in KINDS:
            yield Removed(times[group], group.removeprefix(ORG_PREFIX), event["member"])


def _true_time(shown: int, after: int, steps: Sequence[ClockStep]) -> int:
    """The first time after another one at which a stepped clock showed this; that other one where there is none."""
    since, offset = 0, 0
    for step in (*steps, ClockStep(FOREVER, 0)):
        if max(since, after) <= shown - offset <= step.at + TAKES_EFFECT_NS:
            return shown - offset
        since, offset = step.at, offset + step.step
    return after
