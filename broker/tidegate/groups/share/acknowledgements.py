"""Acknowledgements of one share-partition as values, and the checks that need no state (KIP-932, KIP-1222)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.errors import InvalidRequest
from tidegate.groups.share.errors import InvalidRecordState

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
UNDO: Final = 5
"""Not of the protocol: the records could not be delivered, so the delivery does not count."""

RECORDS_MAX: Final = 1 << 20
"""Offsets of one acknowledgement batch; a share-partition's window is far smaller."""
RUNS_MAX: Final = 10_000
"""Runs of one kind in the batches of one share-partition: as many as the largest window has offsets."""
_DIGITS: Final = bytes.maketrans(bytes(range(6)), b"112345")


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One batch, both offsets inclusive; `kinds` is one kind for all its offsets, or one for each."""

    first: int
    last: int
    kinds: tuple[int, ...]

    @property
    def digits(self) -> str:
        """The kinds as the scripts read them; a gap is finished as an accepted record is."""
        return bytes(self.kinds).translate(_DIGITS).decode()

    @property
    def run_count(self) -> int:
        """How many runs of offsets with one kind it has."""
        digits = self.digits
        return 1 + sum(map(str.__ne__, digits, digits[1:]))


def check(batches: Sequence[Acknowledgement], allows_renewal: bool) -> None:
    """Check the batches of one share-partition. Raises InvalidRequest, InvalidRecordState for an overlap."""
    last_kind = RENEW if allows_renewal else REJECT
    previous_first = previous_last = -1
    run_count = 0
    for batch in batches:
        if not 0 <= batch.first <= batch.last:
            raise InvalidRequest(f"{batch.first} to {batch.last} is not a range of offsets")
        count = batch.last - batch.first + 1
        if count > RECORDS_MAX:
            raise InvalidRequest(f"the range {batch.first} to {batch.last} is too large")
        if len(batch.kinds) not in (1, count):
            raise InvalidRequest(f"{len(batch.kinds)} acknowledge types for {count} offsets")
        if not all(GAP <= kind <= last_kind for kind in batch.kinds):
            raise InvalidRequest(f"acknowledge types are 0 to {last_kind} here")
        run_count += batch.run_count
        if run_count > RUNS_MAX:
            raise InvalidRequest(f"there are more than {RUNS_MAX} runs of one acknowledge type")
        if batch.first < previous_first:
            raise InvalidRequest("the ranges are not in ascending order")
        if batch.first <= previous_last:
            raise InvalidRecordState(f"the offset {batch.first} is acknowledged twice")
        previous_first, previous_last = batch.first, batch.last
