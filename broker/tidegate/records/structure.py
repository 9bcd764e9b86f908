"""Check the structure of a records area: every record complete, at its offset, no bytes after the last.

A correct CRC says nothing about the contents. A malformed batch in the log would stop every consumer of its partition,
so it is refused at Produce. The check reads lengths and offsets only: 0.6-0.8 us a record whatever its size, and some
5 us for a whole run of records of equal size. Source: Kafka's LogValidator, DefaultRecord.readFrom.
"""

from __future__ import annotations

from typing import Final

from tidegate.errors import InvalidRecord

_COPIED_BYTES_MAX: Final = 1 << 20
"""Areas up to this size are copied to bytes, which are indexed faster than a memoryview."""
_COPIED_RECORD_BYTES_MAX: Final = 1 << 10
"""Mean record size up to which the copy is cheaper than indexing the memoryview."""
_CHUNK: Final = 2
"""Records that are walked before a run is looked for; four times as many after each time without one."""
_RUN_MIN: Final = 8
_DELTA_ENDS: Final = (64, 8_192, 16_384)
"""Offset deltas below them have one, two and three bytes, as zigzag varints; larger ones are not checked in runs."""
_FIRST: Final = bytes(range(0x80, 0x100, 2)) * 256
_SECOND: Final = b"".join(bytes((byte,)) * 64 for byte in range(0x80))
_DELTA_BYTES: Final = (
    (bytes(range(0, 0x80, 2)),),
    (_FIRST, _SECOND),
    (_FIRST, bytes(byte | 0x80 for byte in _SECOND) * 2, bytes(8_192) + b"\x01" * 8_192),
)
"""By the number of bytes less one: the first byte of each delta, the second, the third."""
_CONTINUED: Final = bytes(range(0x80, 0x100))
"""Bytes of a varint that are not its last."""
_VARINT_SHIFT_MAX: Final = 28
_VARLONG_BYTES_MAX: Final = 10


def check_records(data: bytes | memoryview, count: int, walked_max: int | None = None) -> bool:
    """Check the decompressed records of a batch of `count` records. Raises InvalidRecord; IndexError if truncated.

    False if more than `walked_max` records have to be walked one by one: then the rest is not checked.
    """
    size = len(data)
    index = position = walked = 0
    chunk = _CHUNK if count >= _CHUNK + _RUN_MIN else count
    while index < count:
        last = min(count, index + chunk)
        walked += last - index
        if walked_max is not None and walked > walked_max:
            return False
        if walked > _RUN_MIN and size <= _COPIED_BYTES_MAX and size <= count * _COPIED_RECORD_BYTES_MAX:
            data = bytes(data)
        start, position = _walk(data, size, index, last, position)
        index = last
        run = _run_length(data, size, index, count, start, position) if count - index >= _RUN_MIN else 0
        chunk = _CHUNK if run else chunk * 4
        index += run
        position += run * (position - start)
    if position != size:
        raise InvalidRecord(f"{size - position} bytes follow the last record")
    return True


