"""Append batches to a stream of format `record`: decoded here, judged and appended by one script.

The calls of a partition run one after another, and each takes what has queued meanwhile. A call whose reply was lost
is sent again under the same counter until the store's timeout: the script appends once. A call that got an error is
not: a script that failed may have appended some of its records, and would append them again.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import (
    FencedLeaderEpoch,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    KafkaError,
    MessageTooLarge,
    NotEnoughReplicasAfterAppend,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    StoreUnavailable,
    UnknownTopicOrPartition,
)
from tidegate.log.offload import PRODUCED
from tidegate.log.outgoing import Appended, InTransaction, OnAppended
from tidegate.log.record_format.record_transactions import (
    NO_OFFSET,
    STAGE_RECORDS,
    STAGED_BYTES_MAX,
    STAGED_RECORDS_MAX,
    RecordListTooLarge,
)
from tidegate.log.unresolved import Unresolved
from tidegate.records.batch import Batch
from tidegate.records.compression import RecordsTooLarge
from tidegate.records.entry_fields import fields_of
from tidegate.records.record import read_records
from tidegate.records.validation import INLINE_BYTES_MAX, INLINE_RECORDS_MAX
from tidegate.store.calls import error_of
from tidegate.store.link import Arg
from tidegate.store.outcome import StoreRefused
from tidegate.store.script_lanes import WRITES
from tidegate.store.scripts import Script

if TYPE_CHECKING:
    from tidegate.log.record_format.record_stream import RecordStream

APPEND_RECORDS: Final = Script("records/append_records")

RECORDS_MAX: Final = 20_000
"""Records of a batch: one script appends them, about 2 us each, and Redis does nothing else meanwhile."""
OPENED_BYTES_MAX: Final = 16 << 20
"""Decompressed bytes of a batch: all are arguments of one script."""
CALL_BYTES_MAX: Final = 1 << 20
CALL_RECORDS_MAX: Final = 5_000
"""What one call takes from the queue, beyond its first batch."""
_RETRY_S: Final = 0.1
_GAP_WAIT_S: Final = 0.5
"""How long a batch waits for the one before it, which may be under way at another broker."""
_GAP_RETRY_S: Final = 0.02
_APPENDED: Final = 0
_DUPLICATE: Final = 1
_FENCED: Final = 2
_BEHIND: Final = 3
_UNKNOWN_GAP: Final = 5
_OPEN_TRANSACTION: Final = 6
_UNCONFIRMED: Final = 7
_TOO_LARGE: Final = 8
_NO_TIME: Final = -1
_REFUSED: Final[dict[int, Callable[[], KafkaError]]] = {
    _FENCED: InvalidProducerEpoch,
    _BEHIND: OutOfOrderSequenceNumber,
    _OPEN_TRANSACTION: lambda: InvalidTxnState("the producer has an open transaction in the partition"),
    _TOO_LARGE: lambda: RecordListTooLarge(
        f"a transaction has at most {STAGED_RECORDS_MAX} records and {STAGED_BYTES_MAX} bytes in a partition"
    ),
}


class _Queued:
    """One batch that waits; `args` are its arguments of the script once it is decoded.

    `confirmed` is the producer's state before which the coordinator has confirmed the batch's transaction.
    """

    __slots__ = (
        "acks_all", "args", "batch", "confirmed", "gap_until_s", "is_final", "on_done", "size", "transaction",
    )  # fmt: skip

    def __init__(self, batch: Batch, on_done: OnAppended, acks_all: bool, transaction: InTransaction | None) -> None:
        self.batch = batch
        self.on_done = on_done
        self.acks_all = acks_all
        self.transaction = transaction
        self.confirmed = ""
        self.args: list[Arg] | None = None
        self.size = 0
        self.gap_until_s = 0.0
        self.is_final = False


class RecordAppends:
    """The appends of one partition on this broker."""

    def __init__(self, log: RecordStream) -> None:
        self._log = log
        self._queue: deque[_Queued] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed: KafkaError | None = None
        self._unresolved = Unresolved(math.inf)
        self._asking: dict[int, list[_Queued]] = {}
        """By producer: the batches that wait for the coordinator's answer about the first of them."""
        self._proofs = 0
        """Appended batches whose durability is being proved."""

    @property
    def is_idle(self) -> bool:
        """Whether no batch is queued, under way or unresolved."""
        busy = self._queue or self._task or self._asking or self._proofs
        return not busy and self._unresolved.is_empty(self._log.loop.time())

    def append(self, batch: Batch, on_done: OnAppended, acks_all: bool, transaction: InTransaction | None) -> None:
        """See `RecordLog.append`."""
        if self._closed is not None:
            self._log.loop.call_soon(on_done, self._closed)
            return
        self._queue.append(_Queued(batch, on_done, acks_all, transaction))
        self._start()

    def _start(self) -> None:
        if self._task is None and self._queue:
            self._task = self._log.loop.create_task(self._run())

    def close(self, reason: KafkaError) -> None:
        """Fail the queued batches; a call in progress ends by itself."""
        self._closed = reason
        queued, self._queue = [*self._queue, *(item for items in self._asking.values() for item in items)], deque()
        self._asking.clear()
        for item in queued:
            self._done(item, reason)

    async def _run(self) -> None:
        try:
            while self._queue:
                items = await self._take()
                if items:
                    await self._append(items)
        except Exception as error:  # noqa: BLE001 - later batches are appended
            failure = error_of(error, "record_append_failed")
            queued, self._queue = self._queue, deque()
            for item in queued:
                self._give_up(item, failure)
        finally:
            self._task = None

    async def _take(self) -> list[_Queued]:
        """The next batches for one call, decoded; those that cannot be decoded are answered."""
        items: list[_Queued] = []
        size = count = 0
        while self._queue:
            item = self._queue[0]
            if item.batch.producer_id in self._asking:
                self._set_aside(self._queue.popleft())
                continue
            if items and (item.transaction is None) != (items[0].transaction is None):
                break
            if item.args is None:
                try:
                    await _decode(item)
                except Exception as error:  # noqa: BLE001 - becomes the batch's error
                    if self._queue and self._queue[0] is item:  # else closed meanwhile
                        self._queue.popleft()
                        self._done(item, error_of(error, "record_append_failed"))
                    continue
                if not self._queue or self._queue[0] is not item:
                    break  # closed meanwhile
            size, count = size + item.size, count + item.batch.record_count
            if items and (size > CALL_BYTES_MAX or count > CALL_RECORDS_MAX):
                break
            self._queue.popleft()
            items.append(item)
        return items

    async def _append(self, items: list[_Queued]) -> None:
        stages = items[0].transaction is not None
        try:
            log_start, verdicts = await (self._stage(items) if stages else self._append_now(items))
        except Exception as error:  # noqa: BLE001 - becomes the batches' error
            failure = error_of(error, "record_append_failed")
            for item in items:
                self._give_up(item, failure)
            return
        self._answer(items, int(log_start), [tuple(map(int, verdict.split(b":"))) for verdict in verdicts])
        if any(item.gap_until_s for item in items):
            await asyncio.sleep(_GAP_RETRY_S)

    async def _append_now(self, items: list[_Queued]) -> list[Any]:
        log = self._log
        args: list[Arg] = [
            log.ids.bits, log.writer.name, log.writer.next(), int(log.log_append_time), log.keys.wake, len(items),
        ]  # fmt: skip
        for item in items:
            batch = item.batch
            args += (batch.producer_id, batch.producer_epoch, batch.base_sequence, int(item.is_final))
            args.append(batch.record_count)
            args += item.args or ()
        return await self._call(
            APPEND_RECORDS, [log.keys.log, log.keys.meta, log.keys.producers, log.keys.writers], args
        )

    async def _stage(self, items: list[_Queued]) -> list[Any]:
        log = self._log
        args: list[Arg] = [STAGED_RECORDS_MAX, STAGED_BYTES_MAX, len(items)]
        for item in items:
            batch = item.batch
            args += (batch.producer_id, batch.producer_epoch, batch.base_sequence, int(item.is_final))
            args += (item.confirmed, item.size, batch.record_count)
            args += item.args or ()
        return await self._call(STAGE_RECORDS, [log.keys.meta, log.keys.producers, log.keys.staged], args)

    async def _call(self, script: Script, keys: list[str], args: list[Arg]) -> list[Any]:
        """Raises RequestTimedOut if the batches may be in the log now or later, StoreRefused if they are not.

        The scripts read each key before they write: a key of another type stops them before that.
        """
        log, is_unknown = self._log, False
        until_s = log.loop.time() + log.patience_s
        while True:
            try:
                return await log.run_on(WRITES, script, keys, *args)
            except UnknownTopicOrPartition:
                raise
            except FencedLeaderEpoch:
                raise RequestTimedOut("a later append of this broker ran before") from None
            except StoreRefused as error:
                if is_unknown or (error.may_have_written and not error.is_wrong_type):
                    raise RequestTimedOut(error.message) from None
                raise
            except StoreUnavailable as error:
                is_unknown = True
                if log.loop.time() >= until_s or self._closed is not None:
                    raise RequestTimedOut(error.message) from None
            await asyncio.sleep(_RETRY_S)

    def _answer(self, items: list[_Queued], log_start: int, verdicts: list[tuple[int, ...]]) -> None:
        log, again, appended = self._log, [], False
        for item, (verdict, ms, sequence, _now) in zip(items, verdicts, strict=True):
            if verdict == _APPENDED and item.batch.base_sequence >= 0:
                self._unresolved.accepted(item.batch)
            if verdict in (_APPENDED, _DUPLICATE) and item.transaction is not None:
                self._appended(item, Appended(NO_OFFSET, _NO_TIME, log_start, log.leader_epoch))
            elif verdict in (_APPENDED, _DUPLICATE):
                appended = appended or verdict == _APPENDED
                first = ms << log.ids.bits | sequence
                done = Appended(first, ms if log.log_append_time else _NO_TIME, log_start, log.leader_epoch)
                self._appended(item, done)
            elif item.batch.producer_id in self._asking:
                self._set_aside(item)
            elif verdict == _UNCONFIRMED:
                self._ask(item, f"{ms}:{sequence}")
            elif verdict in _REFUSED:
                self._done(item, _REFUSED[verdict]())
            elif self._tries_again(item, verdict):
                again.append(item)
        self._queue.extendleft(reversed(again))
        if appended:
            log.appended()

    def _tries_again(self, item: _Queued, verdict: int) -> bool:
        """Whether to try a batch behind a gap again: the one before it may be under way; otherwise answer it."""
        now_s = self._log.loop.time()
        if not item.gap_until_s:
            item.gap_until_s = now_s + _GAP_WAIT_S
        if now_s < item.gap_until_s:
            return True
        failure = self._gap_failure(item, verdict)
        if failure is not None:
            self._give_up(item, failure)
            return False
        item.is_final = True
        return True

    def _gap_failure(self, item: _Queued, verdict: int) -> KafkaError | None:
        """The error for a batch whose predecessor did not arrive; None if it is the first of an unknown producer."""
        behind = self._unresolved.answer_behind_failed(item.batch, self._log.loop.time())
        if behind is not None:
            return behind
        if verdict != _UNKNOWN_GAP or (item.transaction is not None and item.transaction.from_zero):
            return OutOfOrderSequenceNumber()
        if self._log.may_lack_batches:
            return StoreUnavailable("Redis was away: batches before it may have been refused before they got here")
        return None

    # -- transactions

    def _set_aside(self, item: _Queued) -> None:
        item.gap_until_s, item.is_final = 0.0, False
        self._asking[item.batch.producer_id].append(item)

    def _ask(self, item: _Queued, state: str) -> None:
        """Ask the coordinator about the batch's transaction; `state` is the producer's as the script has read it."""
        producer_id = item.batch.producer_id
        self._asking[producer_id] = [item]

        def answered(failure: KafkaError | None) -> None:
            waiting = self._asking.pop(producer_id, [])  # nothing if the log was closed
            if failure is None:
                item.confirmed = state
            else:  # a batch of another epoch is of another instance of the producer
                epoch = item.batch.producer_epoch
                refused = [one for one in waiting if one.batch.producer_epoch == epoch]
                waiting = [one for one in waiting if one.batch.producer_epoch != epoch]
                for one in refused:
                    self._done(one, failure)
            self._queue.extendleft(reversed(waiting))
            self._start()

        if item.transaction is not None:
            item.transaction.confirm(answered)

    def _appended(self, item: _Queued, done: Appended) -> None:
        durability = self._log.durability
        if durability.immediate or not item.acks_all:
            self._done(item, done)
        else:
            self._proofs += 1
            durability.prove(self._log.lanes.node, lambda held: self._proved(item, done, held))

    def _proved(self, item: _Queued, done: Appended, held: bool) -> None:
        self._proofs -= 1
        if not held and item.batch.base_sequence >= 0:
            self._unresolved.unproved(item.batch, self._log.loop.time())
        self._done(item, done if held else NotEnoughReplicasAfterAppend())

    def _give_up(self, item: _Queued, error: KafkaError) -> None:
        """Answer with an error; if clients send the batch again after it, those behind it get the same until then."""
        if item.batch.base_sequence >= 0:
            self._unresolved.give_up(item.batch, error, self._log.loop.time())
        self._done(item, error)

    def _done(self, item: _Queued, outcome: Appended | KafkaError) -> None:
        self._log.guarded(item.on_done, outcome)


