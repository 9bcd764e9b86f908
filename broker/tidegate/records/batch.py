"""A view of a record batch (format v2): header fields, checks, CRC, offsets.

This module neither parses nor copies the records area.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from crc32c import crc32c

from tidegate.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    MessageTooLarge,
    UnsupportedCompressionType,
)
from tidegate.records.batch_header import (
    ATTRIBUTES_LOW_AT,
    CODEC_BITS,
    CONTROL,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    INT32,
    LENGTH_AT,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    PLACE,
    PLACE_BYTES,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
)

Buffer = bytes | bytearray | memoryview

RECORD_BYTES_MIN: Final = 7
"""One byte each for length, attributes, two deltas, key, value and header count."""
NO_PRODUCER_EPOCH: Final = -1

_LENGTH_MIN: Final = 14
"""Of a batch of any magic: `LegacyRecord.RECORD_OVERHEAD_V0`."""
_UNUSED_BYTES_MAX: Final = 512
_ZSTD_FIRST_PRODUCE_VERSION: Final = 7


class Codec(IntEnum):
    """Compression codec of a records area."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class Batch:
    """One batch: `buffer` has exactly its `size` bytes, unchanged; the other fields are read from its header.

    Timestamps in ms; `producer_id`, `producer_epoch` and `base_sequence` are -1 for producers without one.
    """

    __slots__ = (
        "attributes", "base_offset", "base_sequence", "base_timestamp", "buffer", "crc", "last_offset_delta",
        "leader_epoch", "max_timestamp", "producer_epoch", "producer_id", "record_count", "size",
    )  # fmt: skip

    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, buffer: memoryview) -> None:
        """`buffer` must be one whole batch of magic 2 with at least `HEADER_BYTES`; `parse` checks that."""
        self.buffer = buffer
        self.size = len(buffer)
        (
            self.base_offset, _, self.leader_epoch, _, self.crc, self.attributes, self.last_offset_delta,
            self.base_timestamp, self.max_timestamp, self.producer_id, self.producer_epoch, self.base_sequence,
            self.record_count,
        ) = HEADER.unpack_from(buffer)  # fmt: skip

    @classmethod
    def parse(cls, buffer: Buffer) -> Batch:
        """The first batch of the buffer; bytes after it are ignored.

        Raises InvalidRecord if there is no complete batch of magic 2, CorruptMessage if it is smaller than a header or
        of a magic that no batch has.
        """
        available = len(buffer)
        if available <= MAGIC_AT:
            raise InvalidRecord("no complete record batch")
        magic: int = buffer[MAGIC_AT]
        if magic != MAGIC:
            _check_length_and_magic(buffer)
            raise InvalidRecord(f"record batches of magic {magic} are not served, only {MAGIC}")
        size: int = INT32.unpack_from(buffer, LENGTH_AT)[0] + LENGTH_OVERHEAD
        if size < HEADER_BYTES:
            raise CorruptMessage(f"a record batch of {size} bytes is smaller than its header")
        if size > available:
            raise InvalidRecord("the record batch is not complete")
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        return cls(view if size == available else view[:size])

    @property
    def codec(self) -> int:
        """The compression codec; see `Codec`. 5-7 are not codecs."""
        return self.attributes & CODEC_BITS

    @property
    def is_log_append_time(self) -> bool:
        """Whether the timestamp type is LogAppendTime."""
        return self.attributes & TIMESTAMP_TYPE != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch (a marker, not data)."""
        return self.attributes & CONTROL != 0

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def records(self) -> memoryview:
        """The records area, compressed or not."""
        return self.buffer[HEADER_BYTES:]

    def verify_crc(self) -> None:
        """Raises CorruptMessage."""
        if crc32c(self.buffer[CRC_FROM:]) != self.crc:
            raise CorruptMessage("the CRC of the record batch is wrong")

    def release_frame(self) -> None:
        """Copy the bytes if they belong to a much larger buffer, so that a cache does not keep that in memory."""
        held: bytes | bytearray = self.buffer.obj  # type: ignore[assignment]
        if len(held) - self.size > max(self.size, _UNUSED_BYTES_MAX):
            self.buffer = memoryview(bytes(self.buffer))


def parse_produced(buffer: Buffer | None, version: int, batch_bytes_max: int) -> Batch:
    """Parse the single batch of a Produce partition and check its header, in Kafka's order.

    Bytes after it that are no complete batch are dropped, as Kafka drops them.
    `version` is Produce's, `batch_bytes_max` the topic's max.message.bytes. Raises InvalidRecord,
    UnsupportedCompressionType, MessageTooLarge, CorruptMessage, InvalidProducerEpoch. Source:
    ProduceRequest.validateRecords, UnifiedLog.analyzeAndValidateRecords, LogValidator.validateBatch.
    """
    if not buffer:
        raise InvalidRecord("the partition has no record batch")
    batch = Batch.parse(buffer)
    attributes = batch.attributes
    if batch.size != len(buffer) and _holds_batch(memoryview(buffer)[batch.size :]):
        raise InvalidRecord("a partition takes exactly one record batch")
    codec = attributes & CODEC_BITS
    if codec == Codec.ZSTD and version < _ZSTD_FIRST_PRODUCE_VERSION:
        raise UnsupportedCompressionType("zstd needs Produce v7")
    if batch.base_offset != 0:
        raise InvalidRecord(f"the base offset of a produced batch is 0, not {batch.base_offset}")
    if batch.size > batch_bytes_max:
        raise MessageTooLarge(f"the record batch has {batch.size} bytes, the topic takes {batch_bytes_max}")
    batch.verify_crc()
    if codec > Codec.ZSTD:
        raise CorruptMessage(f"unknown compression codec {codec}")
    _check_counts(batch, codec)
    return batch


def _holds_batch(rest: memoryview) -> bool:
    """Whether the bytes begin with a complete batch, of any magic. Raises CorruptMessage."""
    if len(rest) < LENGTH_OVERHEAD:
        return False
    _check_length_and_magic(rest)
    return bool(INT32.unpack_from(rest, LENGTH_AT)[0] + LENGTH_OVERHEAD <= len(rest))


def _check_length_and_magic(buffer: Buffer) -> None:
    """Raises CorruptMessage for those of no batch, as ByteBufferLogInputStream.nextBatchSize does."""
    (length,) = INT32.unpack_from(buffer, LENGTH_AT)
    if length < _LENGTH_MIN:
        raise CorruptMessage(f"a record batch of {length} bytes is smaller than any")
    if len(buffer) > MAGIC_AT and buffer[MAGIC_AT] > MAGIC:
        raise CorruptMessage(f"no record batch has magic {buffer[MAGIC_AT]}")


def _check_counts(batch: Batch, codec: int) -> None:
    count = batch.record_count
    if count <= 0 or batch.last_offset_delta + 1 != count:
        raise InvalidRecord(f"{count} records, but the last offset delta is {batch.last_offset_delta}")
    if batch.attributes & CONTROL:
        raise InvalidRecord("clients may not write control records")
    if batch.producer_id >= 0:
        if batch.base_sequence < 0:
            raise InvalidRecord("a batch with a producer id needs a base sequence")
        if batch.producer_epoch < NO_PRODUCER_EPOCH:
            raise InvalidProducerEpoch(f"producer epoch {batch.producer_epoch}")
    if codec == Codec.NONE and count * RECORD_BYTES_MIN > batch.size - HEADER_BYTES:
        raise InvalidRecord(f"{count} records do not fit into {batch.size - HEADER_BYTES} bytes")


def iter_headers(buffer: Buffer) -> Iterator[Batch]:
    """Each of several concatenated batches. Raises as `Batch.parse`, also if the last one is truncated."""
    rest = memoryview(buffer)
    while rest:
        batch = Batch.parse(rest)
        yield batch
        rest = rest[batch.size :]


def place(buffer: Buffer, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """A batch for serving: 16 new bytes with its base offset and leader epoch, and the rest without a copy."""
    view = memoryview(buffer)
    return PLACE.pack(base_offset, INT32.unpack_from(view, LENGTH_AT)[0], leader_epoch), view[PLACE_BYTES:]


def holds_zstd(buffers: Sequence[Buffer]) -> bool:
    """Whether a batch is compressed with zstd; a buffer is whole batches, or a batch's head (`place`) and the rest."""
    skip = False
    for i, buffer in enumerate(buffers):
        if skip:
            skip = False
            continue
        skip = len(buffer) == PLACE_BYTES
        if skip:
            if buffers[i + 1][ATTRIBUTES_LOW_AT - PLACE_BYTES] & CODEC_BITS == Codec.ZSTD:
                return True
            continue
        start = 0
        while start < len(buffer):
            if buffer[start + ATTRIBUTES_LOW_AT] & CODEC_BITS == Codec.ZSTD:
                return True
            start += LENGTH_OVERHEAD + int.from_bytes(buffer[start + LENGTH_AT : start + LENGTH_AT + 4])
    return False
