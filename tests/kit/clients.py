"""Members of groups inside this process, which note everything that they do and are answered in a history.

They poll, commit what they have read, and ask for committed offsets. librdkafka's have a thread each, aiokafka's live
in the event loop. Whatever a client could not do is unknown: a retry inside it may still be under way.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.errors import IllegalStateError
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.kit.history import (
    Assigned,
    Commit,
    CommittedFetch,
    Outcome,
    Poll,
    Revoked,
    Seek,
    now_ns,
    records_of,
)
from tests.kit.writers import Session, started
from tests.support.librdkafka_positions import DEBUG, LibrdkafkaPositions

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_000
COMMIT_EVERY_S, FETCH_EVERY_S = 0.4, 1.5
COMMIT_S: Final = 30.0
"""Beyond it a commit of aiokafka is given up: 0.14 repeats one for ever that a rebalance makes as its consumer stops,
if the coordinator is not known (`GroupCoordinator.commit_offsets` after `close`)."""
LEAVE_S: Final = 180.0
"""A member that has not ended after this time hangs."""
_GROUP_METADATA: Final = b"CGMDv2:"
_NEVER_STARTS: Final = "Failed to fetch committed offsets for"
"""librdkafka's error after which it does not fetch these partitions as long as they are assigned: an OffsetFetch was
lost with its connection while the assignment changed (`rd_kafka_assignment_handle_OffsetFetch` of 2.16)."""
_POSITION_PARTS: Final = (
    "offset reset",
    "outdated offset",
    "logical offset",
    "returned offset",
    "truncat",
    "validat",
    "query timer",
)


def _where(task: asyncio.Task[None]) -> str:
    """The functions in which a task waits, from the outermost to the innermost."""
    places, waiting = [], task.get_coro()
    while frame := getattr(waiting, "cr_frame", None):
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        waiting = getattr(waiting, "cr_await", None)
    return " > ".join(places)


class Reader:
    """A member's half of the history, and how far it has read."""

    def __init__(self, session: Session, name: str, group: str) -> None:
        self.session, self.name, self.group = session, name, group
        self.positions: dict[int, int] = {}
        self.owned: set[int] = set()

    def read(self, began: int, index: int, records: Iterable[tuple[int, bytes]]) -> None:
        found = records_of((offset, value.decode()) for offset, value in records)
        self.positions[index] = found[-1][0] + 1
        partition = self.session.partition(index)
        self.session.history.add(Poll(self.name, began, now_ns(), partition, found, self.group))

    def assigned(self, indexes: Iterable[int], generation: int, member_id: str) -> None:
        new = sorted(indexes)
        self.owned.update(new)
        names = tuple(map(self.session.partition, new))
        self.session.history.add(Assigned(self.name, now_ns(), self.group, member_id, generation, names))

    def revoked(self, indexes: Iterable[int]) -> None:
        gone = sorted(indexes)
        self.owned.difference_update(gone)
        for index in gone:
            self.positions.pop(index, None)
        self.session.history.add(Revoked(self.name, now_ns(), self.group, tuple(map(self.session.partition, gone))))

    def committed(self, began: int, offsets: dict[int, int], generations: tuple[int, int], done: bool) -> None:
        """A commit is answered. The generation is known if it was the same before and after."""
        generation = generations[0] if generations[0] == generations[1] else -1
        outcome = Outcome.OK if done else Outcome.UNKNOWN
        named = {self.session.partition(index): offset for index, offset in offsets.items()}
        self.session.history.add(Commit(self.name, began, now_ns(), self.group, generation, named, outcome))

    def fetched(self, began: int, offsets: dict[int, int]) -> None:
        named = {self.session.partition(index): offset for index, offset in offsets.items()}
        self.session.history.add(CommittedFetch(self.name, began, now_ns(), self.group, named))

    def uncommitted(self, indexes: Iterable[int]) -> dict[int, int]:
        return {index: self.positions[index] for index in indexes if index in self.positions}


