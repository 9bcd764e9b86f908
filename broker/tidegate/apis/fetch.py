"""Fetch: long polls over one partition or thousands, with or without a session.

A request reads its due partitions (`fetch_reading`). It is answered if it has enough bytes, an error, or no time to
wait. Otherwise it subscribes to its partitions, and a change resumes reading of that partition only. While nothing
changes, a waiting fetch costs a timer. Source: KafkaApis.handleFetchRequest, ReplicaManager.readFromLog, DelayedFetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.equal_fetches import connection_of, join, note_shared
from tidegate.apis.fetch_message_sets import answer_message_sets
from tidegate.apis.fetch_reading import BATCHES_FROM, BY_ORDER
from tidegate.apis.fetch_sessions import (
    NO_SESSION,
    READ_COMMITTED,
    FetchKey,
    FetchSet,
    SharedAnswer,
    Wanted,
)
from tidegate.apis.first_fetch import FirstFetching
from tidegate.apis.mirroring import follow, note_fetched
from tidegate.apis.registry import inline_api
from tidegate.errors import ClusterAuthorizationFailed
from tidegate.log.owners import Connection
from tidegate.protocol import error_responses, log_writers
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.log_writers import Endpoint, FetchPartition

if TYPE_CHECKING:
    from kio.schema.fetch.v18.request import FetchRequest

SESSIONS_MAX: Final = 1_000
"""Limit of a broker's fetch sessions; beyond it a client fetches without a session, which only costs bandwidth."""


@inline_api(
    ApiKey.FETCH,
    first=0,
    last=18,
    away=ErrorCode.kafka_storage_error,
    safe_late=True,
    exclusive=True,
    error=error_responses.fetch,
)
def fetch(call: Call, request: Any) -> None:
    """Read batches.

    v0-3: message sets. v5: log start. v7: sessions. v9: leader epochs. v10: zstd. v12: divergence. v13: topic ids.
    v16: leaders (KIP-951).
    """
    context, connection_id = call.context, call.client.connection_id
    if request.replica_id >= 0:
        raise ClusterAuthorizationFailed("brokers of this cluster do not fetch from each other")
    if call.client.closed:
        return  # while access was checked
    call.client.fetched = True
    if context.fetch_waits.follow(connection_id):
        follow(context.mirror, call.client)
        call.client.when_closed(lambda: context.fetch_waits.close_connection(connection_id))
        call.client.when_closed(lambda: context.fetch_sessions.close_connection(connection_id))
    if join(call, request):
        return
    opened = context.fetch_sessions.open(request, call.version, connection_id, SESSIONS_MAX)
    if opened.fetch_set is None:
        call.reply(log_writers.fetch(call.version, opened.error.value, NO_SESSION, []))
    else:
        Fetching(call, request, opened.fetch_set, opened.session_id, full=opened.full).start()


