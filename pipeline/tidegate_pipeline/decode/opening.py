"""Open a stored batch: header, CRC, codec; the records area, decompressed and bounded.

`tidegate.records` opens every batch rightly. Here lz4 and zstd have quicker ways for the usual small batch: a
decompressor that is kept, and one call where the output cannot pass the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

import lz4.frame
import zstandard

from tidegate.errors import CorruptMessage, InvalidRecord
from tidegate.records import compression
from tidegate.records.batch import RECORD_BYTES_MIN, Batch, Codec
from tidegate.records.batch_header import HEADER_BYTES

TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
"""What Spark's timestamps, microseconds in 64 bits, can hold."""

_LZ4_EXPANSION_MAX: Final = 255
_LZ4_FLAGS_AT: Final = 4
_LZ4_HAS_SIZE: Final = 0x08
_LZ4_SIZE_AT: Final = 6
_SIZE: Final = Struct("<Q")
_ZSTD_FIRST_GUESS: Final = 64 << 10
_ZSTD_GUESS_FACTOR: Final = 16


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One whole batch as it is stored. Its offset is `base_offset`; the one in its header is ignored."""

    buffer: bytes | memoryview
    base_offset: int


@dataclass(frozen=True, slots=True)
class CorruptBatch:
    """A batch without rows, and the reason. `last_offset` is from its header, at least `base_offset`."""

    base_offset: int
    last_offset: int
    reason: str
    batch: bytes


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch with a valid header; `area` holds its decompressed records."""

    batch: Batch
    area: bytes | memoryview


class Opener:
    """Opens batches; keeps a decompressor, so it belongs to one thread."""

    def __init__(self, decoded_batch_max: int) -> None:
        """`decoded_batch_max` is the most bytes that the records of one batch may have."""
        self._bytes_max = decoded_batch_max
        self._zstd = zstandard.ZstdDecompressor()

    def open(self, stored: StoredBatch) -> OpenBatch:
        """Raises CorruptMessage, InvalidRecord."""
        batch = Batch.parse(stored.buffer)
        if batch.size != len(stored.buffer):
            raise InvalidRecord(f"the record batch has {batch.size} bytes, {len(stored.buffer)} are stored")
        batch.verify_crc()
        batch.base_offset = stored.base_offset
        _check_header(batch)
        if batch.is_control or not batch.record_count:
            return OpenBatch(batch, b"")
        area = self._decompress(batch.codec, batch.records)
        if len(area) > self._bytes_max:
            raise CorruptMessage(f"the records of the batch are larger than {self._bytes_max} bytes")
        if batch.record_count * RECORD_BYTES_MIN > len(area):
            raise InvalidRecord(f"{batch.record_count} records do not fit into {len(area)} bytes")
        return OpenBatch(batch, area)

    def _decompress(self, codec: int, data: memoryview) -> bytes | memoryview:
        if codec == Codec.NONE:
            return data
        if codec == Codec.ZSTD:
            return self._zstd_frame(data)
        if codec == Codec.LZ4 and self._lz4_fits(data):
            try:
                return lz4.frame.decompress(data)  # type: ignore[no-any-return]
            except RuntimeError as error:
                raise CorruptMessage(f"the records of the batch cannot be decompressed: {error}") from error
        return compression.decompress(codec, data, self._bytes_max)

    def _lz4_fits(self, data: memoryview) -> bool:
        if len(data) < _LZ4_SIZE_AT + _SIZE.size or len(data) * _LZ4_EXPANSION_MAX > self._bytes_max:
            return False
        has_size = data[_LZ4_FLAGS_AT] & _LZ4_HAS_SIZE
        return not has_size or _SIZE.unpack_from(data, _LZ4_SIZE_AT)[0] <= self._bytes_max

    def _zstd_frame(self, data: memoryview) -> bytes | memoryview:
        try:
            size = zstandard.frame_content_size(data)
            if size > self._bytes_max:
                raise CorruptMessage(f"the records of the batch are larger than {self._bytes_max} bytes")
            guess = min(max(_ZSTD_FIRST_GUESS, _ZSTD_GUESS_FACTOR * len(data)), self._bytes_max)
            return self._zstd.decompress(data, guess)
        except zstandard.ZstdError:  # larger than guessed, or broken: the broker's way finds out
            return compression.decompress(Codec.ZSTD, data, self._bytes_max)


def _check_header(batch: Batch) -> None:
    if batch.codec > Codec.ZSTD:
        raise CorruptMessage(f"unknown compression codec {batch.codec}")
    if batch.record_count < 0 or batch.last_offset_delta + 1 < batch.record_count:
        raise InvalidRecord(f"{batch.record_count} records, but the last offset delta is {batch.last_offset_delta}")
    if not batch.record_count and batch.size > HEADER_BYTES:
        raise InvalidRecord("bytes follow the header of an empty batch")
    if abs(batch.base_timestamp) > TIMESTAMP_MS_MAX or abs(batch.max_timestamp) > TIMESTAMP_MS_MAX:
        raise InvalidRecord("a timestamp of the batch is beyond what Spark can hold")


def corrupt(stored: StoredBatch, error: Exception) -> CorruptBatch:
    """What is known of a batch that could not be read."""
    try:
        last_offset = stored.base_offset + Batch.parse(stored.buffer).last_offset_delta
    except (CorruptMessage, InvalidRecord):
        last_offset = stored.base_offset
    return CorruptBatch(stored.base_offset, max(last_offset, stored.base_offset), str(error), bytes(stored.buffer))
