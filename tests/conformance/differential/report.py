"""What a run compared and found, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.differential.allowed import RULES
from tests.conformance.differential.observed import Difference, Tally


@dataclass(slots=True)
class Outcome:
    """How one conversation went, with its last try."""

    name: str
    seed: int | None
    found: list[Difference] = field(default_factory=list)
    """Real ones: they repeated in a fresh group."""
    transcript: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(slots=True)
class Report:
    """Sums over a run."""

    tally: Tally = field(default_factory=Tally)
    outcomes: list[Outcome] = field(default_factory=list)
    allowed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Difference] = field(default_factory=dict)
    once: list[Difference] = field(default_factory=list)
    """Seen, and not again when the conversation was repeated."""
    ended_early: int = 0
    skipped: str = ""

    def never(self) -> list[str]:
        """Keys of allowed differences that did not show."""
        return [rule.key for rule in RULES if rule.key not in self.allowed]

    def lines(self, complete: bool) -> list[str]:
        """The report. `complete`: every scripted conversation ran, so what is allowed should have shown."""
        if self.skipped:
            return [f"skipped: {self.skipped}"]
        seeds = [outcome.seed for outcome in self.outcomes if outcome.seed is not None]
        failed = [outcome for outcome in self.outcomes if outcome.found or outcome.error]
        return [
            f"{len(self.outcomes)} conversations ({len(self.outcomes) - len(seeds)} by hand, {len(seeds)} random"
            f"{_span(seeds)}), {self.tally.steps} steps, {sum(self.tally.answers.values())} answers of "
            f"{len(self.tally.answers)} API versions, {self.tally.fields} fields, "
            f"{self.tally.parked} times parked at both, {len(self.tally.cases)} cases of state, API and answer",
            f"{len(failed)} conversations with differences, {len(self.once)} differences that did not repeat",
            *(f"  DIFFERENT {difference}" for outcome in failed for difference in outcome.found),
            *(f"  ERROR {outcome.name}: {outcome.error.splitlines()[-1]}" for outcome in failed if outcome.error),
            *(f"  once: {difference}" for difference in self.once),
            f"allowed differences, {self.ended_early} conversations ended by one:",
            *(f"  {self.allowed[rule.key]:6} {rule.key}: {rule.reason}" for rule in RULES if rule.key in self.allowed),
            *(f"  never  {key}" for key in self.never() if complete),
        ]

    def data(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "conversations": [
                {
                    "name": outcome.name,
                    "seed": outcome.seed,
                    "differences": [str(difference) for difference in outcome.found],
                    "error": outcome.error,
                }
                for outcome in self.outcomes
            ],
            "steps": self.tally.steps,
            "answers": dict(sorted(self.tally.answers.items())),
            "fields": self.tally.fields,
            "parked": self.tally.parked,
            "cases": sorted(" ".join(case) for case in self.tally.cases),
            "ended_early": self.ended_early,
            "not_repeated": [str(difference) for difference in self.once],
            "allowed": {
                rule.key: {
                    "count": self.allowed[rule.key],
                    "reason": rule.reason,
                    "example": str(self.examples.get(rule.key, "")),
                }
                for rule in RULES
            },
            "skipped": self.skipped,
        }


def _span(seeds: Sequence[int]) -> str:
    return f", seeds {min(seeds)}-{max(seeds)}" if seeds else ""
