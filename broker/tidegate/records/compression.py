"""Compress and decompress a records area: gzip, snappy (xerial or raw), lz4 frame, zstd; with a bound on the output.

A small batch can expand to terabytes. The output buffer therefore has a fixed size, grown by retrying up to the bound;
nothing is written beyond it. Source: Kafka's CompressionType, snappy-java's SnappyOutputStream (xerial framing).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, Final

from tidegate.errors import CorruptMessage
from tidegate.records.batch import Codec

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_LENGTH: Final = Struct(">i")
_FIRST_GUESS: Final = 64 * 1024
_GUESS_FACTOR: Final = 4
_OUTPUT_FULL: Final = "failed to write whole buffer"


class RecordsTooLarge(CorruptMessage):
    """The decompressed records exceed the caller's bound."""


@cache
def _cramjam() -> Any:
    """The codecs, imported by the first compressed batch: they take 1.5 MB."""
    import cramjam

    return cramjam


def _lz4_frame(data: bytes | memoryview, level: int | None = None) -> Any:
    """An lz4 frame of independent blocks: Java clients refuse others. Source: Kafka's Lz4BlockOutputStream.FLG."""
    cramjam = _cramjam()
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    return compressor.finish()


@cache
def _decompressors() -> dict[int, Callable[[Any, Any], int]]:
    cramjam = _cramjam()
    return {
        Codec.GZIP: cramjam.gzip.decompress_into,
        Codec.LZ4: cramjam.lz4.decompress_into,
        Codec.ZSTD: cramjam.zstd.decompress_into,
    }


@cache
def _compressors() -> dict[int, Callable[..., Any]]:
    cramjam = _cramjam()
    return {Codec.GZIP: cramjam.gzip.compress, Codec.LZ4: _lz4_frame, Codec.ZSTD: cramjam.zstd.compress}


def decompress(codec: int, data: bytes | memoryview, bytes_max: int) -> bytes | memoryview:
    """The records of an area, at most `bytes_max` bytes. Raises CorruptMessage."""
    if codec == Codec.NONE:
        return data
    cramjam = _cramjam()
    try:
        if codec == Codec.SNAPPY:
            return _unsnap(data, bytes_max)
        return _inflate(_decompressors()[codec], data, bytes_max)
    except KeyError as error:
        raise CorruptMessage(f"unknown compression codec {codec}") from error
    except cramjam.DecompressionError as error:
        raise CorruptMessage(f"the records of the batch cannot be decompressed: {error}") from error


def _inflate(into: Callable[[Any, Any], int], data: bytes | memoryview, bytes_max: int) -> memoryview:
    cramjam = _cramjam()
    size = min(max(_FIRST_GUESS, _GUESS_FACTOR * len(data)), bytes_max)
    source = bytes(data)
    while True:
        output = bytearray(size)
        try:
            return memoryview(output)[: into(source, output)]
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise
        if size >= bytes_max:
            raise RecordsTooLarge(f"the records of the batch are larger than {bytes_max} bytes")
        size = min(size * _GUESS_FACTOR, bytes_max)


def _unsnap(data: bytes | memoryview, bytes_max: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unsnap_block(data, bytes_max)
    blocks: list[bytes] = []
    position, left = len(_XERIAL_HEADER), bytes_max
    while position < len(data):
        if position + _LENGTH.size > len(data):
            raise CorruptMessage("a snappy block is cut")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(data):
            raise CorruptMessage("a snappy block is cut")
        block = _unsnap_block(data[position : position + length], left)
        blocks.append(block)
        left -= len(block)
        position += length
    return b"".join(blocks)


def _unsnap_block(data: bytes | memoryview, bytes_max: int) -> bytes:
    cramjam = _cramjam()
    block = bytes(data)
    if cramjam.snappy.decompress_raw_len(block) > bytes_max:
        raise RecordsTooLarge(f"the records of the batch are larger than {bytes_max} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))


def compress(codec: int, data: bytes | memoryview, level: int | None = None) -> bytes:
    """The area as producers send it, at a level or at the codec's default; snappy has xerial framing and no levels."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec != Codec.SNAPPY:
        compressor = _compressors()[codec]
        return bytes(compressor(data, level) if level is not None else compressor(data))
    cramjam = _cramjam()
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)