class Fetching(FirstFetching):
    """One fetch in progress. `_full`: the answer has all partitions, not only those that changed."""

    __slots__ = ("_full", "_parked", "_timer", "_timer_s")

    def __init__(
        self,
        call: Call,
        request: FetchRequest,
        fetch_set: FetchSet,
        session_id: int,
        deadline_s: float | None = None,
        *,
        full: bool = True,
    ) -> None:
        super().__init__(call, request, fetch_set, session_id, deadline_s)
        self._full = full
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._parked = False

    # -- waiting

    def _reply_or_park(self) -> None:
        blocked, self._blocked = self._blocked, None
        if blocked is not None and not self._size and blocked.log is not None:
            budget = min(blocked.bytes_max, self._max_bytes)
            self._ask(blocked, blocked.log, blocked.offset, max(budget, 0), at_least_one=True)
        elif self._enough():
            self.answer()
        else:
            self._park()

    def _enough(self) -> bool:
        if self._urgent or self._size >= self._min_bytes or not self._set.wanted:
            return True
        return self._deadline_s <= self._loop.time() or self._call.draining.is_set()

    def _park(self) -> None:
        call = self._call
        if not self._parked:
            if not call.context.fetch_waits.park(call.client.connection_id, self, call.draining):
                self.cancel()
                return
            self._parked = True
            self._set.waiter = self
        if self._timer is None or self._timer_s > self._deadline_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_s = self._loop.call_at(self._deadline_s, self.answer), self._deadline_s
        for wanted in self._todo:
            if wanted.result is not None and not wanted.result.error_code:
                self._set.listen(wanted, call.context.log_ends)
        if self._set.due:
            self.wake()
        if self._request is not None:
            self._note_first(self._request)

    def wake(self) -> None:
        """A partition has changed: resume at the end of the tick."""
        if not self._woken and self._parked:
            self._woken = True
            self._call.context.fetch_waits.wake(self)

    def resume(self) -> None:
        """Resume reading the partitions that changed."""
        self._woken = False
        if not (self._answered or self._reading or self._filling_later) and self._set.due:
            try:
                self._begin()
            except Exception as error:  # noqa: BLE001 - the client must not wait for ever
                self._fail_all(error)

    def cancel(self) -> None:
        """Stop, because the client disconnected."""
        self._answered = True
        if self._timer is not None:
            self._timer.cancel()
        self._set.waiter = None
        self._set.close()
        self._hand_over()

    # -- answering

    def answer(self) -> None:
        """Answer with the records read so far."""
        if not self._answered:
            self._end_wait()
            self._answer()
            self._hand_over()

    def _answer(self) -> None:
        call = self._call
        try:
            topics: dict[str | bytes, list[FetchPartition]] = {}
            reported = self._reported()
            if call.version < BATCHES_FROM:
                self._set.close()
                call.context.tasks.start(answer_message_sets(call, reported, self._max_bytes))
                return
            for wanted in reported:
                assert wanted.result is not None
                topics.setdefault(wanted.key, []).append(wanted.result)
            leaders = self._leaders(reported) if self._names_leaders else ()
            body = log_writers.fetch(
                call.version, ErrorCode.none.value, self._session_id, list(topics.items()), leaders
            )
            note_fetched(call, reported)
            call.context.usage.fetched(
                (wanted.log.topic, wanted.result.size)
                for wanted in reported
                if wanted.log is not None and wanted.result is not None and wanted.result.size
            )
            if self._session_id == NO_SESSION:
                self._set.close()
            else:
                self._remember()
            call.reply(body)
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._fail_all(error)

    def _leaders(self, reported: Sequence[Wanted]) -> list[Endpoint]:
        """The addresses of leaders that errors name, as the client's listener has them."""
        node_ids = {one.result.leader[0] for one in reported if one.result and one.result.leader}
        listener = self._call.client.listener
        return [
            (broker.node_id, *broker.endpoint(listener), broker.rack)
            for broker in self._call.context.broker_lease.nameable(listener)
            if broker.node_id in node_ids
        ]

    def _end_wait(self) -> None:
        self._answered = True
        if self._parked:
            self._set.waiter = None
            self._call.context.fetch_waits.leave(self._call.client.connection_id, self)
            if self._timer is not None:
                self._timer.cancel()

    # -- answering together with other fetches (`waiting_fetches`)

    def shared_key(self, wanted: Wanted) -> FetchKey | None:
        """What the answer depends on if this partition has records now; None if on more than this partition."""
        fetch_set, call = self._set, self._call
        if self._size or self._reading or self._filling_later or self._woken or not self._parked:
            return None
        if len(fetch_set.due) != 1 or call.version < BATCHES_FROM or (self._full and len(fetch_set.wanted) != 1):
            return None
        if len(self._evaluated) > 1 or wanted not in self._evaluated:
            for other in self._evaluated:  # of an incremental fetch
                if other is not wanted and (other.result is None or _is_news(other, other.result)):
                    return None
        return FetchKey(
            call.version, self._isolation, wanted.key, wanted.index, wanted.offset,
            max(min(wanted.bytes_max, self._max_bytes), 0), wanted.leader_epoch, wanted.last_epoch,
        )  # fmt: skip

    def answer_shared(self, wanted: Wanted, answer: SharedAnswer) -> Connection | None:
        """Answer with records that were read for several fetches; None if the fetch has gone on meanwhile."""
        fetch_set, call, found = self._set, self._call, answer.found
        if self._answered or wanted not in fetch_set.due:
            return None
        if len(fetch_set.due) != 1 or found.size < self._min_bytes:
            self.resume()
            return None
        self._end_wait()
        if self._is_first:
            self._is_first = False
            call.context.first_fetches.pop(id(self._request), None)
            if self.queue is not None:
                answer.queues.append(self.queue)
        try:
            if self._session_id == NO_SESSION:
                fetch_set.close()
                call.reply(answer.response.body)
            else:
                wanted.sent_high_watermark, wanted.sent_log_start = found.high_watermark, found.log_start_offset
                wanted.result = None
                fetch_set.rotate(wanted)
                call.reply(answer.response.in_session(self._session_id))
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._fail_all(error)
            return None
        return connection_of(call)

    def note_shared(self, answer: SharedAnswer, connections: Sequence[Connection]) -> None:
        """Report that the clients have received the records."""
        note_shared(self._call.context, answer, connections)

    # -- the partitions of an answer

    def _reported(self) -> list[Wanted]:
        """All partitions, or in an incremental answer those that changed since the last answer."""
        if self._full:
            return [wanted for wanted in self._set.wanted.values() if wanted.result is not None]
        reported = [
            wanted for wanted in self._evaluated if wanted.result is not None and _is_news(wanted, wanted.result)
        ]
        return sorted(reported, key=BY_ORDER)

    def _remember(self) -> None:
        """Update the session: what was answered, the order of partitions, and the partitions to evaluate again."""
        fetch_set = self._set
        for wanted in self._evaluated:
            result = wanted.result
            if result is None:
                fetch_set.due[wanted] = None
                continue
            wanted.sent_high_watermark = -1 if result.error_code else result.high_watermark
            wanted.sent_log_start = result.log_start_offset
            if result.size:
                fetch_set.rotate(wanted)
            if wanted in self._reading or result.size or not self._is_at_end(wanted, result):
                wanted.result = None
                fetch_set.due[wanted] = None
            else:
                fetch_set.listen(wanted, self._call.context.log_ends)

    def _is_at_end(self, wanted: Wanted, result: FetchPartition) -> bool:
        end = result.last_stable_offset if self._isolation == READ_COMMITTED else result.high_watermark
        return not result.error_code and result.diverging is None and wanted.offset >= end


def _is_news(wanted: Wanted, result: FetchPartition) -> bool:
    return bool(
        result.size
        or result.error_code
        or result.diverging is not None
        or result.high_watermark != wanted.sent_high_watermark
        or result.log_start_offset != wanted.sent_log_start
    )