async def _decode(item: _Queued) -> None:
    """Set the arguments of a batch; a large one is decoded in a thread. Raises KafkaError."""
    batch = item.batch
    if batch.record_count > RECORDS_MAX:
        raise MessageTooLarge(f"a batch of {batch.record_count} records; format record takes {RECORDS_MAX}")
    try:
        if batch.record_count <= INLINE_RECORDS_MAX and batch.size <= INLINE_BYTES_MAX:
            try:
                item.args, item.size = _arguments(batch, INLINE_BYTES_MAX)
                return
            except RecordsTooLarge:
                pass
        item.args, item.size = await PRODUCED.run(_arguments, batch, OPENED_BYTES_MAX)
    except RecordsTooLarge:
        raise MessageTooLarge(f"the records of a batch have more than {OPENED_BYTES_MAX} bytes") from None
    except IndexError:
        raise InvalidRecord("a record is cut") from None


def _arguments(batch: Batch, bytes_max: int) -> tuple[list[Arg], int]:
    """For each record: timestamp, number of arguments, fields and values; and their bytes."""
    args: list[Arg] = []
    size = 0
    for record in read_records(batch, bytes_max):
        fields = fields_of(record)
        size += sum(map(len, fields))
        args += (record.timestamp, len(fields))
        args += fields
    return args, size
