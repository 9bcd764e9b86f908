"""Fetches that wait for data: parked by connection, woken by the ends of their logs.

One listener a log, one read for all who wait for the same: a change of a log makes its partition due in every fetch set
that listens. At the end of the tick the fetches whose answer depends on this partition alone are grouped by what they
wait for (`FetchKey`); each group is answered from one read and one encoded response. All others evaluate what is due by
themselves (`Fetching.resume`), also when the read finds no records, an error, or an epoch that differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tidegate.apis.fetch_sessions import (
    READ_COMMITTED,
    ZSTD_FROM,
    FetchKey,
    FetchSet,
    SharedAnswer,
    SharingFetch,
    Wanted,
)
from tidegate.errors import KafkaError
from tidegate.log.record_format.record_groups import RecordReader
from tidegate.protocol.log_writers import FetchPartition, SharedFetch
from tidegate.records.batch import holds_zstd

if TYPE_CHECKING:
    from tidegate.log.logs import FetchedLog
    from tidegate.log.read import Slice
    from tidegate.topics.model import Topic

logger = structlog.get_logger()

ANSWERS_PER_TICK: Final = 256
"""Fetches answered from one read before other work of the event loop runs: a few ms."""
RESUMED_PER_TICK: Final = 128
"""Fetches that evaluate what is due by themselves before other work of the event loop runs: up to 60 us each."""


class ParkedFetch(Protocol):
    """A fetch of a topic or of a share group that waits."""

    def resume(self) -> None:
        """Read what changed, and answer if that is enough."""

    def answer(self) -> None:
        """Answer with the records read so far."""

    def cancel(self) -> None:
        """Stop, because the client disconnected."""


class FetchWaits:
    """The parked fetches of a broker, by connection."""

    def __init__(self) -> None:
        self._parked: dict[int, set[ParkedFetch]] = {}
        self._woken: list[ParkedFetch] = []
        self._drain: asyncio.Task[None] | None = None

    def follow(self, connection_id: int) -> bool:
        """Register a connection; returns whether it is new."""
        if connection_id in self._parked:
            return False
        self._parked[connection_id] = set()
        return True

    def close_connection(self, connection_id: int) -> None:
        """Cancel the fetches of a closed connection."""
        for fetch in self._parked.pop(connection_id, ()):
            fetch.cancel()

    def park(self, connection_id: int, fetch: ParkedFetch, draining: asyncio.Event) -> bool:
        """Park a fetch until `leave`; False if its connection is closed already."""
        parked = self._parked.get(connection_id)
        if parked is None:
            return False
        parked.add(fetch)
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(self._answer_when(draining))
        return True

    def leave(self, connection_id: int, fetch: ParkedFetch) -> None:
        """Remove an answered fetch."""
        parked = self._parked.get(connection_id)
        if parked is not None:
            parked.discard(fetch)

    def wake(self, fetch: ParkedFetch) -> None:
        """Resume a fetch at the end of this tick."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._resume)
        self._woken.append(fetch)

    def _resume(self) -> None:
        woken, self._woken = self._woken[:RESUMED_PER_TICK], self._woken[RESUMED_PER_TICK:]
        if self._woken:
            asyncio.get_running_loop().call_soon(self._resume)
        for fetch in woken:
            fetch.resume()

    async def _answer_when(self, draining: asyncio.Event) -> None:
        await draining.wait()
        waiting = [fetch for parked in self._parked.values() for fetch in parked]
        for number, fetch in enumerate(waiting, 1):
            fetch.answer()
            if number % ANSWERS_PER_TICK == 0:
                await asyncio.sleep(0)


