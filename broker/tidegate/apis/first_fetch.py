"""The half of a fetch that equal ones wait for (`equal_fetches`)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from tidegate.apis.call import Call
from tidegate.apis.equal_fetches import FetchQueue
from tidegate.apis.fetch_reading import BYTES_MAX, Reading
from tidegate.apis.fetch_sessions import (
    NO_SESSION,
    READ_COMMITTED,
    TOPIC_IDS_FROM,
    FetchSet,
    has_no_session,
)
from tidegate.log.record_format.record_groups import RecordReader

if TYPE_CHECKING:
    from kio.schema.fetch.v18.request import FetchRequest

_MILLISECOND: Final = timedelta(milliseconds=1)


class FirstFetching(Reading):
    """A fetch whose `queue` has the equal ones that wait for what it finds; None if there are none.

    `_request` is None if no fetch may wait for this one; `_woken` is set while it is to be resumed.
    """

    __slots__ = ("_is_first", "_min_bytes", "_request", "_session_id", "_woken", "queue")

    def __init__(
        self,
        call: Call,
        request: FetchRequest,
        fetch_set: FetchSet,
        session_id: int,
        deadline_s: float | None = None,
    ) -> None:
        max_bytes = max(0, min(request.max_bytes, BYTES_MAX))
        if deadline_s is None:
            most_s = wait_s(call, request)
            deadline_s = asyncio.get_running_loop().time() + most_s if most_s > 0 else 0.0
        super().__init__(call, fetch_set, request.isolation_level, max_bytes, deadline_s)
        self._request = request if session_id == NO_SESSION and len(fetch_set.wanted) == 1 else None
        self._min_bytes = min(request.min_bytes, max_bytes)
        self._session_id = session_id
        self._is_first = self._woken = False
        self.queue: FetchQueue | None = None

    @classmethod
    def begin_queued(cls, request: FetchRequest, call: Call, deadline_s: float) -> Self:
        """Evaluate a fetch that has waited for an equal one."""
        fetch_set = FetchSet(call.version >= TOPIC_IDS_FROM)
        fetch_set.want(request)
        fetching = cls(call, request, fetch_set, NO_SESSION, deadline_s)
        try:
            fetching.start()
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            fetching._fail_all(error)
        return fetching

    def equals(self, call: Call) -> bool:
        """Whether an equal request of this client would find the same now: nothing."""
        fetch_set, client = self._set, self._call.client
        if self._woken or self._reading or fetch_set.due or call.client.org != client.org or call.draining.is_set():
            return False
        (wanted,) = fetch_set.wanted.values()
        log = wanted.log
        if log is None or fetch_set.catalog_version != call.context.catalog.version:
            return False
        if wanted.leader_epoch >= 0 or wanted.last_epoch >= 0:
            known = log.known()
            if known is None or not known.agrees(wanted.offset, wanted.leader_epoch, wanted.last_epoch):
                return False
        return log.is_at_end(wanted.offset, self._isolation == READ_COMMITTED)

    def open_queue(self) -> FetchQueue:
        """The queue of the first fetch that joins, and of later ones."""
        request: Any = self._request
        self.queue = FetchQueue(wait_s(self._call, request), self._min_bytes, partial(self.begin_queued, request))
        return self.queue

    def adopt(self, queue: FetchQueue) -> bool:
        """Have the queue of an earlier fetch wait for this one; False if this one does not wait."""
        if not self._is_first:
            return False
        self.queue = queue
        return True

    def _note_first(self, request: FetchRequest) -> None:
        """Let equal fetches wait for this one, of one partition, while it has found nothing, and no error."""
        (wanted,) = self._set.wanted.values()
        result = wanted.result
        if (
            result is not None
            and not (result.size or result.error_code or isinstance(wanted.log, RecordReader))
            and has_no_session(request, self._call.version)
        ):
            self._is_first = True
            self._call.context.first_fetches[id(request)] = self
        elif self._is_first:
            self._call.context.first_fetches.pop(id(request), None)

    def _hand_over(self) -> None:
        """This fetch has ended by itself: evaluate the next one of its queue."""
        if self._is_first:
            self._is_first = False
            self._call.context.first_fetches.pop(id(self._request), None)
            if self.queue is not None:
                self.queue.hand_over()


def wait_s(call: Call, request: FetchRequest) -> float:
    """How long a fetch may wait for records."""
    return min(request.max_wait // _MILLISECOND, call.context.settings.connections_max_idle_ms) / 1000
