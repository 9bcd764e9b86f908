"""Produce: batches validated in Kafka's order, appended concurrently, answered together.

A partition's outcome is one tuple of the answer (`log_writers.produce`). A request needs no task and no future: the
log calls back, and the last partition's outcome sends the answer. Batches are decompressed only if their topic or
header requires it (records.validation, records.recompression). A topic that is not cached is read from the store once;
producing creates no topic. Source: KafkaApis.handleProduceRequest, UnifiedLog, LogValidator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode

from tidegate.apis.call import Call
from tidegate.apis.produce_answers import BATCHES_FROM, Outcome, Topics, encoded, outcome_of
from tidegate.apis.registry import inline_api
from tidegate.apis.slices import pause
from tidegate.apis.timeouts import Waiting
from tidegate.apis.transactional_produce import in_transaction
from tidegate.errors import (
    InvalidRecord,
    InvalidTopic,
    KafkaError,
    KafkaStorageError,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidegate.log.offload import ENCODED, PRODUCED
from tidegate.log.unresolved import LogUnreachable
from tidegate.memory import shares_of
from tidegate.protocol import error_responses
from tidegate.protocol.api_keys import ApiKey
from tidegate.protocol.codec import DecodeError
from tidegate.protocol.produce_request import Partition, ProduceRequest, read_produce
from tidegate.protocol.throttle_time import with_throttle_time
from tidegate.records.batch import Batch, parse_produced
from tidegate.records.batch_header import ATTRIBUTES_LOW_AT, HEADER_BYTES, INT64, PRODUCER_AT, TRANSACTIONAL
from tidegate.records.conversion import Limits, batch_of_messages, converted_inline
from tidegate.records.recompression import recompressed
from tidegate.records.validation import RecordRules, is_storable_unopened, open_and_check, open_inline
from tidegate.store.calls import error_of
from tidegate.store.memory_pressure import MemoryPressure
from tidegate.topics import names

if TYPE_CHECKING:
    from tidegate.log.append import Appended
    from tidegate.log.outgoing import InTransaction
    from tidegate.topics.catalog import Topic

logger = structlog.get_logger()

ACKS_ALL: Final = -1
DECOMPRESSED_BATCH_BYTES_MAX: Final = 128 << 20
"""Limit of memory for one decompressed batch: a small compressed batch can hold gigabytes of records."""
_ACKS: Final = (ACKS_ALL, 0, 1)
_COMPACT: Final = "compact"
_SLICE: Final = 200
"""Partitions of a request that are queued before other requests run: 12 ms if their logs must be opened, 60 us each."""
_ENCODED_INLINE_MAX: Final = 2_000
"""Topics and partitions of an answer that is encoded on the event loop: 3 ms."""
_LOG_APPEND_TIME: Final = "LogAppendTime"


@inline_api(ApiKey.PRODUCE, first=0, last=13, raw=True, away=ErrorCode.request_timed_out, error=error_responses.produce)
def produce(call: Call, body: memoryview | ProduceRequest) -> None:
    """Append batches; access control passes a request that it has read already.

    v0-2: message sets. v5: log start offset. v7: zstd. v8: record errors. v9: flexible. v13: topic ids.
    """
    try:
        request = body if isinstance(body, ProduceRequest) else read_produce(call.version, body)
    except DecodeError as error:
        call.close(f"malformed Produce v{call.version}: {error}")
        return
    refused = _refused_as_a_whole(request, call.version)
    if refused is not None:
        Producing(call, request).refuse(refused)
        return
    Producing(call, request).start()


def _refused_as_a_whole(request: ProduceRequest, version: int) -> ErrorCode | None:
    """The error of the whole request, if it has one (6.1 of Kafka's order: acks, then transactions)."""
    if request.acks not in _ACKS:
        return ErrorCode.invalid_required_acks
    if version < BATCHES_FROM:
        return None
    producer_ids = {
        INT64.unpack_from(records, PRODUCER_AT)[0]
        for _, partitions in request.topics
        for _, records in partitions
        if records is not None and len(records) >= HEADER_BYTES and records[ATTRIBUTES_LOW_AT] & TRANSACTIONAL
    }
    if producer_ids and not request.transactional_id:
        is_absent = request.transactional_id is None
        return ErrorCode.transactional_id_authorization_failed if is_absent else ErrorCode.invalid_request
    return ErrorCode.invalid_producer_id_mapping if len(producer_ids) > 1 else None


class _MustOpen(Exception):
    """The batch takes too long to be opened, or compressed again, on the event loop; `work` opens it."""

    def __init__(self, work: Callable[[], Batch]) -> None:
        self.work = work


class Producing:
    """One request in progress: `_outcomes` has an element for each partition, None until its outcome is known."""

    __slots__ = (
        "_call", "_delay_s", "_left", "_outcomes", "_request", "_unreachable", "answered", "deadline_s", "watched"
    )  # fmt: skip

    def __init__(self, call: Call, request: ProduceRequest) -> None:
        self._call = call
        self._request = request
        self._outcomes: list[Outcome | None] = []
        self._left = 1  # one for the queueing itself, so that the answer waits until all batches are queued
        self._unreachable = ""
        self._delay_s = 0.0
        self.answered = False
        self.deadline_s = 0.0
        self.watched: dict[Waiting, None] | None = None

    def refuse(self, code: ErrorCode) -> None:
        """Answer every partition with the same error."""
        for _, partitions in self._request.topics:
            for index, _ in partitions:
                self._outcomes.append((index, code.value, -1, -1, -1, (), None))
        self._answer()

    def start(self) -> None:
        """Queue every batch; answer when the last outcome is known, or at the client's timeout."""
        call = self._call
        org, catalog = call.client.org, call.context.catalog
        now_ms = int((perf_counter() + call.context.store.clock.offset_s) * 1000)  # as `now_ms()`, without its call
        topics = self._request.topics
        if len(topics) > 1:
            topics = [one for one in topics if one[1]]  # without partitions there is nothing to look up
        count = len(topics[0][1]) if len(topics) == 1 else sum([len(partitions) for _, partitions in topics])
        if count > _SLICE:
            call.run_alone()
            call.context.tasks.start(self._start_in_slices(topics, count))
            return
        for key, partitions in topics:
            topic = catalog.get(org, key) if isinstance(key, str) else catalog.by_id(org, UUID(bytes=key))
            place = len(self._outcomes)
            self._outcomes += [None] * len(partitions)
            self._left += len(partitions)
            if topic is None or topic.name in names.INTERNAL:
                call.run_alone()  # later requests may find the topic in the cache
                call.context.tasks.start(self._find_topic(key, partitions, place))
            else:
                self._file_topic(topic, partitions, place, now_ms)
        self._left -= 1
        if self._left:
            call.context.produce_timeouts.watch(self, self._request.timeout_ms)
        else:
            self._answer()

    async def _start_in_slices(self, topics: Topics, count: int) -> None:
        """Do the same for a large request, in slices."""
        call = self._call
        org, catalog, now_ms = call.client.org, call.context.catalog, call.context.store.clock.now_ms()
        self._outcomes = [None] * count
        self._left += count
        call.context.produce_timeouts.watch(self, self._request.timeout_ms)
        place = 0
        for key, partitions in topics:
            topic = catalog.get(org, key) if isinstance(key, str) else catalog.by_id(org, UUID(bytes=key))
            for at in range(0, len(partitions), _SLICE):
                part = partitions[at : at + _SLICE]
                if topic is None or topic.name in names.INTERNAL:
                    await self._find_topic(key, part, place)
                else:
                    self._file_topic(topic, part, place, now_ms)
                place += len(part)
                await pause()
                if self.answered:
                    return  # timed out: later requests may be in progress now, and order would be lost
        self._left -= 1
        if not self._left:
            self._answer()

    async def _find_topic(self, key: str | bytes, partitions: Sequence[Partition], place: int) -> None:
        """Refresh a topic once that may be newer than the cache."""
        catalog, org = self._call.context.catalog, self._call.client.org
        error: KafkaError = UnknownTopicOrPartition() if isinstance(key, str) else UnknownTopicId()
        topic = None
        try:
            if key in names.INTERNAL:
                raise InvalidTopic(f"{key!r} is an internal topic: clients cannot write to it")
            found = await (catalog.find(org, key) if isinstance(key, str) else catalog.find_by_id(org, UUID(bytes=key)))
            if found is not None:
                names.check_changeable(found.name)
            topic = found
        except Exception as failure:  # noqa: BLE001 - becomes the partitions' error
            error = error_of(failure, "produce_failed")
        if self.answered:
            return  # timed out: nothing was appended, and nothing will be
        if topic is not None:
            self._file_topic(topic, partitions, place, self._call.context.store.clock.now_ms())
            return
        for i, (index, _) in enumerate(partitions):
            self._done(place + i, index, error)

    def _file_topic(self, topic: Topic, partitions: Sequence[Partition], place: int, now_ms: int) -> None:
        context, acks_all = self._call.context, self._request.acks == ACKS_ALL
        logs, served, pressure = context.logs, context.usage.topic(topic), context.memory_pressure
        served.produce_requests += 1
        for i, (index, records) in enumerate(partitions, place):
            served.produced_bytes += len(records or b"")
            try:
                if not 0 <= index < topic.partition_count:
                    raise UnknownTopicOrPartition()
                if pressure.is_high:
                    self._yield_to(pressure, topic.org, logs.partition(topic, index).keys.log)
                batch = self._checked(topic, records, now_ms)
            except _MustOpen as found:
                self._call.run_alone()
                self._call.context.tasks.start(self._open_beside(topic, found, i, index))
                continue
            except Exception as error:  # noqa: BLE001 - becomes the partition's error
                self._done(i, index, error_of(error, "produce_failed"))
                continue
            batch.release_frame()
            transaction = self._transaction(topic, index, batch) if batch.attributes & TRANSACTIONAL else None
            log = logs.partition(topic, index)
            log.append(batch, _OnDone(self, i, index), acks_all=acks_all, transaction=transaction)

    def _yield_to(self, pressure: MemoryPressure, org: str, key: str) -> None:
        """Delay the answer while the key's server has little memory left. Raises KafkaStorageError if it has less."""
        if org in pressure.full_orgs:
            raise KafkaStorageError("the organisation's records fill what it may have (quota log_bytes_max)")
        delay_s = pressure.delay_s(key)
        if delay_s is None:
            raise KafkaStorageError("Redis uses nearly all of its maxmemory")
        self._delay_s = max(self._delay_s, delay_s)

    def _transaction(self, topic: Topic, index: int, batch: Batch) -> InTransaction:
        return in_transaction(self._call, self._request.transactional_id or "", topic, index, batch)

    async def _open_beside(self, topic: Topic, found: _MustOpen, place: int, index: int) -> None:
        """Check the records of a large batch in a thread, then append it; later requests wait, to preserve order."""
        try:
            batch = await PRODUCED.run(found.work)
            codec, level = topic.config.compression_codec, topic.config.compression_level
            if codec is not None and batch.codec != codec:
                sizes = topic.config.max_message_bytes, self._opened_bytes_max
                batch = await PRODUCED.run(recompressed, batch, codec, level, *sizes)
        except Exception as error:  # noqa: BLE001 - becomes the partition's error
            self._done(place, index, error_of(error, "produce_failed"))
            return
        if self.answered:
            return  # timed out: nothing was appended, and nothing will be
        batch.release_frame()
        log, acks_all = self._call.context.logs.partition(topic, index), self._request.acks == ACKS_ALL
        transaction = self._transaction(topic, index, batch) if batch.attributes & TRANSACTIONAL else None
        log.append(batch, _OnDone(self, place, index), acks_all=acks_all, transaction=transaction)

    @property
    def _opened_bytes_max(self) -> int:
        return min(DECOMPRESSED_BATCH_BYTES_MAX, shares_of(self._call.context.settings.memory_max).opened_batch)

    def _checked(self, topic: Topic, records: memoryview | None, now_ms: int) -> Batch:
        """The batch to append. Raises KafkaError, RecordsRefused, _MustOpen."""
        config = topic.config
        rules = RecordRules(
            _COMPACT in config.cleanup_policy,
            config.message_timestamp_type == _LOG_APPEND_TIME,
            now_ms - config.message_timestamp_before_max_ms,
            now_ms + config.message_timestamp_after_max_ms,
            config.record_bytes_max,
        )
        if self._call.version < BATCHES_FROM:
            batch = _converted(records, rules, config.max_message_bytes, now_ms, self._opened_bytes_max)
        else:
            batch = parse_produced(records, self._call.version, config.max_message_bytes)
            if batch.attributes & TRANSACTIONAL and batch.producer_id < 0:
                raise InvalidRecord("a transactional batch needs a producer id")
            if config.validates or not is_storable_unopened(batch, rules):
                opened = open_inline(batch, rules, DECOMPRESSED_BATCH_BYTES_MAX)
                if opened is None:
                    raise _MustOpen(partial(open_and_check, batch, rules, self._opened_bytes_max))
                batch = opened
        if config.compression_codec is not None and batch.codec != config.compression_codec:
            raise _MustOpen(lambda: batch)  # compressed again in a thread
        return batch

    def _done(self, place: int, index: int, outcome: Appended | KafkaError) -> None:
        if not self.answered:
            if isinstance(outcome, LogUnreachable):
                self._unreachable = str(outcome)
            self._outcomes[place] = outcome_of(index, outcome)
            self._left -= 1
            if not self._left:
                self._answer()

    def time_out(self) -> None:
        """Answer at the client's timeout; batches in progress may or may not be appended."""
        try:
            timed_out = RequestTimedOut("not appended within the request's timeout")
            place = 0
            for _, partitions in self._request.topics:
                for index, _ in partitions:
                    if self._outcomes[place] is None:
                        self._outcomes[place] = outcome_of(index, timed_out)
                    place += 1
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._fail(error)
        else:
            self._answer()

    def _answer(self) -> None:
        self.answered = True
        if self.watched is not None:
            del self.watched[self]
        call, request = self._call, self._request
        named, request.topics = request.topics, []  # releases the frame
        if self._unreachable:
            call.close(f"the log cannot be reached: {self._unreachable}")
            return
        if request.acks == 0:
            failed = [outcome for outcome in self._outcomes if outcome is not None and outcome[1]]
            if failed:
                call.close(f"Produce with acks=0 failed: {ErrorCode(failed[0][1]).name}")
            else:
                if self._delay_s:
                    call.mute(self._delay_s)
                call.drop()
            return
        if len(named) + len(self._outcomes) > _ENCODED_INLINE_MAX:
            call.context.tasks.start(self._reply_beside(named))
            return
        try:
            body = encoded(call.version, named, self._outcomes)
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._fail(error)
            return
        self._reply(body)

    async def _reply_beside(self, named: Topics) -> None:
        """Encode a large answer in a thread."""
        try:
            self._reply(await ENCODED.run(encoded, self._call.version, named, self._outcomes))
        except Exception as error:  # noqa: BLE001 - the client must not wait for ever
            self._fail(error)

    def _reply(self, body: bytes) -> None:
        call = self._call
        if self._delay_s:
            call.mute(self._delay_s)
            call.reply(with_throttle_time(ApiKey.PRODUCE, call.version, body, math.ceil(self._delay_s * 1000)))
        else:
            call.reply(body)

    def _fail(self, error: Exception) -> None:
        """Close the connection, for the answer cannot be made: the log or the timeout called, not the handler."""
        self.answered = True
        logger.error("produce_failed", exc_info=error)
        self._call.close(f"Produce v{self._call.version} failed")


def _converted(
    records: memoryview | None, rules: RecordRules, bytes_max: int, now_ms: int, opened_bytes_max: int
) -> Batch:
    """The batch to append for a message set. Raises KafkaError, RecordsRefused, _MustOpen."""
    batch = converted_inline(records, rules, bytes_max, now_ms)
    if batch is None:
        limits = Limits(opened_bytes_max)
        raise _MustOpen(partial(batch_of_messages, records, rules, bytes_max, now_ms, limits))
    return batch


class _OnDone:
    __slots__ = ("_index", "_place", "_producing")

    def __init__(self, producing: Producing, place: int, index: int) -> None:
        self._producing = producing
        self._place = place
        self._index = index

    def __call__(self, outcome: Appended | KafkaError) -> None:
        self._producing._done(self._place, self._index, outcome)
