"""Every conversation by name: where it runs, and whether it lives by the clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tests.conformance.differential.conversation import Conversation
from tests.conformance.differential.targets import PROMPT, Profile

Script = Callable[[Conversation], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Scripted:
    """A conversation by hand. Those `by_the_clock` wait for real deadlines and run beside nothing else."""

    name: str
    script: Script
    profile: Profile
    by_the_clock: bool


CATALOGUE: Final[dict[str, Scripted]] = {}


def conversation(profile: Profile = PROMPT, by_the_clock: bool = False) -> Callable[[Script], Script]:
    """Enter a function in the catalogue under its name."""

    def enter(script: Script) -> Script:
        name = script.__name__
        assert name not in CATALOGUE, name
        CATALOGUE[name] = Scripted(name, script, profile, by_the_clock)
        return script

    return enter