class Every:
    """Says when something is due again."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._due = clock() + seconds

    def due(self) -> bool:
        if self._clock() < self._due:
            return False
        self._due = self._clock() + self._seconds
        return True


def _seconds() -> float:
    return now_ns() / 1e9


class LibrdkafkaReader(Reader):
    """confluent_kafka's Consumer with its cooperative assignor, in a thread; its listener runs inside `poll`."""

    def start(self) -> None:
        self._over = threading.Event()
        self._library = LibrdkafkaPositions(self.name, self._on_line)
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    async def stop(self) -> None:
        """Commits, and leaves the group."""
        self._over.set()
        await asyncio.to_thread(self._thread.join)

    def _subscribe(self) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": self.session.bootstrap,
                "client.id": self.name,
                "group.id": self.group,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "socket.timeout.ms": 10_000,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "debug": DEBUG,
                "log_level": 7,
                "error_cb": self._on_error,
            },
            logger=self._library.logger,
        )
        self._consumer.subscribe(
            [self.session.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _run(self) -> None:
        self._subscribe()
        committing, fetching = Every(COMMIT_EVERY_S, _seconds), Every(FETCH_EVERY_S, _seconds)
        while not self._over.is_set():
            began = now_ns()
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._note_restart(message.partition(), message.offset())
                self.read(began, message.partition(), [(message.offset(), message.value())])
            elif message is not None and message.error().str().startswith(_NEVER_STARTS):
                self._start_over(message.error())
            if committing.due():
                self._commit(self.uncommitted(self.owned))
            if fetching.due() and self.owned:
                self._fetch_committed()
        self._consumer.close()

    def _start_over(self, error: KafkaError) -> None:
        """Leave the group and join it again: what librdkafka leaves to an application after this error."""
        self.session.resets.append(f"{now_ns()} {self.name} starts over: {error.str()}")
        self._consumer.close()
        self.revoked(self.owned)
        self._subscribe()

    def _note_restart(self, index: int, offset: int) -> None:
        """librdkafka moved by itself, and its log says so."""
        position = self.positions.get(index)
        if position is None:
            moved = self._library.started(index, offset)
        else:
            moved = offset != position and self._library.moved(index, offset)
        if moved:
            self.session.history.add(Seek(self.name, now_ns(), self.session.partition(index), offset, by_library=True))

    def _on_line(self, line: str) -> None:
        """Of what the library has to say, only what it does about positions is kept."""
        if any(part in line for part in _POSITION_PARTS):
            self.session.resets.append(f"{now_ns()} {self.name} {line.partition(']: ')[2]}")

    def _commit(self, offsets: dict[int, int]) -> None:
        if not offsets:
            return
        began, generation = now_ns(), self._generation()
        wanted = [TopicPartition(self.session.topic, index, offset) for index, offset in offsets.items()]
        try:
            answered = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            self.committed(began, offsets, (generation, self._generation()), done=False)
            return
        for tp in answered:
            generations = generation, self._generation()
            self.committed(began, {tp.partition: offsets[tp.partition]}, generations, done=tp.error is None)

    def _fetch_committed(self) -> None:
        began = now_ns()
        asked = [TopicPartition(self.session.topic, index) for index in sorted(self.owned)]
        try:
            found = self._consumer.committed(asked, timeout=5)
        except KafkaException:
            return
        self.fetched(began, {tp.partition: max(tp.offset, -1) for tp in found if tp.error is None})

    def _on_assign(self, _: Any, partitions: list[Any]) -> None:
        self.assigned((tp.partition for tp in partitions), self._generation(), self._consumer.memberid() or "")

    def _on_revoke(self, _: Any, partitions: list[Any]) -> None:
        gone = [tp.partition for tp in partitions]
        self._commit(self.uncommitted(gone))
        self.revoked(gone)

    def _on_lost(self, _: Any, partitions: list[Any]) -> None:
        self.revoked(tp.partition for tp in partitions)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.session.fatal.append(f"{self.name}: fatal: {error}")

    def _generation(self) -> int:
        """From the serialised group metadata: after its name, an int32 in the machine's order; -1 outside a group."""
        try:
            metadata = bytes(self._consumer.consumer_group_metadata() or b"")
        except RuntimeError:  # it is closing
            return -1
        if not metadata.startswith(_GROUP_METADATA):
            return -1
        return int(struct.unpack_from("<i", metadata, len(_GROUP_METADATA))[0])


class AiokafkaReader(Reader, ConsumerRebalanceListener):  # type: ignore[misc]
    """aiokafka's consumer with its eager assignor."""

    def start(self) -> None:
        self._over = asyncio.Event()
        self._is_closing = False
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Commits, and leaves the group."""
        self._over.set()
        if not (await asyncio.wait({self._task}, timeout=LEAVE_S))[0]:
            self.session.fatal.append(
                f"{self.name}: has not ended after {LEAVE_S:.0f} s, waits in {_where(self._task)}"
            )
            self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self.session.bootstrap,
            client_id=self.name,
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            request_timeout_ms=10_000,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        self._consumer.subscribe([self.session.topic], listener=self)
        await started(self._consumer)
        committing, fetching = Every(COMMIT_EVERY_S, _seconds), Every(FETCH_EVERY_S, _seconds)
        while not self._over.is_set():
            began = now_ns()
            try:
                for tp, records in (await self._consumer.getmany(timeout_ms=100)).items():
                    self.read(began, tp.partition, ((record.offset, record.value) for record in records))
                if committing.due():
                    await self._commit(self.uncommitted(self.owned))
                if fetching.due():
                    await self._fetch_committed()
            except AiokafkaError:
                await asyncio.sleep(0.1)
        await self._commit(self.uncommitted(self.owned))
        self.revoked(self.owned)
        self._is_closing = True
        await self._close()

    async def _close(self) -> None:
        try:
            await self._consumer.stop()
        except asyncio.CancelledError:  # aiokafka 0.14 awaits a fetch that it has cancelled in its backoff
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            pending = self._consumer._fetcher._pending_tasks
            for fetch in pending:
                fetch.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            await self._consumer._client.close()

    async def _commit(self, offsets: dict[int, int]) -> None:
        if not offsets:
            return
        began, generation = now_ns(), self._coordinator.generation
        try:
            async with asyncio.timeout(COMMIT_S):
                await self._consumer.commit({self._tp(index): offset for index, offset in offsets.items()})
        except (AiokafkaError, IllegalStateError, TimeoutError):
            self.committed(began, offsets, (generation, self._coordinator.generation), done=False)
        else:
            self.committed(began, offsets, (generation, self._coordinator.generation), done=True)

    async def _fetch_committed(self) -> None:
        for index in sorted(self.owned):
            began = now_ns()
            found = await self._consumer.committed(self._tp(index))
            self.fetched(began, {index: -1 if found is None else found})

    async def on_partitions_revoked(self, revoked: Any) -> None:
        gone = [tp.partition for tp in revoked]
        await self._commit(self.uncommitted(gone))
        self.revoked(gone)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        if self._is_closing:  # the end of a join that it was in; it reads nothing, and leaves
            return
        generation, member_id = self._coordinator.generation, self._coordinator.member_id
        self.assigned((tp.partition for tp in assigned), generation, member_id)

    @property
    def _coordinator(self) -> Any:
        return self._consumer._coordinator

    def _tp(self, index: int) -> AiokafkaPartition:
        return AiokafkaPartition(self.session.topic, index)
