"""`python -m tests.simulation.converse [RULE ...]`: the conversation of each rule with its planted bug; what was found.

Without rules all conversations are held with the product as it is. Bugs of modules can be planted once in a process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kit.checker import Rule, Violation, summary
from tests.simulation.planted_bugs import PlantedBug, plant
from tests.simulation.rule_bugs import RULE_BUGS


@contextmanager
def _planted(bug: PlantedBug) -> Iterator[None]:
    """A bug of a script for as long as the block runs; one of a module for good."""
    if not bug.script:
        plant(bug)
        yield
        return
    from tests.support.includes import replaced_include

    with replaced_include(bug.script, bug.source_with_bug()):
        yield


def _found(conversation: str, seed: int) -> list[Violation]:
    from tests.simulation.conversations import converse  # imports the product, with the bug

    violations = converse(conversation, seed)
    print(f"{conversation}, seed {seed}:", *summary(violations), sep="\n  ")
    return violations


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.converse", description=__doc__.splitlines()[0])
    parser.add_argument("rules", nargs="*", choices=[[], *Rule.__members__], help="of the checker, by name")
    parser.add_argument("--seed", type=int, help="of every conversation (default that of the rule, or 1)")
    options = parser.parse_args()
    if not options.rules:
        from tests.simulation.conversations import CONVERSATIONS

        found = [_found(conversation, options.seed or 1) for conversation in CONVERSATIONS]
        return 1 if any(found) else 0
    missed = []
    for name in options.rules:
        planted = RULE_BUGS[Rule[name]]
        with _planted(planted.bug):
            rules = {violation.rule for violation in _found(planted.conversation, options.seed or planted.seed)}
        missed += [] if Rule[name] in rules else [name]
    print("not found:", *missed)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
