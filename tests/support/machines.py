"""How Hypothesis runs against real servers: a failure is told at once, with the seed that brings it back.

Shrinking repeats a failing life thousands of times, which takes minutes on a server: TIDEGATE_SHRINK=1 asks for it.
TIDEGATE_SEED chooses the seed.
"""

from __future__ import annotations

import os
import random
from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

PHASES: Final = tuple(phase for phase in Phase if phase is not Phase.shrink or os.environ.get("TIDEGATE_SHRINK"))


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run a state machine; the seed is printed."""
    chosen = int(os.environ.get("TIDEGATE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"{machine.__name__}: TIDEGATE_SEED={chosen}")
    seed(chosen)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=PHASES,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
