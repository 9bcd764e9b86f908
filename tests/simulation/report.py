"""The options and the report of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate: the same plan is the same run."""

    seed: int = 1
    groups: int = 200
    hours: float = 0.25
    """Virtual time; group-hours are this times the groups."""
    partitions: int = 24
    """Of the topic that producers and readers use; partition-hours are the hours times these."""
    epoch_groups: int = 0
    """Groups of KIP-848 beside the classic ones."""
    streams_groups: int = 0
    share_groups: int = 0
    gentle_s: float = 420.0
    """How long gentle faults continue before the rough ones and the calm."""


@dataclass(slots=True)
class Report:
    """What a run did."""

    plan: Plan
    virtual_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of the simulating process; the server has its own."""
    faults: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    trace: str = ""
    """Hash of everything that went to the server and came back: two runs that agree did the same."""
    violation: str = ""

    @property
    def group_hours(self) -> float:
        """Virtual hours of all groups together."""
        return self.plan.groups * self.virtual_s / 3600

    @property
    def partition_hours(self) -> float:
        """Virtual hours of all partitions together."""
        return self.plan.partitions * self.virtual_s / 3600

    def line(self) -> str:
        """One line for people."""
        rate = self.group_hours / self.wall_s * 60
        outcome = "VIOLATION" if self.violation else "ok"
        return (
            f"seed {self.plan.seed}: {outcome}; {self.plan.groups} groups, {self.virtual_s / 3600:.3f} h, "
            f"{self.group_hours:.1f} group-hours in {self.wall_s:.1f} s ({rate:.0f} a minute), "
            f"{self.cpu_s:.1f} s of CPU, "
            f"{sum(self.faults.values())} faults, trace {self.trace}"
        )

    def command(self, plant: str | None) -> str:
        """How to see it again."""
        plan = self.plan
        planted = f" --plant {plant}" if plant else ""
        groups = (
            f"--groups {plan.groups} --epoch-groups {plan.epoch_groups} --streams-groups {plan.streams_groups} "
            f"--share-groups {plan.share_groups}"
        )
        size = f"{groups} --hours {plan.hours} --partitions {plan.partitions}"
        return f'replay: make simulate ARGS="--seed {plan.seed} {size}{planted}"'


def table(reports: Sequence[Report]) -> str:
    """The sum of some runs."""
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for report in reports:
        faults.update(report.faults)
        counts.update(report.counts)
    hours = sum(report.group_hours for report in reports)
    wall_s = sum(report.wall_s for report in reports)
    rows: list[tuple[str, object]] = [
        ("seeds", len(reports)),
        ("group-hours simulated", f"{hours:.1f}"),
        ("partition-hours simulated", f"{sum(report.partition_hours for report in reports):.1f}"),
        ("group-hours a minute and process", f"{hours / max(wall_s, 1e-9) * 60:.0f}"),
        ("promises broken", sum(bool(report.violation) for report in reports)),
        ("faults", sum(faults.values())),
        *((f"  {kind}", count) for kind, count in sorted(faults.items())),
        *sorted(counts.items()),
    ]
    return "\n".join(f"{name:<42}{value:>12}" for name, value in rows)
