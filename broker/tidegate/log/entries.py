"""Stream entries in memory: whole record batches, end to end, and the end offset of each.

An entry's id is `<base offset>-1`, so ids sort as offsets do. No entry has the id `<offset>-0`: it sorts before the
entry that starts at the offset and after all that start below it, so a Redis group with this last id reads that entry
next. The fields are `w <writer>` and one `b <batch>` for each batch, stored unchanged: base offset (bytes 0-7) and
leader epoch (12-15) are outside the CRC and are written when a batch is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from tidegate.errors import KafkaStorageError
from tidegate.records.batch_header import (
    ATTRIBUTES_AT,
    ATTRIBUTES_TO_SEQUENCE,
    HEADER_BYTES,
    INT32,
    LENGTH_AT,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    PLACE,
    PLACE_BYTES,
)

Buffer = bytes | bytearray | memoryview

_SEQUENCE: Final = 1
_SHOWN_BYTES: Final = 32
_JOINED_BYTES_MAX: Final = 4_096


def id_of(base: int) -> str:
    """The id of the entry that starts at an offset."""
    return f"{base}-{_SEQUENCE}"


def id_before(offset: int) -> str:
    """The id before the entry that starts at an offset and after all entries below."""
    return f"{offset}-0"


class Header(NamedTuple):
    """The header fields of a stored batch that LogState needs; timestamps in ms."""

    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def read_header(batch: Buffer) -> Header:
    """The header of a stored batch (v2, at least 61 bytes)."""
    return Header._make(ATTRIBUTES_TO_SEQUENCE.unpack_from(batch, ATTRIBUTES_AT))


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
        """All batches, ready to send; small ones joined into one buffer. Cached."""
        if self._whole is None:
            pieces = self.served(epoch)
            flat = tuple(buffer for piece in pieces for buffer in piece)
            small = self.size <= _JOINED_BYTES_MAX * len(pieces)
            self._whole = (b"".join(flat),) if small and len(flat) > 1 else flat
            if len(self._whole) < len(flat):
                self.pieces = None
        return self._whole

    def served(self, epoch: int) -> list[tuple[Buffer, ...]]:
        """Each batch with its offset and leader epoch written: a new 16-byte head, the rest not copied. Cached."""
        if self.pieces is None:
            base, pieces = self.base, []
            for batch, end in zip(self.batches, self.ends, strict=True):
                pieces.append(_placed(batch, base, epoch))
                base = end
            self.pieces = pieces
        return self.pieces


def _placed(batch: Buffer, base: int, epoch: int) -> tuple[Buffer, ...]:
    head = PLACE.pack(base, INT32.unpack_from(batch, LENGTH_AT)[0], epoch)
    if len(batch) <= _JOINED_BYTES_MAX:
        return (head + batch[PLACE_BYTES:],)
    return head, memoryview(batch)[PLACE_BYTES:]


class StrayEntry(KafkaStorageError):
    """A stream entry that no broker appended, or that is damaged; `entry_id` is (base, sequence).

    A `removed` one hides no record, but Redis still refuses appends at or below its id.
    """

    def __init__(self, entry_id: tuple[int, int], reason: str, *, removed: bool = False) -> None:
        super().__init__(f"the stream entry {entry_id[0]}-{entry_id[1]} is not an entry of a log: {reason}")
        self.entry_id = entry_id
        self.reason = reason
        self.removed = removed

    @property
    def takes_offset(self) -> bool:
        """Whether its id is one that a broker's entry would have, so no valid entry can have its base."""
        return self.entry_id[1] == _SEQUENCE

    def stops(self, end: int) -> bool:
        """Whether it blocks appends to a log that ends at `end`: Redis accepts no id below the stream's last id."""
        return self.entry_id >= (end, _SEQUENCE)


def parse_id(entry_id: bytes) -> tuple[int, int]:
    """The two numbers of a stream id: in a log, the base offset and 1."""
    base, _, sequence = entry_id.partition(b"-")
    return int(base), int(sequence)


def parse_entries(reply: Sequence[Any]) -> tuple[list[Entry], list[StrayEntry]]:
    """The entries of an XRANGE reply in order, and the stray entries among them."""
    entries: list[Entry] = []
    strays: list[StrayEntry] = []
    for item in reply:
        try:
            entries.append(parse_entry(item))
        except StrayEntry as stray:
            strays.append(stray)
    return entries, strays


def until_torn(entries: list[Entry], strays: Iterable[StrayEntry]) -> list[Entry]:
    """The entries below the first stray entry that takes an offset; later ones do not continue them."""
    torn = min((stray.entry_id[0] for stray in strays if stray.takes_offset), default=None)
    return entries if torn is None else [entry for entry in entries if entry.base < torn]


def _fault(batch: Any) -> str:
    """Why `batch` is not one whole batch; "" if it is one. The CRC is not computed."""
    if len(batch) < HEADER_BYTES:
        return f"a batch of {len(batch)} bytes"
    if batch[MAGIC_AT] != MAGIC:
        return f"a batch of magic {batch[MAGIC_AT]}"
    length = INT32.unpack_from(batch, LENGTH_AT)[0] + LENGTH_OVERHEAD
    return "" if length == len(batch) else f"a batch of {len(batch)} bytes whose header says {length}"


def parse_entry(item: Sequence[Any]) -> Entry:
    """One entry of an XRANGE reply: `[id, [field, value, ...]]`. Raises StrayEntry, and nothing else."""
    entry_id = parse_id(item[0])
    fields = item[1] or ()
    if entry_id[1] != _SEQUENCE:
        raise StrayEntry(entry_id, f"its id does not end in -{_SEQUENCE}")
    if len(fields) % 2:
        raise StrayEntry(entry_id, "a field without a value")
    base = end = entry_id[0]
    writer, batches, ends, size, max_timestamp = b"", [], [], 0, -1
    for i in range(0, len(fields), 2):
        if fields[i] == b"b":
            batch = fields[i + 1]
            if fault := _fault(batch):
                raise StrayEntry(entry_id, fault)
            header = read_header(batch)
            if header.last_offset_delta < 0:
                raise StrayEntry(entry_id, f"a batch whose last offset delta is {header.last_offset_delta}")
            end += header.last_offset_delta + 1
            batches.append(batch)
            ends.append(end)
            size += len(batch)
            max_timestamp = max(max_timestamp, header.max_timestamp)
        elif fields[i] == b"w":
            writer = fields[i + 1]
        else:
            raise StrayEntry(entry_id, f"a field {bytes(fields[i][:_SHOWN_BYTES])!r}")
    if not batches:
        raise StrayEntry(entry_id, "no batch")
    return Entry(base, writer, batches, ends, size, max_timestamp)
