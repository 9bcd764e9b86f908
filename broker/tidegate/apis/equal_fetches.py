"""Fetches that equal one that waits: each joins its queue, without partitions, listener and timer of its own.

All readers at the end of one partition send the same request. The first one is evaluated and waits; while nothing
changes, the others would find the same. Records for it are sent to its queue too (`waiting_fetches`). If it ends in
another way (its time is over, its client disconnects), the next one of the queue is evaluated and takes its place.
Equal fetches wait equally long, so the time of the first one is over first. Sessions differ by client: not for them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Protocol

import structlog

from tidegate.apis.call import BrokerContext, Call
from tidegate.apis.fetch_sessions import SharedAnswer, Wanted
from tidegate.apis.slices import run_slice
from tidegate.log.owners import Connection

logger = structlog.get_logger()

_EVALUATED_MAX: Final = 100
"""Fetches of a queue that are evaluated without a pause: a few ms."""


class FirstFetch(Protocol):
    """The fetch that a queue waits for; `queue` is None until one joins."""

    queue: FetchQueue | None

    def equals(self, call: Call) -> bool:
        """Whether an equal request of this client would find the same now."""

    def open_queue(self) -> FetchQueue:
        """Set `queue` to an empty one."""

    def adopt(self, queue: FetchQueue) -> bool:
        """Have a queue wait for this fetch; False if it does not wait."""


class FetchQueue:
    """The fetches that equal one that waits, in order of arrival.

    `begin(call, deadline)` evaluates a fetch, which waits then or is answered; `deadline` by the loop's time.
    """

    __slots__ = ("begin", "fetches", "min_bytes", "wait_s")

    def __init__(self, wait_s: float, min_bytes: int, begin: Callable[[Call, float], FirstFetch]) -> None:
        self.wait_s = wait_s
        self.min_bytes = min_bytes
        self.begin = begin
        self.fetches: OrderedDict[EqualFetch, None] = OrderedDict()

    def hand_over(self) -> None:
        """The fetch waits no longer: evaluate the next ones until one waits, which the rest waits for then."""
        for fetch in list(islice(self.fetches, _EVALUATED_MAX)):
            first = fetch.begin()
            if first is not None and first.adopt(self):
                return
        if self.fetches:
            run_slice(self.hand_over)


class EqualFetch:
    """A fetch in a queue; `deadline_s` is the loop's time when waiting ends."""

    __slots__ = ("_call", "_deadline_s", "_queue")

    def __init__(self, call: Call, deadline_s: float, queue: FetchQueue) -> None:
        self._call = call
        self._deadline_s = deadline_s
        self._queue: FetchQueue | None = queue

    def begin(self) -> FirstFetch | None:
        """Leave the queue and evaluate the fetch by itself; None if it has left."""
        queue = self._queue
        self.cancel()
        return None if queue is None else queue.begin(self._call, self._deadline_s)

    def resume(self) -> None:
        """Wait for what the first fetch finds, which is resumed too."""

    def answer(self) -> None:
        """Waiting is over: evaluate the fetch by itself, which does not wait then."""
        self.begin()

    def cancel(self) -> None:
        """Leave the queue."""
        queue, self._queue = self._queue, None
        if queue is not None:
            del queue.fetches[self]
            self._call.context.fetch_waits.leave(self._call.client.connection_id, self)

    def answer_shared(self, wanted: Wanted, answer: SharedAnswer) -> Connection | None:
        """Answer with records that were read for several fetches; None if the fetch has left the queue."""
        queue, call = self._queue, self._call
        if queue is None:
            return None
        if answer.found.size < queue.min_bytes:
            self.begin()
            return None
        self._queue = None
        del queue.fetches[self]
        call.context.fetch_waits.leave(call.client.connection_id, self)
        try:
            call.reply(answer.response.body)
        except Exception as error:
            logger.error("fetch_failed", exc_info=error)
            call.close(f"Fetch v{call.version} failed")
            return None
        return connection_of(call)

    def note_shared(self, answer: SharedAnswer, connections: Sequence[Connection]) -> None:
        """Report that the clients have received the records."""
        note_shared(self._call.context, answer, connections)


def join(call: Call, request: Any) -> bool:
    """Queue a fetch behind an equal one; False if there is none, or if it might not find the same.

    Equal requests are one object, because equal bodies are decoded once (`protocol.recent_requests`).
    """
    first: FirstFetch | None = call.context.first_fetches.get(id(request))
    if first is None or not first.equals(call):
        return False
    queue = first.queue or first.open_queue()
    fetch = EqualFetch(call, asyncio.get_running_loop().time() + queue.wait_s, queue)
    if call.context.fetch_waits.park(call.client.connection_id, fetch, call.draining):
        queue.fetches[fetch] = None
    return True


def connection_of(call: Call) -> Connection:
    """The connection of a request, as the mirror identifies it; one object until the client sends another id."""
    client = call.client
    connection = client.reader
    if connection is None or connection[0] != call.client_id:
        connection = client.reader = call.client_id or "", f"/{client.host}", client.connection_id
    return connection


def note_shared(context: BrokerContext, answer: SharedAnswer, connections: Sequence[Connection]) -> None:
    """Report that the clients at these connections have received the records of one read."""
    key, found = answer.key, answer.found
    context.usage.fetched_together(answer.topic, found.size, len(connections))
    if context.mirror is not None:
        context.mirror.fetched_together(
            answer.topic, key.partition, connections, key.offset, found.end_offset, found.bases
        )
