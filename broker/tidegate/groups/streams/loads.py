"""How many tasks the members of a streams group have, and which member has the least. Members are places in a list."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

Load = tuple[float, int, int, int]
"""Tasks a thread of the process, tasks of the member, those of one subtopology, and the member's place."""

_NO_LOAD: Final[Load] = (0.0, 0, 0, -1)


class Loads:
    """The tasks given so far. `processes` has the process of each member."""

    def __init__(self, processes: Sequence[str]) -> None:
        self.processes = processes
        self.task_counts = [0] * len(processes)
        self._threads = Counter(processes)
        self._of_process: Counter[str] = Counter()
        self._of_subtopology: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def add(self, place: int, subtopology_id: str) -> None:
        """The member was given a task."""
        self.task_counts[place] += 1
        self._of_process[self.processes[place]] += 1
        self._of_subtopology[subtopology_id][place] += 1

    def of(self, place: int, subtopology_id: str) -> Load:
        """The load of a member that may be given a task of the subtopology."""
        process_id = self.processes[place]
        of_process = self._of_process[process_id] / self._threads[process_id]
        return of_process, self.task_counts[place], self._of_subtopology[subtopology_id][place], place

    def members_of(self, subtopology_id: str) -> set[int]:
        """The members with tasks of the subtopology."""
        return set(self._of_subtopology[subtopology_id])


class LeastLoaded:
    """The least loaded of the members that may take a task, while loads only grow.

    Each process has a heap of its members, and one heap has the first member of each process. What is in the heaps may
    be out of date, but is never above the load of now: it is compared again when it is the first. A member that may not
    take a task now may take none later.
    """

    def __init__(self, loads: Loads, may_take: Callable[[int], bool]) -> None:
        self._loads, self._may_take, self._subtopology_id = loads, may_take, ""
        self._members: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for place, process_id in enumerate(loads.processes):
            self._members[process_id].append(loads.of(place, "")[1:])
        self._firsts: list[Load] = []
        self._first_of: dict[str, Load] = {}
        for process_id, members in self._members.items():
            heapify(members)
            self._put_first(process_id)

    def begin(self, subtopology_id: str) -> None:
        """The tasks that follow are of this subtopology."""
        members = self._loads.members_of(self._subtopology_id) | self._loads.members_of(subtopology_id)
        self._subtopology_id = subtopology_id
        for place in members:
            self._put(place)
        for process_id in {self._loads.processes[place] for place in members}:
            self._put_first(process_id)

    def find(self) -> int:
        """The place of the least loaded member, of which there is one."""
        while True:
            first = self._firsts[0]
            process_id = self._loads.processes[first[-1]]
            if first == self._first_of[process_id] == self._first(process_id):
                return first[-1]
            heappop(self._firsts)
            if first == self._first_of[process_id]:
                self._put_first(process_id)

    def grown(self, place: int) -> None:
        """The member was given a task."""
        self._put(place)
        self._put_first(self._loads.processes[place])

    def _put(self, place: int) -> None:
        heappush(self._members[self._loads.processes[place]], self._loads.of(place, self._subtopology_id)[1:])

    def _put_first(self, process_id: str) -> None:
        first = self._first_of[process_id] = self._first(process_id)
        if first is not _NO_LOAD:
            heappush(self._firsts, first)

    def _first(self, process_id: str) -> Load:
        """The least loaded member of a process; `_NO_LOAD` if none may take a task."""
        members = self._members[process_id]
        while members:
            place = members[0][-1]
            load = self._loads.of(place, self._subtopology_id)
            if load[1:] == members[0] and self._may_take(place):
                return load
            heappop(members)
        return _NO_LOAD
