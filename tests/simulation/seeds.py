"""One seed in a process of its own: a bug is planted before anything of the product is imported."""

from __future__ import annotations

from tests.simulation.plants import sow
from tests.simulation.report import Plan, Report


def run(plan: Plan, plant: str | None = None) -> Report:
    """Simulate one seed here."""
    if plant is not None:
        sow(plant)
    from tests.simulation.world import simulate

    return simulate(plan)
