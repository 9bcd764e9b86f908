"""A stream entry as brokers hold it: whole record batches, end to end, and where each ends.

An entry's id is `<base offset>-1`. Its fields are `w <writer>` and one `b <batch>` for each batch, stored
as they came: base offset (bytes 0-7) and leader epoch (12-15) are outside the CRC and written on the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

Buffer = bytes | bytearray | memoryview

_HEADER: Final = Struct(">hiqqqhi")  # from byte 21: attributes .. base sequence
_HEADER_AT: Final = 21
_PLACE: Final = Struct(">qii")
_LENGTH: Final = Struct(">i")
_JOINED_BYTES_MAX: Final = 4_096

TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20


class Header(NamedTuple):
    """The fields of a stored batch that a view needs; timestamps in ms."""

    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def read_header(batch: Buffer) -> Header:
    """The header of a stored batch (v2, at least 61 bytes)."""
    return Header._make(_HEADER.unpack_from(batch, _HEADER_AT))


class Entry:
    """One entry: `base` to `end` (exclusive), batches in order, `ends` their ends, `size` in bytes."""

    __slots__ = ("_whole", "base", "batches", "end", "ends", "max_timestamp", "pieces", "size", "writer")

    def __init__(
        self, base: int, writer: bytes, batches: Sequence[Buffer], ends: list[int], size: int, max_timestamp: int
    ) -> None:
        self.base = base
        self.writer = writer
        self.batches = batches
        self.ends = ends
        self.end = ends[-1]
        self.size = size
        self.max_timestamp = max_timestamp
        self.pieces: list[tuple[Buffer, ...]] | None = None
        self._whole: tuple[Buffer, ...] | None = None

    def whole(self, epoch: int) -> tuple[Buffer, ...]:
        """All batches, ready to send; small ones in one piece. Made once."""
        if self._whole is None:
            pieces = self.served(epoch)
            flat = tuple(buffer for piece in pieces for buffer in piece)
            small = self.size <= _JOINED_BYTES_MAX * len(pieces)
            self._whole = (b"".join(flat),) if small and len(flat) > 1 else flat
            if len(self._whole) < len(flat):
                self.pieces = None
        return self._whole

    def served(self, epoch: int) -> list[tuple[Buffer, ...]]:
        """Each batch with its offset and leader epoch in place: a fresh head, the rest not copied. Kept."""
        if self.pieces is None:
            base, pieces = self.base, []
            for batch, end in zip(self.batches, self.ends, strict=True):
                pieces.append(_placed(batch, base, epoch))
                base = end
            self.pieces = pieces
        return self.pieces


def _placed(batch: Buffer, base: int, epoch: int) -> tuple[Buffer, ...]:
    head = _PLACE.pack(base, _LENGTH.unpack_from(batch, 8)[0], epoch)
    if len(batch) <= _JOINED_BYTES_MAX:
        return (head + batch[16:],)
    return head, memoryview(batch)[16:]


def parse_id(entry_id: bytes) -> int:
    """The base offset in an entry's id."""
    return int(entry_id[: entry_id.index(b"-")])


def parse_entry(item: Sequence[Any]) -> Entry:
    """One entry of an XRANGE reply: `[id, [field, value, ...]]`."""
    entry_id, fields = item
    base = end = parse_id(entry_id)
    writer, batches, ends, size, max_timestamp = b"", [], [], 0, -1
    for i in range(0, len(fields), 2):
        if fields[i] == b"b":
            batch = fields[i + 1]
            header = read_header(batch)
            end += header.last_offset_delta + 1
            batches.append(batch)
            ends.append(end)
            size += len(batch)
            max_timestamp = max(max_timestamp, header.max_timestamp)
        elif fields[i] == b"w":
            writer = fields[i + 1]
    return Entry(base, writer, batches, ends, size, max_timestamp)
