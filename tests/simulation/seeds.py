"""One seed in a process of its own: a bug is planted before anything of the product is imported."""

from __future__ import annotations

from tests.simulation.planted_bugs import PLANTED_BUGS, plant
from tests.simulation.report import Plan, Report


def run(plan: Plan, bug: str | None = None) -> Report:
    """Simulate one seed here."""
    if bug is not None:
        plant(PLANTED_BUGS[bug])
    from tests.simulation.world import simulate

    return simulate(plan)
