"""Acknowledgements of one share-partition as values, and the checks that need no state (KIP-932, KIP-1222)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate.errors import InvalidRequest
from tidegate.groups.share.errors import InvalidRecordState

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
UNDO: Final = b"5"
"""The digit of no kind of the protocol: the records could not be delivered, so the delivery does not count."""

RECORDS_MAX: Final = 1 << 20
"""Offsets of one acknowledgement batch; a share-partition's window is far smaller."""
RUNS_MAX: Final = 10_000
"""Runs of one kind in the batches of one share-partition: as many as the largest window has offsets."""
_DIGITS: Final = bytes.maketrans(bytes(range(5)), b"11234")


class RequestedBatch(Protocol):
    """A batch of a request; `acknowledge_types` is one kind for all its offsets, or one for each."""

    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def acknowledge_types(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One batch, both offsets inclusive.

    `digits` are its kinds as the scripts read them, one for all its offsets, or one for each; a gap is finished as an
    accepted record is.
    """

    first: int
    last: int
    digits: bytes


def checked(batches: Iterable[RequestedBatch], allows_renewal: bool) -> list[Acknowledgement]:
    """The batches of one share-partition. Raises InvalidRequest, InvalidRecordState for an overlap."""
    last_kind = RENEW if allows_renewal else REJECT
    permitted = bytes(range(last_kind + 1))
    found: list[Acknowledgement] = []
    previous_first = previous_last = -1
    run_count = 0
    for batch in batches:
        first, last, kinds = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if not 0 <= first <= last:
            raise InvalidRequest(f"{first} to {last} is not a range of offsets")
        count = last - first + 1
        if count > RECORDS_MAX:
            raise InvalidRequest(f"the range {first} to {last} is too large")
        if len(kinds) not in (1, count):
            raise InvalidRequest(f"{len(kinds)} acknowledge types for {count} offsets")
        digits = _digits(kinds, permitted)
        if not digits:
            raise InvalidRequest(f"acknowledge types are 0 to {last_kind} here")
        run_count += _run_count(digits)
        if run_count > RUNS_MAX:
            raise InvalidRequest(f"there are more than {RUNS_MAX} runs of one acknowledge type")
        if first < previous_first:
            raise InvalidRequest("the ranges are not in ascending order")
        if first <= previous_last:
            raise InvalidRecordState(f"the offset {first} is acknowledged twice")
        previous_first, previous_last = first, last
        found.append(Acknowledgement(first, last, digits))
    return found


def _digits(kinds: Sequence[int], permitted: bytes) -> bytes:
    """Kinds as digits; b"" if one is not permitted."""
    try:
        found = bytes(kinds)
    except ValueError:  # one is negative
        return b""
    return b"" if found.translate(None, permitted) else found.translate(_DIGITS)


def _run_count(digits: bytes) -> int:
    """How many runs of offsets with one kind there are, by few operations on all digits at once."""
    change_count_max = len(digits) - 1
    if not change_count_max:
        return 1
    changes = int.from_bytes(digits[1:]) ^ int.from_bytes(digits[:-1])
    return 1 + change_count_max - changes.to_bytes(change_count_max).count(0)
