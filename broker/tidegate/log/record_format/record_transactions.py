"""Transactions in format `record`: batches are staged beside the stream, and appended when their transaction commits.

Redis programs read an entry at once, so what is in the stream is committed: read_committed reads as read_uncommitted,
and the last stable offset is the high watermark. Offsets are those of the commit; Produce answers -1, as for acks=0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from tidegate.errors import InvalidRecord, KafkaError
from tidegate.log.outgoing import Appended, KnownTransaction
from tidegate.records.control import MarkerType, read_marker
from tidegate.store.script_lanes import WRITES
from tidegate.store.scripts import Script

if TYPE_CHECKING:
    from tidegate.log.record_format.record_stream import RecordStream
    from tidegate.records.batch import Batch

STAGE_RECORDS: Final = Script("records/stage_records")
END_TRANSACTION: Final = Script("records/end_transaction")

STAGED_RECORDS_MAX: Final = 20_000
"""Records of one transaction in one partition, as of a batch: one script appends them, and Redis does nothing else."""
STAGED_BYTES_MAX: Final = 16 << 20
NO_OFFSET: Final = -1
_NONE_OPEN: Final = -2
"""Instead of the time of the transaction before, as far as an administrator knows: no staged batch follows it."""


class RecordListTooLarge(KafkaError):
    """A transaction has more records or bytes in a partition than one script appends."""

    code = ErrorCode.record_list_too_large


async def end_transaction(log: RecordStream, batch: Batch, known: KnownTransaction | None) -> Appended:
    """Append or drop what the producer of a marker has staged; once, whoever repeats it. `known`: of that transaction.

    Raises UnknownTopicOrPartition, InvalidProducerEpoch, InvalidTxnState, StoreUnavailable.
    """
    marker = read_marker(batch.buffer)
    if marker is None:
        raise InvalidRecord("a control batch without a marker")
    keys = log.keys
    behind_ms: int | str = ""
    if known is not None:
        behind_ms = known.ended_ms if known.start >= 0 else _NONE_OPEN
    appended, lost = await log.run_on(
        WRITES, END_TRANSACTION, [keys.log, keys.meta, keys.producers, keys.staged],
        log.ids.bits, int(log.log_append_time), keys.wake, log.writer.name,
        marker.producer_id, marker.producer_epoch, marker.ended_ms, int(marker.type is MarkerType.COMMIT),
        behind_ms,
    )  # fmt: skip
    if lost:
        log.lost_staged(marker.producer_id, int(lost))
    if appended:
        log.appended()
    return Appended(NO_OFFSET, NO_OFFSET, 0, log.leader_epoch)
