"""The assignor `sticky` of streams groups (KIP-1071): balanced, and a task stays where its state is.

Deterministic. Racks and client tags are not considered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.groups.streams.loads import LeastLoaded, Loads
from tidegate.groups.streams.model import NO_TASKS, Task, Tasks

STICKY: Final = "sticky"


@dataclass(frozen=True, slots=True)
class TaskRunner:
    """A member as the assignor sees it, with its previous target."""

    member_id: str
    process_id: str
    previous: Tasks = NO_TASKS


def assign_sticky(
    runners: Sequence[TaskRunner], tasks: Mapping[str, int], stateful: Collection[str], standby_replicas: int
) -> dict[str, Tasks]:
    """The target of each member.

    `tasks` has the number of tasks of each subtopology, `stateful` those with changelogs.
    """
    if not runners:
        return {}
    assignment = _Assignment(sorted(runners, key=lambda one: (one.process_id, one.member_id)))
    assignment.assign_active([(name, index) for name, count in tasks.items() for index in range(count)])
    if standby_replicas > 0:
        with_state = [(name, index) for name in stateful for index in range(tasks.get(name, 0))]
        assignment.assign_standby(with_state, standby_replicas)
    return assignment.targets


class _Assignment:
    """The tasks given so far. A member is its place in the list of runners."""

    def __init__(self, runners: Sequence[TaskRunner]) -> None:
        self._runners = runners
        self._places = range(len(runners))
        self._active: list[set[Task]] = [set() for _ in runners]
        self._standby: list[set[Task]] = [set() for _ in runners]
        self._loads = Loads([one.process_id for one in runners])
        self._processes_of: defaultdict[Task, set[str]] = defaultdict(set)
        self._ran: dict[Task, int] = {task: place for place in self._places for task in runners[place].previous.active}
        self._replayed: defaultdict[Task, list[int]] = defaultdict(list)
        for place in self._places:
            for task in runners[place].previous.standby:
                self._replayed[task].append(place)

    @property
    def targets(self) -> dict[str, Tasks]:
        """By member id."""
        given = zip(self._runners, self._active, self._standby, strict=True)
        return {one.member_id: Tasks(frozenset(active), frozenset(standby)) for one, active, standby in given}

    def _least_loaded(self, places: Iterable[int], subtopology_id: str) -> int:
        """The member with the least tasks, of the process with the least tasks a thread."""
        return min(places, key=lambda place: self._loads.of(place, subtopology_id))

    def _give(self, place: int, task: Task, given: Sequence[set[Task]]) -> None:
        given[place].add(task)
        self._loads.add(place, task[0])
        self._processes_of[task].add(self._runners[place].process_id)

    def assign_active(self, tasks: Sequence[Task]) -> None:
        """Give each task to who ran it, else to who replayed it, else to the least loaded.

        Each member gets the quotient of tasks and members, as many as remain get one more.
        """
        size, larger = divmod(len(tasks), len(self._runners))

        def is_below_quota(place: int) -> bool:
            count = len(self._active[place])
            return count < size or (count == size and larger > 0)

        def give(place: int, task: Task) -> None:
            nonlocal larger
            larger -= len(self._active[place]) == size
            self._give(place, task, self._active)

        unplaced = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0])):
            ran = self._ran.get(task)
            if ran is not None and is_below_quota(ran):
                give(ran, task)
            else:
                unplaced.append(task)
        free: defaultdict[str, list[Task]] = defaultdict(list)
        for task in unplaced:
            replayed = [place for place in self._replayed.get(task, ()) if is_below_quota(place)]
            if replayed:
                give(self._least_loaded(replayed, task[0]), task)
            else:
                free[task[0]].append(task)
        least_loaded = LeastLoaded(self._loads, is_below_quota)
        for subtopology_id in sorted(free):
            least_loaded.begin(subtopology_id)
            for task in sorted(free[subtopology_id]):
                place = least_loaded.find()
                give(place, task)
                least_loaded.grown(place)

    def assign_standby(self, tasks: Sequence[Task], replicas: int) -> None:
        """Give each task that often to processes that do not have it yet, as far as there are any."""
        counts = self._loads.task_counts
        quota = -(-(sum(counts) + len(tasks) * replicas) // len(self._runners))
        for _ in range(replicas):
            for task in sorted(tasks, key=lambda task: (task[1], task[0])):
                had = {*self._replayed.get(task, ()), *((self._ran[task],) if task in self._ran else ())}
                takers = self._without(task, (place for place in had if counts[place] < quota))
                takers = takers or self._without(task, self._places)
                if takers:
                    self._give(self._least_loaded(takers, task[0]), task, self._standby)

    def _without(self, task: Task, places: Iterable[int]) -> list[int]:
        """Those of some members whose process does not have a task."""
        processes = self._processes_of[task]
        return [place for place in places if self._runners[place].process_id not in processes]
