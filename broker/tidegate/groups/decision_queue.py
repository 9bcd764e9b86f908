"""Work for the next decision on a group: what arrives while a decision is under way shares the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Generic, TypeVar

import structlog

from tidegate.errors import GroupIdNotFound, KafkaError, StoreUnavailable
from tidegate.store.batching import fail_waiter
from tidegate.store.keys import GroupKeys
from tidegate.store.link import Arg
from tidegate.store.outcome import Failure
from tidegate.store.scripts import Script
from tidegate.store.store import Store
from tidegate.store.tasks import TaskSet

Work = TypeVar("Work")
Answer = TypeVar("Answer")
Computed = TypeVar("Computed")

INLINE_SIZE_MAX: Final = 200
"""The topics of all members together, and a tenth of their partitions: up to it a decision takes some milliseconds."""
_THREAD: Final = ThreadPoolExecutor(1, "decisions")
"""One, as several that compute would keep the interpreter lock from the event loop for hundreds of milliseconds."""

logger = structlog.get_logger()


async def computed(sizes: Iterable[int], compute: Callable[[], Computed]) -> Computed:
    """Compute a decision, in the thread if it compares more subscriptions or partitions than `INLINE_SIZE_MAX`."""
    size = 0
    for one in sizes:
        size += one
        if size > INLINE_SIZE_MAX:
            return await asyncio.get_running_loop().run_in_executor(_THREAD, compute)
    return compute()


class DecisionQueue(Generic[Work, Answer]):
    """One queue for each group with work. A subclass decides; it forgets the group that it has cached if that fails.

    The work None only expires what is overdue.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._queues: dict[str, list[tuple[Work | None, Callable[[Answer | KafkaError], None]]]] = {}
        self._tasks = TaskSet()
        self.on_stored: list[Callable[[GroupKeys, int, int], None]] = []
        """Called with the group's epoch and version when a decision changed it, before its requests are answered."""

    async def start(self) -> None:
        """Nothing runs until there is work."""

    async def close(self) -> None:
        """Cancel the decisions under way."""
        await self._tasks.close()

    async def _decide(self, keys: GroupKeys, works: Sequence[Work | None]) -> Sequence[Answer | KafkaError]:
        raise NotImplementedError

    def _forget(self, keys: GroupKeys) -> None:
        raise NotImplementedError

    def submit(self, keys: GroupKeys, work: Work | None, on_decided: Callable[[Answer | KafkaError], None]) -> None:
        """Queue work for the group's next decision; `on_decided` gets its answer or its error once."""
        queue = self._queues.get(keys.group)
        if queue is not None:
            queue.append((work, on_decided))
            return
        self._queues[keys.group] = [(work, on_decided)]
        self._tasks.start(self._serve(keys), name=self._name)

    def submit_expiry(self, keys: GroupKeys, on_expired: Callable[[object], None]) -> None:
        """Queue the expiry of what is overdue in one group; `on_expired` gets an answer, or the error."""
        self.submit(keys, None, on_expired)

    async def run(self, keys: GroupKeys, work: Work | None) -> Answer:
        """Submit work and wait for its answer. Raises the KafkaError that it is answered with, StoreUnavailable."""
        decided: asyncio.Future[Answer | KafkaError] = asyncio.get_running_loop().create_future()
        self.submit(keys, work, partial(_set_result, decided))
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
            for _, on_decided in self._queues.pop(keys.group, ()):
                on_decided(StoreUnavailable("closed"))

    async def _answer(
        self, keys: GroupKeys, queued: Sequence[tuple[Work | None, Callable[[Answer | KafkaError], None]]]
    ) -> None:
        try:
            answers = await self._decide(keys, [work for work, _ in queued])
        except KafkaError as error:
            self._forget(keys)
            answers = [error] * len(queued)
        except Exception:
            self._forget(keys)
            logger.exception("group_decision_failed", group=keys.ref, kind=self._name)
            answers = [KafkaError()] * len(queued)
        for (_, on_decided), answer in zip(queued, answers, strict=True):
            if isinstance(answer, KafkaError):
                answer.__traceback__ = None  # a frame of it has the list of answers: a cycle
            try:
                on_decided(answer)
            except Exception:  # noqa: BLE001 - logged; the others are answered
                fail_waiter(on_decided, KafkaError())

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
