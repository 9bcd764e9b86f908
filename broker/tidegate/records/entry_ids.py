"""Offsets of format `record` and stream ids: offset = (milliseconds << sequence bits) | sequence, in both directions.

Ids sort as their offsets do while sequences are below 2^bits. A Redis program can create an id beyond that, with more
XADD of one millisecond than the bits count; it has no offset, and Kafka clients do not receive it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FIRST_ID: Final = "0-0"
_SEQUENCE_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class RecordIds:
    """The conversion for one number of sequence bits."""

    bits: int
    sequences: int = field(init=False)
    """Sequences of a millisecond that have an offset."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sequences", 1 << self.bits)

    def offset_of(self, stream_id: bytes | str) -> int | None:
        """The offset of an id; None if its sequence is beyond the bits."""
        ms, sequence = parse_id(stream_id)
        return ms << self.bits | sequence if sequence < self.sequences else None

    def end_of(self, stream_id: bytes | str) -> int:
        """The first offset above an id; 0 for the id of an empty stream."""
        ms, sequence = parse_id(stream_id)
        if not ms and not sequence:
            return 0
        return (ms << self.bits | min(sequence, self.sequences - 1)) + 1

    def id_of(self, offset: int) -> str:
        """The id of the record at an offset."""
        return f"{offset >> self.bits}-{offset & self.sequences - 1}"

    def id_before(self, offset: int) -> str:
        """The largest id below an offset: a Redis group with this last id reads the record at the offset next."""
        if offset <= 0:
            return FIRST_ID
        ms, sequence = offset >> self.bits, offset & self.sequences - 1
        return f"{ms}-{sequence - 1}" if sequence else f"{ms - 1}-{_SEQUENCE_MAX}"


def parse_id(stream_id: bytes | str) -> tuple[int, int]:
    """The milliseconds and the sequence of an id."""
    text = stream_id.decode() if isinstance(stream_id, bytes) else stream_id
    ms, _, sequence = text.partition("-")
    return int(ms), int(sequence)
