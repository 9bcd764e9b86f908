"""ShareFetch: acknowledge, acquire records and read them; wait while there are none (KIP-932).

A waiting fetch may be resumed by an append to one of its partitions, by records of its group that are released, and
when the first lock expires (`groups/share/wakeups.py`). A member that opens another session, closes its own, or
continues with it on another connection does not await the fetch that is under way: that one ends without records. Kafka
lets it acquire them, for nobody. Source: KafkaApis.handleShareFetchRequest, DelayedShareFetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Body, Call
from tidegate.apis.fetch_reading import BYTES_MAX
from tidegate.apis.registry import inline_api
from tidegate.apis.share_reading import ShareReading
from tidegate.apis.share_sessions import (
    Acknowledged,
    acknowledge,
    follow_connection,
    lock_duration,
    member_of,
    named,
)
from tidegate.apis.slices import SLICE
from tidegate.errors import InvalidRequest
from tidegate.groups.share.sessions import FINAL_EPOCH, FIRST_EPOCH, SharePartition, ShareSession
from tidegate.log.offload import ENCODED
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.share_writers import SharePartitionData
from tidegate.protocol.share_writers import share_fetch as share_fetch_response

if TYPE_CHECKING:
    from kio.schema.share_fetch.v2.request import ShareFetchRequest

RECORD_LIMIT: Final = 1
"""The acquire mode that never exceeds the limit of records (KIP-1206)."""
_ACQUIRE_MODES: Final = (0, RECORD_LIMIT)
_MS: Final = timedelta(milliseconds=1)

logger = structlog.get_logger()


@inline_api(
    ApiKey.SHARE_FETCH,
    first=1,
    last=2,
    away=ErrorCode.kafka_storage_error,
    exclusive=True,
    error=error_responses.share_records,
)
def share_fetch(call: Call, request: ShareFetchRequest) -> None:
    """Read records of a share group. v2: acquire modes (KIP-1206), renewal of locks (KIP-1222)."""
    keys, member_id = member_of(call, request)
    epoch, wanted = request.share_session_epoch, (partition for partition, _ in named(request))
    _check(request)
    sessions, connection_id = call.context.shares.sessions, call.client.connection_id
    added: set[SharePartition] = set()
    if epoch == FIRST_EPOCH:
        if any(batches for _, batches in named(request)):
            raise InvalidRequest("the first request of a share session acknowledges nothing")
        session = sessions.open(keys, member_id, connection_id, wanted)
        added = set(session.partitions)
    elif epoch == FINAL_EPOCH:
        session = sessions.close(keys, member_id)
    else:
        session = sessions.proceed(keys, member_id, epoch, connection_id)
        added = sessions.add(session, wanted)
        sessions.forget(session, _forgotten(request))
    follow_connection(call)
    call.answer_later(ShareFetching(call, request, session, added).run(), request)


def _check(request: ShareFetchRequest) -> None:
    if request.share_acquire_mode not in _ACQUIRE_MODES:
        raise InvalidRequest(f"the acquire mode is 0 or 1, not {request.share_acquire_mode}")
    limits = (request.max_wait // _MS, request.min_bytes, request.max_bytes, request.max_records)
    if request.is_renew_ack and any(limits):
        raise InvalidRequest("a request that renews locks fetches nothing: its limits are 0")


def _forgotten(request: ShareFetchRequest) -> Iterator[SharePartition]:
    for topic in request.forgotten_topics_data:
        if topic.topic_id is not None:
            yield from (SharePartition(topic.topic_id, index) for index in topic.partitions)


class ShareFetching:
    """One ShareFetch in progress."""

    def __init__(
        self, call: Call, request: ShareFetchRequest, session: ShareSession, added: set[SharePartition]
    ) -> None:
        self._call, self._request, self._session, self._added = call, request, session, added
        self._loop = asyncio.get_running_loop()
        wait_ms = min(request.max_wait // _MS, call.context.settings.connections_max_idle_ms)
        self._deadline_s = self._loop.time() + wait_ms / 1000
        self._changed = asyncio.Event()
        self._is_gone = self._is_superseded = False
        self.partitions: frozenset[SharePartition] = frozenset()
        """Those whose records it waits for."""
        session.on_superseded.add(self._supersede)
        self._stop_listening: list[Callable[[], None]] = [lambda: session.on_superseded.discard(self._supersede)]

    async def run(self) -> None:
        """Acknowledge, fetch, and reply once."""
        call, request = self._call, self._request
        try:
            asked = ((partition, batches) for partition, batches in named(request) if batches)
            acknowledged = await acknowledge(call, self._session, asked, request.is_renew_ack)
            results: dict[SharePartition, SharePartitionData] = {}
            if request.share_session_epoch == FINAL_EPOCH:
                await call.context.shares.close_session(self._session)
            elif request.max_records > 0 and not request.is_renew_ack:
                reading = self._new_reading()
                self.partitions = frozenset(reading.order)
                await self._read_or_wait(reading)
                if self._is_superseded:
                    await reading.undo()
                results = reading.results
            await self._reply(results, acknowledged)
        finally:
            self._end()

    def _new_reading(self) -> ShareReading:
        request = self._request
        max_bytes = max(1, min(request.max_bytes, BYTES_MAX))
        exact = request.share_acquire_mode == RECORD_LIMIT
        limits = request.max_records, max_bytes, request.batch_size
        return ShareReading(self._call, self._session, *limits, exact, lambda: self._is_superseded)

    # -- waiting

    async def _read_or_wait(self, reading: ShareReading) -> None:
        """Read until there is something to answer, or no time left."""
        wakeups, keys = self._call.context.shares.wakeups, self._session.keys
        group = wakeups.find(keys)
        before = None if group is None else group.listening(reading.order)
        await reading.read()
        if self._request.min_bytes <= 0 or self._is_over(reading) or not self._park():
            return
        group = wakeups.join(keys, self, reading.logs)
        self._stop_listening.append(lambda: wakeups.leave(keys, self))
        group.done(self, found=False, unlocks_in_ms=reading.unlocks_in_ms)
        if before is None or before != group.listening(reading.order):  # a change before it was followed
            self._changed.set()
        while await self._wait():
            self._changed.clear()
            await reading.read()
            group.done(self, found=reading.has_news, unlocks_in_ms=reading.unlocks_in_ms)
            if self._is_over(reading):
                return

    def _is_over(self, reading: ShareReading) -> bool:
        if reading.has_news or self._is_gone or self._is_superseded or self._call.draining.is_set():
            return True
        return self._loop.time() >= self._deadline_s or not reading.order

    def _park(self) -> bool:
        """Be resumed when the client is gone or the broker drains; False if the client is gone already."""
        call = self._call
        waits, connection_id = call.context.fetch_waits, call.client.connection_id
        if waits.follow(connection_id):
            call.client.when_closed(lambda: waits.close_connection(connection_id))
            call.client.when_closed(lambda: call.context.fetch_sessions.close_connection(connection_id))
        if not waits.park(connection_id, self, call.draining):
            self._is_gone = True
            return False
        self._stop_listening.append(lambda: waits.leave(connection_id, self))
        return True

    async def _wait(self) -> bool:
        """Wait until something may have changed; False if there is no time left, or nobody to answer."""
        if not self._changed.is_set():
            try:
                async with asyncio.timeout_at(self._deadline_s):
                    await self._changed.wait()
            except TimeoutError:
                return False
        return not self._is_gone and not self._is_superseded

    def resume(self) -> None:
        """Read again."""
        self._changed.set()

    def answer(self) -> None:
        """Answer with what there is: the broker drains."""
        self._changed.set()

    def _supersede(self) -> None:
        self._is_superseded = True
        self._changed.set()

    def cancel(self) -> None:
        """Stop, because the client disconnected."""
        self._is_gone = True
        self._changed.set()

    # -- answering

    async def _reply(self, results: dict[SharePartition, SharePartitionData], acknowledged: Acknowledged) -> None:
        if len(results) + len(acknowledged) + len(self._added) > SLICE:
            self._call.reply(await ENCODED.run(self._answer, results, acknowledged))
        else:
            self._call.reply(self._answer(results, acknowledged))

    def _answer(self, results: dict[SharePartition, SharePartitionData], acknowledged: Acknowledged) -> list[Body]:
        """What is new: records, errors, acknowledgements, and partitions that were added."""
        for partition, error in acknowledged.items():
            result = results.setdefault(partition, SharePartitionData(partition.index))
            if error is not None:
                result.acknowledge_error_code, result.acknowledge_error_message = error.code.value, error.message
        for partition in self._added:
            results.setdefault(partition, SharePartitionData(partition.index))
        topics: dict[bytes, list[SharePartitionData]] = {}
        for partition, result in results.items():
            topics.setdefault(partition.topic_id.bytes, []).append(result)
        return share_fetch_response(ErrorCode.none.value, None, lock_duration(self._session), topics.items())

    def _end(self) -> None:
        for stop in self._stop_listening:
            stop()
        if self._session.is_ended:  # what was acquired after the session was released
            self._call.context.shares.release_later(self._session)
