"""Check the structure of a records area: every record complete, at its offset, no bytes after the last; and find the
largest timestamp, which a header may have wrong.

A correct CRC says nothing about the contents. A malformed batch in the log would stop every consumer of its partition,
so it is refused at Produce. The check reads lengths, offsets and timestamps: 0.6-0.8 us a record whatever its size, and
some 10-50 us for a run of a thousand records of equal size. Source: Kafka's LogValidator, DefaultRecord.readFrom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

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
_EVEN: Final = bytes(range(0, 0x100, 2))
_ROW_CODES: Final[dict[int, Literal["H", "I", "Q"]]] = {2: "H", 4: "I", 8: "Q"}
_NEGATIVE: Final = -1
"""In place of a zigzag-encoded delta."""
_NO_RUN: Final = (0, _NEGATIVE)
BELOW_BASE: Final = -(1 << 64)
"""The largest timestamp delta of a batch of which all are negative; the walk does not tell them apart."""
_VARINT_SHIFT_MAX: Final = 28
_VARLONG_BYTES_MAX: Final = 10


def check_records(data: bytes | memoryview, count: int, walked_max: int | None = None) -> int | None:
    """Check the decompressed records of a batch of `count` records; returns their largest timestamp delta, ms.

    None if more than `walked_max` records have to be walked one by one: then the rest is not checked.
    Raises InvalidRecord; IndexError if truncated.
    """
    size = len(data)
    index = position = walked = 0
    largest = _NEGATIVE
    chunk = _CHUNK if count >= _CHUNK + _RUN_MIN else count
    while index < count:
        last = min(count, index + chunk)
        walked += last - index
        if walked_max is not None and walked > walked_max:
            return None
        if walked > _RUN_MIN and size <= _COPIED_BYTES_MAX and size <= count * _COPIED_RECORD_BYTES_MAX:
            data = bytes(data)
        start, position, stamp = _walk(data, size, index, last, position)
        largest = max(largest, stamp)
        index = last
        run = 0
        if count - index >= _RUN_MIN:
            run, stamp = _run(data, size, index, count, start, position)
            largest = max(largest, stamp)
            index += run
            position += run * (position - start)
        chunk = _CHUNK if run else chunk * 4
    if position != size:
        raise InvalidRecord(f"{size - position} bytes follow the last record")
    return largest >> 1 if largest != _NEGATIVE else BELOW_BASE


def _run(data: bytes | memoryview, size: int, index: int, count: int, start: int, position: int) -> tuple[int, int]:
    """How many records from `index` on have the lengths of the checked record before, which begins at `start`.

    And their largest timestamp delta, still zigzag-encoded.

    They lie at equal distances, so one slice has the same byte of all: some 10 slices check thousands of records. 0 if
    they are few, of varying size, have headers, or are wrong in any way, which `_walk` then finds out.
    """
    step = position - start
    delta_bytes = 1 + (index > _DELTA_ENDS[0]) + (index > _DELTA_ENDS[1])
    run = min(count - index, (size - position) // step, _DELTA_ENDS[delta_bytes - 1] - index)
    head = data[start : start + 2]
    if run < _RUN_MIN or data[position : position + 2] != head or data[position + step : position + step + 2] != head:
        return _NO_RUN
    try:
        fixed, timestamp, delta = _places(data, start, delta_bytes)
    except (InvalidRecord, IndexError):  # its offset delta has more bytes than it needs
        return _NO_RUN
    if fixed[-1] != step - 1 or data[start + step - 1]:
        return _NO_RUN  # headers

    def column(at: int) -> bytes:
        return bytes(data[position + at : position + run * step : step])

    for at in fixed:
        values = column(at)
        run = min(run, len(values) - len(values.lstrip(bytes((data[start + at],)))))
        if run < _RUN_MIN:
            return _NO_RUN
    if not column(delta - 1).isascii() or any(column(at).translate(None, _CONTINUED) for at in timestamp[:-1]):
        return _NO_RUN  # a timestamp delta of another size
    deltas = _DELTA_BYTES[delta_bytes - 1]
    if not all(column(delta + n) == byte[index : index + run] for n, byte in enumerate(deltas)):
        return _NO_RUN
    largest = _largest([column(at) for at in timestamp])
    return _NO_RUN if largest == _NEGATIVE else (run, largest)


def _largest(columns: Sequence[bytes]) -> int:
    """The largest of varints of one size, given by their first bytes, their second ones, ...; `_NEGATIVE` if one is
    negative, or too long."""
    if columns[0].translate(None, _EVEN):
        return _NEGATIVE
    if len(columns) == 1:
        return max(columns[0])
    width = next((one for one in _ROW_CODES if one >= len(columns)), 0)
    if not width:
        return _NEGATIVE
    rows = bytearray(width * len(columns[0]))
    for at, column in enumerate(columns):
        rows[at::width] = column
    largest = max(memoryview(rows).cast(_ROW_CODES[width]))
    return sum((largest >> 8 * at & 0x7F) << 7 * at for at in range(len(columns)))


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
) -> tuple[int, int, int]:
    """Check records `first` to `last` (exclusive) one by one.

    Returns the start of the last one, its end, and the largest timestamp delta, still zigzag-encoded.

    One-byte varints are decoded inline, longer ones by `_long`, all as unsigned values.
    """
    start, largest = position, _NEGATIVE
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
        stamp = data[position]  # timestamp delta
        position += 1
        if stamp >= 0x80:
            stamp, position = _varlong(data, position - 1)
        if stamp > largest and not stamp & 1:
            largest = stamp
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
    return start, position, largest


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


def _varlong(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """As `_long`, of up to ten bytes."""
    second = data[position + 1]
    if second < 0x80:
        return data[position] & 0x7F | second << 7, position + 2
    end = _after_varlong(data, position)
    value = 0
    for at in range(end - 1, position - 1, -1):
        value = value << 7 | data[at] & 0x7F
    return value, end


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
