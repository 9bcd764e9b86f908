"""How Hypothesis runs against real servers: a failure is reported at once, with the seed that brings it back.

Shrinking repeats a failing life thousands of times, which takes minutes on a server: TIDEGATE_SHRINK=1 asks for it.
TIDEGATE_SEED chooses the seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

PHASES: Final = tuple(phase for phase in Phase if phase is not Phase.shrink or os.environ.get("TIDEGATE_SHRINK"))


def run_machine(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    """Run a state machine; a failure prints how to repeat it."""
    chosen = chosen_seed()
    try:
        _run(machine, chosen, examples, steps, PHASES)
    except BaseException as error:
        error.add_note(f"{machine.__name__}: the same lives again with TIDEGATE_SEED={chosen}")
        raise


def search(machine: type[RuleBasedStateMachine], examples: int, steps: int) -> tuple[int, Exception | None]:
    """Run a machine until it finds a fault. Returns its seed, and the fault if there was one."""
    chosen = chosen_seed()
    try:
        _run(machine, chosen, examples, steps, [Phase.generate])
    except Exception as error:  # noqa: BLE001 any fault will do
        return chosen, error
    return chosen, None


def chosen_seed() -> int:
    """TIDEGATE_SEED, or another one each time."""
    return int(os.environ.get("TIDEGATE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


def _run(machine: type[RuleBasedStateMachine], chosen: int, examples: int, steps: int, phases: Sequence[Phase]) -> None:
    seed(chosen)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=phases,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
