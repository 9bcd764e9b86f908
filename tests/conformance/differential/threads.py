"""The threads of a Kafka Streams application, as conversations steer them and allowed differences judge by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

NO_TASKS: Final[dict[str, Any]] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
_TASKS: Final = 6
"""Of the topology: a task for each partition of its sources."""


@dataclass
class Thread:
    """A member, by the answers of Kafka."""

    name: str
    epoch: int = 0
    previous_epoch: int = 0
    owned: dict[str, list[Any]] = field(default_factory=dict)
    """Its active tasks by the target's name: each chooses its own."""
    is_in: bool = False

    def follow(self, answers: Mapping[str, Any]) -> None:
        """Do as each target says."""
        kafka = answers["kafka"]
        if kafka["error_code"] != "none":
            return
        if kafka["member_epoch"] != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, kafka["member_epoch"]
        for name, answer in answers.items():
            if answer["active_tasks"] is not None:
                self.owned[name] = answer["active_tasks"]

    @property
    def tasks(self) -> dict[str, Any]:
        """As a request names them."""
        return NO_TASKS | {"active_tasks": lambda target: self.owned.get(target.name, [])}


@dataclass
class Threads:
    """All of them, the one that asks, and the active tasks that it reports to Tidegate; None for no report."""

    all: list[Thread]
    asking: Thread | None = None
    reported: list[Any] | None = None

    def may_have(self, target: str, answer: Mapping[str, Any]) -> bool:
        """Whether the one that asks was given its share at most, and nothing that another one was given."""
        given = task_ids(answer["active_tasks"])
        others = [task_ids(one.owned.get(target, ())) for one in self.all if one is not self.asking and one.is_in]
        share = -(-_TASKS // (len(others) + 1))
        return len(given) <= share and not any(given & taken for taken in others)

    @property
    def had(self) -> set[tuple[str, int]]:
        """The tasks that the one that asks was last given by Tidegate."""
        assert self.asking is not None
        return task_ids(self.asking.owned.get("tidegate", ()))


def task_ids(tasks: Any) -> set[tuple[str, int]]:
    """Subtopology and index of each."""
    return {(one["subtopology_id"], index) for one in tasks for index in one["partitions"]}
