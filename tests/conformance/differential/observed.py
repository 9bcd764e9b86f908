"""What one step showed at both targets, what of it differs, and how much was compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance.differential.normalise import leaves

PARKED: Final = "parked"
CLOSED: Final = "closed"
"""In place of a response: no answer yet; the connection was closed."""

ABSENT: Final = "absent"
"""In place of a field's value: the other target has the field, this one has not."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that does not agree. `path` is "" for the whole answer."""

    conversation: str
    step: int
    api: str
    version: int
    path: str
    kafka: Any
    tidegate: Any
    after: str = ""
    """The API of the step that led here, where the difference showed only in a later answer or in Describe."""
    notes: frozenset[str] = frozenset()
    """What the conversation knows of the group; allowed differences ask for it."""
    whole: tuple[Any, Any] = (None, None)
    """Both answers."""
    known: Any = None
    """What the conversation knows of the state before the request; allowed differences ask for it."""

    def __str__(self) -> str:
        where = f"{self.conversation}, step {self.step}: {self.api} v{self.version} {self.path or '(answer)'}"
        return f"{where}: Kafka {self.kafka!r}, Tidegate {self.tidegate!r}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """One meant difference. `lasts`: the groups are not alike afterwards, so a conversation ends with it.

    `until`: the last version of Kafka that differs so, if the peer's is newer; not in the page.
    """

    key: str
    where: str
    kafka: str
    tidegate: str
    reason: str
    matches: Callable[[Difference], bool]
    lasts: bool = False
    until: str = ""


@dataclass(slots=True)
class Tally:
    """How much was compared."""

    steps: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """Answers by API and version, such as `JoinGroup v9`."""
    fields: int = 0
    parked: int = 0
    """Times that both were seen not to answer yet."""
    cases: set[tuple[str, str, str]] = field(default_factory=set)
    """State of the group, API, and how the request was answered."""

    def __iadd__(self, other: Tally) -> Tally:
        self.steps += other.steps
        self.answers += other.answers
        self.fields += other.fields
        self.parked += other.parked
        self.cases |= other.cases
        return self


def compare(kafka: Any, tidegate: Any) -> tuple[int, list[tuple[str, Any, Any]]]:
    """Two answers, each a tree, PARKED or CLOSED: fields compared, and (path, Kafka's, Tidegate's) of those unlike."""
    if isinstance(kafka, str) or isinstance(tidegate, str):
        return 1, [] if kafka == tidegate else [("", kafka, tidegate)]
    first, second = leaves(kafka), leaves(tidegate)
    paths = list(dict.fromkeys([*first, *second]))
    unlike = [
        (path, first.get(path, ABSENT), second.get(path, ABSENT))
        for path in paths
        if first.get(path, ABSENT) != second.get(path, ABSENT)
    ]
    return len(paths), unlike
