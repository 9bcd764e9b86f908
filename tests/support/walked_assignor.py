"""The assignor `sticky` as a walk over all members for each task: slow, and what the product's must equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from tidegate.groups.streams.assignor import TaskRunner
from tidegate.groups.streams.model import Task, Tasks


def assign_by_walks(
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
    return {
        one.member_id: Tasks(frozenset(assignment.active[one.member_id]), frozenset(assignment.standby[one.member_id]))
        for one in runners
    }


class _Assignment:
    """The tasks given so far."""

    def __init__(self, runners: Sequence[TaskRunner]) -> None:
        self._runners = runners
        self.active: dict[str, set[Task]] = {one.member_id: set() for one in runners}
        self.standby: dict[str, set[Task]] = {one.member_id: set() for one in runners}
        self._threads = Counter(one.process_id for one in runners)
        self._process_load: Counter[str] = Counter()
        self._task_counts: Counter[str] = Counter()
        self._of_subtopology: Counter[tuple[str, str]] = Counter()
        self._processes_of: defaultdict[Task, set[str]] = defaultdict(set)
        self._ran: dict[Task, TaskRunner] = {task: one for one in runners for task in one.previous.active}
        self._replayed: defaultdict[Task, list[TaskRunner]] = defaultdict(list)
        for one in runners:
            for task in one.previous.standby:
                self._replayed[task].append(one)

    def _least_loaded(self, runners: Iterable[TaskRunner], subtopology_id: str) -> TaskRunner:
        """The member with the least tasks, of the process with the least tasks a thread."""

        def load(one: TaskRunner) -> tuple[float, int, int]:
            of_process = self._process_load[one.process_id] / self._threads[one.process_id]
            return of_process, self._task_counts[one.member_id], self._of_subtopology[one.member_id, subtopology_id]

        return min(runners, key=load)

    def _give(self, one: TaskRunner, task: Task, given: Mapping[str, set[Task]]) -> None:
        given[one.member_id].add(task)
        self._task_counts[one.member_id] += 1
        self._of_subtopology[one.member_id, task[0]] += 1
        self._process_load[one.process_id] += 1
        self._processes_of[task].add(one.process_id)

    def assign_active(self, tasks: Sequence[Task]) -> None:
        """Give each task to who ran it, else to who replayed it, else to the least loaded.

        Each member gets the quotient of tasks and members, as many as remain get one more.
        """
        size, larger = divmod(len(tasks), len(self._runners))

        def is_below_quota(one: TaskRunner) -> bool:
            count = len(self.active[one.member_id])
            return count < size or (count == size and larger > 0)

        def give(one: TaskRunner, task: Task) -> None:
            nonlocal larger
            larger -= len(self.active[one.member_id]) == size
            self._give(one, task, self.active)

        unplaced = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0])):
            runner = self._ran.get(task)
            if runner is not None and is_below_quota(runner):
                give(runner, task)
            else:
                unplaced.append(task)
        free = []
        for task in unplaced:
            replayed = [one for one in self._replayed[task] if is_below_quota(one)]
            if replayed:
                give(self._least_loaded(replayed, task[0]), task)
            else:
                free.append(task)
        for task in sorted(free):
            give(self._least_loaded(filter(is_below_quota, self._runners), task[0]), task)

    def assign_standby(self, tasks: Sequence[Task], replicas: int) -> None:
        """Give each task that often to processes that do not have it yet, as far as there are any."""
        whole = self._task_counts.total() + len(tasks) * replicas
        quota = -(-whole // len(self._runners))
        for _ in range(replicas):
            for task in sorted(tasks, key=lambda task: (task[1], task[0])):
                takers = [one for one in self._runners if one.process_id not in self._processes_of[task]]
                had = {one.member_id for one in self._replayed[task]}
                if task in self._ran:
                    had.add(self._ran[task].member_id)
                sticky = [one for one in takers if one.member_id in had and self._task_counts[one.member_id] < quota]
                if takers:
                    self._give(self._least_loaded(sticky or takers, task[0]), task, self.standby)
