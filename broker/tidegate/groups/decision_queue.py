"""Work for the next decision on a group: what arrives while a decision is under way shares the next one.

A broker caches the groups that it decided on last, up to a share of memory. A decision on an old copy is refused by the
conditional write, and repeated on the group as it is now, but not for a client that may have given up meanwhile: it may
have been answered by another broker, so that its old join would take back what it was given there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from tidegate.admissions import Admissions
from tidegate.errors import CoordinatorLoadInProgress, GroupIdNotFound, KafkaError, StoreUnavailable
from tidegate.memory import MemoryShares
from tidegate.store.batching import fail_waiter
from tidegate.store.bounded_cache import BoundedCache
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet

Work = TypeVar("Work")
Answer = TypeVar("Answer")
Computed = TypeVar("Computed")


class HeldGroup(Protocol):
    """What the queue needs of a group."""

    members: Any
    version: int

    @property
    def held_bytes(self) -> int:
        """Memory that it takes."""


Group = TypeVar("Group", bound=HeldGroup)

INLINE_SIZE_MAX: Final = 200
"""The topics of all members together, and a tenth of their partitions: up to it a decision takes some milliseconds."""
_BYTES_OF_SIZE: Final = 100
"""Of stored members: reading them takes as long as a decision on one topic."""
_THREAD: Final = ThreadPoolExecutor(1, "decisions")
"""One, as several that compute would keep the interpreter lock from the event loop for hundreds of milliseconds."""

_TRIES_MAX: Final = 20
"""Decisions on the same work: each refusal means that another broker changed the group."""
GIVEN_UP_S: Final = 5.0
"""Age of a request, s, from which on a client that closed its connection has given up; a leave may come just before."""
LATE_S: Final = 10.0
"""Age of a request, s, from which on its client may have given up unnoticed: its network may be cut."""
_SMALL_BYTES: Final = 64 << 10
"""Groups up to it are read without waiting for the decisions on others."""

logger = structlog.get_logger()


class StaleDecision(Exception):
    """The group changed after it was read: nothing was stored."""


class Client(Protocol):
    """Who waits for a decision."""

    @property
    def closed(self) -> bool:
        """Whether it has closed its connection."""


class PendingCall(Protocol):
    """The request that asks for a decision."""

    @property
    def client(self) -> Client:
        """Who sent it."""

    @property
    def arrived_s(self) -> float:
        """When it came, by `perf_counter`: it may have waited long before its work was queued."""


class _Queued(NamedTuple):
    work: Any
    on_decided: Callable[[Any], None]
    call: PendingCall | None

    def has_given_up(self, now_s: float) -> bool:
        """Whether the client may wait no more; what nobody waits for has none."""
        if self.call is None:
            return False
        age_s = now_s - self.call.arrived_s
        return age_s > LATE_S or (age_s > GIVEN_UP_S and self.call.client.closed)


def stored_sizes(*stored: Mapping[bytes, bytes]) -> Iterator[int]:
    """How much reading stored members and targets adds, for `computed`."""
    return (len(text) // _BYTES_OF_SIZE for texts in stored for text in texts.values())


async def computed(sizes: Iterable[int], compute: Callable[[], Computed]) -> Computed:
    """Compute a decision, in the thread if it compares more subscriptions or partitions than `INLINE_SIZE_MAX`."""
    size = 0
    for one in sizes:
        size += one
        if size > INLINE_SIZE_MAX:
            return await asyncio.get_running_loop().run_in_executor(_THREAD, compute)
    return compute()


class DecisionQueue(Generic[Work, Answer, Group]):
    """One queue for each group with work, and the groups decided on last. A subclass decides.

    The work None only expires what is overdue. `shares` bound what is cached, and the large groups decided on at once.
    """

    def __init__(self, store: Store, name: str, shares: MemoryShares) -> None:
        self._store, self._name = store, name
        self._queues: dict[str, list[_Queued]] = {}
        self._tasks = TaskSet()
        self._large = Admissions(shares.decisions)
        self.cached: BoundedCache[str, Group] = BoundedCache(shares.groups, keeps_one=True)
        """By the name of its hash: the groups with members that this broker decided on last."""
        self.on_stored: list[Callable[[GroupKeys, int, int], None]] = []
        """Called with the group's epoch and version when a decision changed it, before its requests are answered."""

    async def start(self) -> None:
        """Nothing runs until there is work."""

    async def close(self) -> None:
        """Cancel the decisions under way."""
        await self._tasks.close()

    async def _read_for(self, keys: GroupKeys, works: Sequence[Work | None]) -> Group:
        """The stored group. Raises KafkaError."""
        raise NotImplementedError

    async def _decide(
        self, keys: GroupKeys, base: Group, works: Sequence[Work | None]
    ) -> Sequence[Answer | KafkaError]:
        """Decide on a group as it was read. Raises StaleDecision, KafkaError."""
        raise NotImplementedError

    def submit(
        self,
        keys: GroupKeys,
        work: Work | None,
        on_decided: Callable[[Answer | KafkaError], None],
        call: PendingCall | None = None,
    ) -> None:
        """Queue work for the group's next decision; `on_decided` gets its answer or its error once.

        Work of a client that may have given up is answered COORDINATOR_LOAD_IN_PROGRESS.
        """
        queued = _Queued(work, on_decided, call)
        queue = self._queues.get(keys.group)
        if queue is not None:
            queue.append(queued)
            return
        self._queues[keys.group] = [queued]
        self._tasks.start(self._serve(keys), name=self._name)

    def submit_expiry(self, keys: GroupKeys, on_expired: Callable[[object], None]) -> None:
        """Queue the expiry of what is overdue in one group; `on_expired` gets an answer, or the error."""
        self.submit(keys, None, on_expired)

    async def run(self, keys: GroupKeys, work: Work | None, call: PendingCall | None = None) -> Answer:
        """Submit work and wait for its answer. Raises the KafkaError that it is answered with, StoreUnavailable."""
        decided: asyncio.Future[Answer | KafkaError] = asyncio.get_running_loop().create_future()
        self.submit(keys, work, partial(_set_result, decided), call)
        answer = await decided
        try:
            if isinstance(answer, KafkaError):
                raise answer
            return answer
        finally:
            del answer, decided  # the error's traceback has this frame: a cycle, with the keys of every caller

    async def expire(self, keys: GroupKeys) -> None:
        """Apply whatever is overdue in one group. Raises StoreUnavailable."""
        with contextlib.suppress(GroupIdNotFound):  # meanwhile the group has another type
            await self.run(keys, None)

    async def _serve(self, keys: GroupKeys) -> None:
        """Decide on what is queued until the queue is empty."""
        try:
            while queued := self._queues[keys.group]:
                await asyncio.sleep(0)  # the heartbeats of this tick share one decision
                self._queues[keys.group] = []
                await self._answer(keys, queued)
        finally:
            for one in self._queues.pop(keys.group, ()):
                one.on_decided(StoreUnavailable("closed"))

    async def _answer(self, keys: GroupKeys, queued: list[_Queued]) -> None:
        for _ in range(_TRIES_MAX):
            self._refuse_late(keys, queued)
            if not queued:
                return
            try:
                answers = await self._decided(keys, queued)
            except StaleDecision:
                self._forget(keys)
                continue
            except KafkaError as error:
                self._forget(keys)
                answers = [error] * len(queued)
            except Exception:
                self._forget(keys)
                logger.exception("group_decision_failed", group=keys.ref, kind=self._name)
                answers = [KafkaError()] * len(queued)
            _hand_out(queued, answers)
            return
        changes = CoordinatorLoadInProgress("the group changes faster than it can be decided on")
        _hand_out(queued, [changes] * len(queued))

    def _refuse_late(self, keys: GroupKeys, queued: list[_Queued]) -> None:
        """Answer and remove the work of clients that may have given up."""
        now_s = perf_counter()
        late: list[_Queued] = []
        waiting: list[_Queued] = []
        for one in queued:
            (late if one.has_given_up(now_s) else waiting).append(one)
        if late:
            logger.warning("late_group_work_refused", group=keys.ref, kind=self._name, count=len(late))
            _hand_out(late, [CoordinatorLoadInProgress("the request waited too long")] * len(late))
            queued[:] = waiting

    async def _decided(self, keys: GroupKeys, queued: list[_Queued]) -> Sequence[Answer | KafkaError]:
        """Decide; on a large group that must be read, only while the others together are small enough.

        What the group was read for may have waited long by then; what comes after that is covered by the conditional
        write.
        """
        base = self.cached.get(keys.group)
        if base is not None:
            return await self._decide(keys, base, [one.work for one in queued])
        size = int(await self._store.read("HGET", keys.group, "held_bytes") or 0)
        admission = await self._large.admit(size) if size > _SMALL_BYTES else None
        try:
            base = await self._read_for(keys, [one.work for one in queued])
            self._refuse_late(keys, queued)
            return await self._decide(keys, base, [one.work for one in queued]) if queued else ()
        finally:
            if admission is not None:
                admission.end()

    # -- the cache

    def _remember(self, keys: GroupKeys, group: Group, version: int) -> None:
        if group.members:
            group.version = version
            self.cached.put(keys.group, group, group.held_bytes)
        else:
            self._forget(keys)

    def _forget(self, keys: GroupKeys) -> None:
        self.cached.drop(keys.group)

    def _report_stored(self, keys: GroupKeys, epoch: int, version: int) -> None:
        for on_stored in self.on_stored:
            on_stored(keys, epoch, version)

    async def _run_script(self, script: Script, key_names: Sequence[str], args: Sequence[Arg]) -> list[Any]:
        """Run a script; its reply with its code. Raises StoreUnavailable."""
        written: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._store.send_script(script, list(key_names), list(args), partial(_set_reply, written))
        try:
            return await written
        finally:
            del written


def _hand_out(queued: Sequence[_Queued], answers: Sequence[Any]) -> None:
    for one, answer in zip(queued, answers, strict=True):
        if isinstance(answer, KafkaError):
            answer.__traceback__ = None  # a frame of it has the list of answers: a cycle
        try:
            one.on_decided(answer)
        except Exception:  # noqa: BLE001 - logged; the others are answered
            fail_waiter(one.on_decided, KafkaError())


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_reply(future: asyncio.Future[list[Any]], reply: Any) -> None:
    if future.done():
        return
    if isinstance(reply, Failure):
        future.set_exception(reply.error)
    else:
        future.set_result(reply)
