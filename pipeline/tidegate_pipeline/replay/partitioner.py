"""Which partition Kafka's default partitioner gives a key. Source: Utils.murmur2, BuiltInPartitioner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit MurmurHash2, unsigned."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """The partition of a key."""
    return partition_of_hash(murmur2(key), partition_count)


def partition_of_hash(key_hash: int, partition_count: int) -> int:
    """The partition of a key with this `murmur2`."""
    return (key_hash & 0x7FFFFFFF) % partition_count


def murmur2_of(keys: pa.BinaryArray) -> NDArray[np.uint32]:
    """`murmur2` of each key of a column; a null is hashed as an empty key."""
    count, offset = len(keys), keys.offset
    _, positions, data = keys.buffers()
    if not count or data is None:
        return np.full(count, murmur2(b""), np.uint32)
    places = np.frombuffer(positions, np.int32)[offset : offset + count + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8)
    starts, lengths = places[:-1], np.diff(places)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    multiplier = np.uint32(_M)
    rows: Any = np.arange(count)
    for word in range(int(lengths.max()) // 4):
        rows = rows[lengths[rows] >= 4 * (word + 1)]
        k = _little_endian(octets, starts[rows] + 4 * word, 4) * multiplier
        k = (k ^ k >> np.uint32(24)) * multiplier
        hashes[rows] = hashes[rows] * multiplier ^ k
    for rest in (1, 2, 3):
        rows = np.flatnonzero(lengths & 3 == rest)
        k = _little_endian(octets, starts[rows] + (lengths[rows] - rest), rest)
        hashes[rows] = (hashes[rows] ^ k) * multiplier
    hashes = (hashes ^ hashes >> np.uint32(13)) * multiplier
    return hashes ^ hashes >> np.uint32(15)


def _little_endian(octets: NDArray[np.uint8], places: NDArray[np.int64], size: int) -> NDArray[np.uint32]:
    value = octets[places].astype(np.uint32)
    for place in range(1, size):
        value |= octets[places + place].astype(np.uint32) << np.uint32(8 * place)
    return value
