"""Store a produced batch with the codec that its topic asks for (`compression.type`). Source: Kafka's LogValidator."""

from __future__ import annotations

from typing import Final

from tidegate.errors import MessageTooLarge
from tidegate.records.batch import Batch, Codec
from tidegate.records.batch_header import CODEC_BITS, HEADER, HEADER_BYTES, LENGTH_OVERHEAD
from tidegate.records.build import seal
from tidegate.records.compression import compress, decompress

CODECS: Final = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""Values of compression.type that name a codec; `producer` names none."""

_LENGTH, _ATTRIBUTES = 1, 5
"""Places in the header."""


def recompressed(batch: Batch, codec: int, level: int | None, batch_bytes_max: int, opened_bytes_max: int) -> Batch:
    """A copy of a checked batch with another codec; everything else of the header stays. It takes ms for a MB.

    Raises MessageTooLarge above max.message.bytes, RecordsTooLarge.
    """
    area = compress(codec, decompress(batch.codec, batch.records, opened_bytes_max), level)
    if HEADER_BYTES + len(area) > batch_bytes_max:
        raise MessageTooLarge(
            f"the record batch has {HEADER_BYTES + len(area)} bytes as {Codec(codec).name.lower()}, "
            f"the topic takes {batch_bytes_max}"
        )
    header = list(HEADER.unpack_from(batch.buffer))
    header[_LENGTH] = HEADER_BYTES + len(area) - LENGTH_OVERHEAD
    header[_ATTRIBUTES] = batch.attributes & ~CODEC_BITS | codec
    return Batch(memoryview(seal(bytearray(HEADER.pack(*header)) + area)))
