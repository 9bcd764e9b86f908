"""Rebalance storms of one group: when generations follow each other too fast, since when, and because of whom."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from tidegate_pipeline.history.group_events import GroupEvent

KINDS: Final = ("rebalance_started", "member_expired", "member_replaced", "member_fenced")
"""The events that it is computed from."""

SCHEMA: Final = (
    "incident string, change string, opened_ms long, closed_ms long, first_ms long, last_ms long, generations int, "
    "most_in_window int, patterns map<string,int>, "
    "culprits array<struct<member:string,pattern:string,generations:int,events:int>>"
)

RECENT_MAX: Final = 1_000
"""Events of a window that are remembered; of a storm of more the newest."""
CULPRITS_MAX: Final = 10

_PATTERNS: Final = {
    "session_timed_out": "session_timeout",
    "static_member_restarted": "static_flapping",
    "did_not_sync": "never_syncs",
    "did_not_rejoin": "slow_poll",
    "member_replaced": "static_flapping",
    "member_fenced": "static_flapping",
}
_PLAIN: Final = frozenset({"member_joined", "member_left", "member_removed"})
"""Causes that go with another one: who times out joins again."""
_POLL_TIMEOUT: Final = ("poll timeout", "max.poll.interval", "maximum poll interval")
"""The reason that clients send when they leave because of max.poll.interval.ms."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One event: of whom, after which pattern, and whether it began a generation."""

    time_ms: int
    who: str
    pattern: str
    began: bool


@dataclass(slots=True)
class Incident:
    """An open storm."""

    opened_ms: int
    first_ms: int
    last_ms: int
    generations: int = 0
    most_in_window: int = 0
    blame: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Who -> pattern -> how many generations, how many events."""

    def add(self, one: Disturbance) -> None:
        """One event more."""
        counts = self.blame.setdefault(one.who, {}).setdefault(one.pattern, [0, 0])
        counts[0] += one.began
        counts[1] += 1
        if one.began:
            self.generations += 1
            self.first_ms, self.last_ms = min(self.first_ms, one.time_ms), max(self.last_ms, one.time_ms)


class Storms:
    """What is remembered of a group between its events. `text` is what `text` gave before.

    An incident opens with the `threshold`th generation in `window_ms`, and closes when none has begun for as long.
    """

    def __init__(self, window_ms: int, threshold: int, text: str | None = None) -> None:
        self._window_ms, self._threshold = window_ms, threshold
        known = json.loads(text) if text else {}
        self._recent = [Disturbance(**one) for one in known.get("recent", ())]
        self._incident = Incident(**known["incident"]) if known.get("incident") else None

    def text(self) -> str | None:
        """All of it; None where there is nothing."""
        if not self._recent and self._incident is None:
            return None
        return json.dumps(
            {"recent": list(map(asdict, self._recent)), "incident": self._incident and asdict(self._incident)}
        )

    @property
    def due_ms(self) -> int | None:
        """When time alone changes something."""
        if self._incident is not None:
            return self._incident.last_ms + self._window_ms
        return self._recent[-1].time_ms + self._window_ms if self._recent else None

    def see(self, events: Iterable[GroupEvent]) -> Iterator[tuple[object, ...]]:
        """The rows of what these events change; one that is late counts where it belongs."""
        for event in events:
            if event.kind in KINDS:
                one = _disturbance(event)
                yield from self.pass_time(one.time_ms)
                yield from self._add(one)

    def pass_time(self, time_ms: int) -> Iterator[tuple[object, ...]]:
        """Nothing that is not known yet happened before `time_ms`."""
        incident = self._incident
        if incident is not None and time_ms >= incident.last_ms + self._window_ms:
            self._incident = None
            yield _row(incident, "closed", incident.last_ms + self._window_ms)
        if self._incident is None:
            self._recent = [one for one in self._recent if one.time_ms > time_ms - self._window_ms]

    def _add(self, one: Disturbance) -> Iterator[tuple[object, ...]]:
        self._recent = sorted([*self._recent, one], key=lambda known: known.time_ms)[-RECENT_MAX:]
        newest_ms = self._recent[-1].time_ms
        self._recent = [known for known in self._recent if known.time_ms > newest_ms - self._window_ms]
        most, when_ms = self._most()
        if self._incident is not None:
            self._incident.add(one)
            self._incident.most_in_window = max(self._incident.most_in_window, most)
        elif most >= self._threshold:
            incident = self._incident = Incident(when_ms, one.time_ms, one.time_ms, most_in_window=most)
            for known in self._recent:
                incident.add(known)
            yield _row(incident, "opened", None)

    def _most(self) -> tuple[int, int]:
        """The most generations in a window that ends with one of them, and when a window first has so many."""
        times = [one.time_ms for one in self._recent if one.began]
        best, first = (0, 0), 0
        for last, time_ms in enumerate(times):
            while times[first] <= time_ms - self._window_ms:
                first += 1
            if last - first + 1 > best[0]:
                best = last - first + 1, time_ms
        return best


def _disturbance(event: GroupEvent) -> Disturbance:
    cause = event.cause if event.kind in ("rebalance_started", "member_expired") else event.kind
    reason = event.reason.lower()
    slow = cause == "member_left" and any(words in reason for words in _POLL_TIMEOUT)
    pattern = "slow_poll" if slow else _PATTERNS.get(cause, cause or "unknown")
    return Disturbance(event.time_ms, event.who, pattern, event.kind == "rebalance_started")


def _row(incident: Incident, change: str, closed_ms: int | None) -> tuple[object, ...]:
    patterns: Counter[str] = Counter()
    for of_one in incident.blame.values():
        patterns.update({pattern: events for pattern, (_, events) in of_one.items()})
    return (
        str(incident.opened_ms), change, incident.opened_ms, closed_ms, incident.first_ms, incident.last_ms,
        incident.generations, incident.most_in_window, dict(patterns), culprits(incident),
    )  # fmt: skip


def culprits(incident: Incident) -> Sequence[tuple[str, str, int, int]]:
    """The members that caused most of it: the fewest that began half of its generations; each with its pattern."""
    totals = {
        who: (sum(began for began, _ in of_one.values()), sum(events for _, events in of_one.values()))
        for who, of_one in incident.blame.items()
        if who
    }
    found: list[tuple[str, str, int, int]] = []
    for who, (began, events) in sorted(totals.items(), key=lambda item: (-item[1][0], -item[1][1], item[0])):
        if 2 * sum(one[2] for one in found) >= incident.generations or len(found) == CULPRITS_MAX:
            break
        found.append((who, _pattern(incident.blame[who]), began, events))
    return found


def _pattern(of_one: dict[str, list[int]]) -> str:
    """The most specific recurring pattern; joins and leaves only if there is no other."""
    return max(of_one, key=lambda pattern: (pattern not in _PLAIN, of_one[pattern][1], pattern))