class LogEnds:
    """The logs with listening fetch sets."""

    def __init__(self) -> None:
        self._ends: dict[FetchedLog, LogEnd] = {}
        self._changed: list[LogEnd] = []

    def __len__(self) -> int:
        return len(self._ends)

    def listen(self, log: FetchedLog, wanted: Wanted, fetch_set: FetchSet) -> Callable[[], None]:
        """Make the partition due in its set whenever its log changes, until the returned remover is called."""
        end = self._ends.get(log)
        if end is None:
            end = self._ends[log] = LogEnd(self, log)
        end.waiting[wanted] = fetch_set
        return partial(end.leave, wanted)

    def remove(self, end: LogEnd) -> None:
        """Forget a log without listeners."""
        del self._ends[end.log]

    def changed(self, end: LogEnd) -> None:
        """Wake the log's fetches at the end of this tick."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._wake)
        self._changed.append(end)

    def _wake(self) -> None:
        changed, self._changed = self._changed, []
        alone: list[SharingFetch] = []
        for end in changed:
            end.is_changed = False
            alone += end.wake()
        if alone:
            _resume_all(alone)


class LogEnd:
    """The fetch sets that listen to one log."""

    __slots__ = ("_ends", "_stop_listening", "is_changed", "log", "waiting")

    def __init__(self, ends: LogEnds, log: FetchedLog) -> None:
        self._ends = ends
        self.log = log
        self.waiting: dict[Wanted, FetchSet] = {}
        self.is_changed = False
        self._stop_listening = log.on_change(self._on_change)

    def leave(self, wanted: Wanted) -> None:
        """Stop listening for one fetch set."""
        if self.waiting.pop(wanted, None) is not None and not self.waiting:
            self._stop_listening()
            self._ends.remove(self)

    def _on_change(self) -> None:
        for wanted, fetch_set in self.waiting.items():
            fetch_set.due[wanted] = None
        if not self.is_changed:
            self.is_changed = True
            self._ends.changed(self)

    def wake(self) -> list[SharingFetch]:
        """Answer the fetches that wait for the same together; returns the others, to be resumed."""
        alone: list[SharingFetch] = []
        shared: dict[FetchKey, list[tuple[Wanted, SharingFetch]]] = {}
        own = isinstance(self.log, RecordReader)  # reads for one connection's group
        for wanted, fetch_set in list(self.waiting.items()):
            fetch = fetch_set.waiter
            if fetch is None:
                continue
            key = None if own else fetch.shared_key(wanted)
            if key is None:
                alone.append(fetch)
                continue
            if key in shared:
                shared[key].append((wanted, fetch))
            else:
                shared[key] = [(wanted, fetch)]
            if fetch.queue is not None:
                shared[key] += [(wanted, equal) for equal in fetch.queue.fetches]
        for key, waiting in shared.items():
            SharedRead(self.log, key, waiting).start()
        return alone


class SharedRead:
    """One read for fetches that wait for the same."""

    __slots__ = ("_key", "_log", "_waiting")

    def __init__(self, log: FetchedLog, key: FetchKey, waiting: list[tuple[Wanted, SharingFetch]]) -> None:
        self._log = log
        self._key = key
        self._waiting = waiting

    def start(self) -> None:
        """Read, unless the clients' epochs must be checked first, which each fetch does by itself."""
        key, known = self._key, self._log.known()
        if known is not None and known.agrees(key.offset, key.leader_epoch, key.last_epoch):
            self._log.read(key.offset, key.bytes_max, True, self._on_read, key.isolation == READ_COMMITTED)
        else:
            self._resume_all()

    def _on_read(self, found: Slice | KafkaError) -> None:
        key = self._key
        if isinstance(found, KafkaError) or not found.size or found.log_start_offset > key.offset:
            self._resume_all()
            return
        if key.version < ZSTD_FROM and holds_zstd(found.buffers):
            self._resume_all()
            return
        self._answer(_encoded(self._log.topic, key, found), 0)

    def _answer(self, answer: SharedAnswer, start: int) -> None:
        end = start + ANSWERS_PER_TICK
        waiting, readers = self._waiting[start:end], []
        for wanted, fetch in waiting:
            try:
                reader = fetch.answer_shared(wanted, answer)
            except Exception:  # the other fetches are answered
                logger.exception("fetch_not_answered")
                continue
            if reader is not None:
                readers.append(reader)
        if end < len(self._waiting):
            asyncio.get_running_loop().call_soon(self._answer, answer, end)
        else:
            for queue in answer.queues:
                if queue.fetches:  # they joined it during the read
                    queue.hand_over()
        if readers:
            waiting[0][1].note_shared(answer, readers)

    def _resume_all(self) -> None:
        _resume_all([fetch for _, fetch in self._waiting])


def _encoded(topic: Topic, key: FetchKey, found: Slice) -> SharedAnswer:
    aborted = list(found.aborted) if key.isolation == READ_COMMITTED else None
    result = FetchPartition(
        key.partition, 0, found.high_watermark, found.last_stable_offset, found.log_start_offset,
        aborted, found.buffers, found.size,
    )  # fmt: skip
    return SharedAnswer(topic, key, found, SharedFetch(key.version, [(key.topic, [result])]), [])


def _resume_all(fetches: list[SharingFetch], start: int = 0) -> None:
    """Resume each, the first ones now."""
    end = start + RESUMED_PER_TICK
    if end < len(fetches):
        asyncio.get_running_loop().call_soon(_resume_all, fetches, end)
    for fetch in fetches[start:end]:
        try:
            fetch.resume()
        except Exception:  # the other fetches continue
            logger.exception("fetch_not_resumed")