def _run_length(data: bytes | memoryview, size: int, index: int, count: int, start: int, position: int) -> int:
    """How many records from `index` on have the lengths of the checked record before, which begins at `start`.

    They lie at equal distances, so one slice has the same byte of all: some 10 slices check thousands of records. 0 if
    they are few, of varying size, have headers, or are wrong in any way, which `_walk` then finds out.
    """
    step = position - start
    delta_bytes = 1 + (index > _DELTA_ENDS[0]) + (index > _DELTA_ENDS[1])
    run = min(count - index, (size - position) // step, _DELTA_ENDS[delta_bytes - 1] - index)
    head = data[start : start + 2]
    if run < _RUN_MIN or data[position : position + 2] != head or data[position + step : position + step + 2] != head:
        return 0
    try:
        fixed, timestamp, delta = _places(data, start, delta_bytes)
    except (InvalidRecord, IndexError):  # its offset delta has more bytes than it needs
        return 0
    if fixed[-1] != step - 1 or data[start + step - 1]:
        return 0  # headers

    def column(at: int) -> bytes:
        return bytes(data[position + at : position + run * step : step])

    for at in fixed:
        values = column(at)
        run = min(run, len(values) - len(values.lstrip(bytes((data[start + at],)))))
        if run < _RUN_MIN:
            return 0
    if not column(delta - 1).isascii() or any(column(at).translate(None, _CONTINUED) for at in timestamp[:-1]):
        return 0  # a timestamp delta of another size
    deltas = _DELTA_BYTES[delta_bytes - 1]
    return run if all(column(delta + n) == byte[index : index + run] for n, byte in enumerate(deltas)) else 0


def _places(data: bytes | memoryview, start: int, delta_bytes: int) -> tuple[list[int], range, int]:
    """Within the record at `start`: the bytes of its lengths and of its count of headers, its timestamp delta, and the
    first byte of its offset delta."""
    at = _after_varlong(data, start)
    fixed = [*range(at - start)]
    timestamp_at = at + 1
    delta_at = _after_varlong(data, timestamp_at)
    at = delta_at + delta_bytes
    for _ in range(2):  # key, value
        length, after = _varint(data, at)
        fixed += range(at - start, after - start)
        at = after if length & 1 else after + (length >> 1)
    fixed.append(at - start)
    return fixed, range(timestamp_at - start, delta_at - start), delta_at - start


def _walk(  # noqa: C901 - calls are most of a record's cost
    data: bytes | memoryview, size: int, first: int, last: int, position: int
) -> tuple[int, int]:
    """Check records `first` to `last` (exclusive) one by one; returns the start of the last one, and its end.

    One-byte varints are decoded inline, longer ones by `_long`, all as unsigned values.
    """
    start = position
    for index in range(first, last):
        start = position
        length = data[position]
        position += 1
        if length >= 0x80:
            length, position = _long(data, position - 1)
        end = position + (length >> 1)
        if length & 1 or end > size:
            raise InvalidRecord(f"record {index} reaches beyond the batch")
        position += 1  # attributes
        if data[position] < 0x80:  # timestamp delta
            position += 1
        else:
            position = _after_varlong(data, position)
        delta = data[position]
        position += 1
        if delta >= 0x80:
            delta, position = _long(data, position - 1)
        if delta != index << 1:
            raise InvalidRecord(f"record {index} of the batch has another offset delta")
        length = data[position]  # key
        position += 1
        if length >= 0x80:
            length, position = _long(data, position - 1)
        if not length & 1:  # negative is null
            position += length >> 1
        length = data[position]  # value
        position += 1
        if length >= 0x80:
            length, position = _long(data, position - 1)
        if not length & 1:
            position += length >> 1
        if data[position]:
            position = _after_headers(data, position, end)
        else:
            position += 1
        if position != end:
            raise InvalidRecord(f"the fields of record {index} do not fill it")
    return start, position


def check_sizes(data: bytes | memoryview, count: int, bytes_max: int) -> None:
    """Check that no record has more than `bytes_max` bytes. Raises InvalidRecord; IndexError if truncated."""
    position = 0
    for index in range(count):
        length, position = _varint(data, position)
        if length >> 1 > bytes_max:
            raise InvalidRecord(f"record {index} has {length >> 1} bytes, the topic takes {bytes_max}")
        position += length >> 1


def _long(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """A varint, still zigzag-encoded, and the position after it."""
    second = data[position + 1]
    if second < 0x80:
        return data[position] & 0x7F | second << 7, position + 2
    value, shift = data[position] & 0x7F | (second & 0x7F) << 7, 14
    position += 2
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _VARINT_SHIFT_MAX:
            raise InvalidRecord("a varint is too long")


def _after_varlong(data: bytes | memoryview, position: int) -> int:
    for at in range(position, position + _VARLONG_BYTES_MAX):
        if data[at] < 0x80:
            return at + 1
    raise InvalidRecord("a varint is too long")


def _varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    first = data[position]
    return (first, position + 1) if first < 0x80 else _long(data, position)


def _after_headers(data: bytes | memoryview, position: int, end: int) -> int:
    count, position = _varint(data, position)
    if count & 1 or count >> 1 > end - position:
        raise InvalidRecord("a record has a wrong count of headers")
    for _ in range(count >> 1):
        length, position = _varint(data, position)
        if length & 1:
            raise InvalidRecord("the name of a header is null")
        position += length >> 1
        length, position = _varint(data, position)
        if not length & 1:
            position += length >> 1
        if position > end:
            raise InvalidRecord("a field reaches beyond its record")
    return position
